"""The law of sampled tokens, through the real system: caches, batches, warping and keyed noise.

Thousands of sequences per rule, counted by their first three tokens and tested against the exact
joint law. A right rule fails with probability `ERROR_RATE`; all seeds are fixed, so the verdict is
the same in every run. The same pipeline has to reject a wrong rule.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch

from draftproof.api import Speculator
from draftproof.checks.exact import joint_law, total_variation
from draftproof.checks.statistics import goodness_of_fit, tv_threshold
from draftproof.config import EngineSettings
from draftproof.core import Draft
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import MAX_SAMPLES, SamplingParams
from tests.toys import (
    ResampleFromTarget,
    RightResidual,
    Varied,
    flattened,
    opposite,
    remembered,
)
from tests.verification.test_wrong_rules import FirstFailedCoin

ERROR_RATE = 1e-6
LENGTH = 3
FEW = 10 * MAX_SAMPLES
RULES = ["tokenwise", "blockwise", "point", "coupled"]
PROMPT = [0, 1, 0, 2, 0, 1]


def target_of(vocab_size):
    """Depends on the previous token, so that a rejection handled one row late is seen."""
    return remembered(flattened(random_law(vocab_size, seed=21, order=1)))


def count(system, num_samples, params):
    """First tokens of `num_samples` sequences, each with numbers of its own."""
    counts = Counter()
    for seed in range(-(-num_samples // MAX_SAMPLES)):
        one = dataclasses.replace(params, seed=seed, n=MAX_SAMPLES)
        counts.update(sample.token_ids for sample in system.generate(PROMPT, one).samples)
    return counts


def system_for(rule, vocab_size=3, drafter=None, depth=3):
    target = target_of(vocab_size)
    if drafter is None:
        draft = remembered(flattened(random_law(vocab_size, seed=22)))
        drafter = ModelDrafter(ToyModel(draft, vocab_size), vocab_size, prefill_chunk=8)
    settings = EngineSettings(depth=depth, max_batch=MAX_SAMPLES)
    return Speculator(ToyModel(target, vocab_size), drafter, verifier=rule, settings=settings)


def wanted(vocab_size, law=None):
    """The exact law of the first tokens behind the prompt."""
    law = law or target_of(vocab_size)
    return joint_law(lambda prefix: law((*PROMPT, *prefix)), LENGTH)


def check(counts, law):
    fit = goodness_of_fit(counts, law, ERROR_RATE)
    seen = {tokens: number / fit.num_samples for tokens, number in counts.items()}
    distance = total_variation(seen, law)
    return fit.passed and distance <= tv_threshold(len(law), fit.num_samples, ERROR_RATE)


SAMPLED = SamplingParams(temperature=1.0, max_tokens=LENGTH)


@pytest.mark.parametrize("rule", RULES)
def test_first_three_tokens_have_the_targets_joint_law(rule):
    assert check(count(system_for(rule), FEW, SAMPLED), wanted(3))


TREES = [{"width": 2, "nodes": 12}, {"width": 3, "nodes": 5}, {"width": 2, "nodes": 6}]


@pytest.mark.parametrize("rule", ["tree", "traversal", "coupled", "point"])
def test_trees_of_a_model_have_the_targets_joint_law(rule):
    """Siblings drawn without replacement, in a race, or the likeliest; shapes that change."""
    system = system_for(rule)
    trees = Varied(system.drafter, TREES)
    system = Speculator(system.target, trees, verifier=rule, settings=system.settings)
    assert check(count(system, FEW, SAMPLED), wanted(3))


class Sorted:
    """A drafter that hands its drawn siblings over likeliest first."""

    def __init__(self, drafter):
        self.name, self.proposals, self._drafter = "sorted", drafter.proposals, drafter

    def begin(self, cache):
        drafting = self._drafter.begin(cache)
        propose = drafting.propose
        drafting.propose = lambda *given: [_sorted(draft) for draft in propose(*given)]
        return drafting


def _sorted(draft):
    if len(draft.tokens) < 2:
        return draft
    first, second = sorted(draft.tokens, key=lambda token: -float(draft.q[0, token]))
    rest = draft.q[0].clone()
    rest[first] = 0.0
    q = torch.stack([draft.q[0], rest / rest.sum()])
    return Draft((first, second), (-1, -1), q, draft.proposal)


@pytest.mark.parametrize("rule", ["tree", "traversal"])
def test_siblings_in_another_order_fail_in_the_same_pipeline(rule):
    system = system_for(rule)
    trees = Varied(Sorted(system.drafter), [{"depth": 1, "width": 2, "nodes": 2}])
    system = Speculator(system.target, trees, verifier=rule, settings=system.settings)
    assert not check(count(system, FEW, SAMPLED), wanted(3))


def test_wrong_rule_fails_in_the_same_pipeline():
    """Resamples from p after a rejection; the same class with the right residual passes."""
    assert not check(count(system_for(ResampleFromTarget()), FEW, SAMPLED), wanted(3))
    assert check(count(system_for(RightResidual()), FEW, SAMPLED), wanted(3))


def test_wrong_blockwise_rule_fails_in_the_same_pipeline():
    """Stops at the first tail."""
    assert not check(count(system_for(FirstFailedCoin()), FEW, SAMPLED), wanted(3))


def test_wrong_q_fails_in_the_same_pipeline():
    """An argmax draft that is handed over as if it had been sampled from its softmax."""
    assert not check(count(_argmax_as_if_sampled(), FEW, SAMPLED), wanted(3))


def _argmax_as_if_sampled():
    system = system_for("tokenwise")
    begin = system.drafter.begin

    class Wrong:
        name, proposals = system.drafter.name, system.drafter.proposals

        def begin(self, cache):
            drafting = begin(cache)
            propose = drafting.propose

            def wrong(contexts, plans):
                return [
                    Draft.chain(draft.q.argmax(-1).tolist(), draft.proposal, draft.q)
                    if draft.q is not None
                    else draft
                    for draft in propose(contexts, plans)
                ]

            drafting.propose = wrong
            return drafting

    return Speculator(system.target, Wrong(), verifier=system.verifier, settings=system.settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "vocab_size", "num_samples"),
    [
        ("tokenwise", 5, 5_000),
        ("blockwise", 3, 5_000),
        # Their tokens are the target's own draws by construction.
        ("point", 5, 2_560),
        ("coupled", 3, 2_560),
    ],
)
def test_many_samples_have_the_targets_joint_law(rule, vocab_size, num_samples):
    counts = count(system_for(rule, vocab_size), num_samples, SAMPLED)
    assert sum(counts.values()) >= num_samples
    assert check(counts, wanted(vocab_size))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["point", "coupled", "tokenwise", "blockwise"])
def test_lookup_drafts_are_accepted_with_the_targets_probability(rule):
    """A drafted token is no sample of the drafter's law; it is a point mass."""
    counts = count(system_for(rule, drafter=NgramDrafter()), FEW, SAMPLED)
    assert check(counts, wanted(3))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_cut_and_biased_law_is_kept(rule):
    """top_k cuts p and q to different supports here; min_p, bias and temperature act on both."""
    target = target_of(5)
    drafter = ModelDrafter(ToyModel(remembered(opposite(target)), 5), 5, prefill_chunk=8)
    for settings in (
        {"top_k": 2},
        {"top_p": 0.7, "temperature": 1.4},
        {"min_p": 0.2, "logit_bias": {1: 1.0}},
    ):
        params = SamplingParams(**{"temperature": 1.0, "max_tokens": LENGTH, **settings})
        counts = count(system_for(rule, 5, drafter, depth=2), FEW // 4, params)
        assert check(counts, wanted(5, _shaped(target, params)))


def _shaped(law, params):
    """The settings above, written out for plain lists of probabilities."""

    def shaped(prefix):
        weights = [chance ** (1 / params.temperature) for chance in law(prefix)]
        if params.logit_bias:
            weights[1] *= 2.718281828459045
        total = sum(weights)
        chances = [weight / total for weight in weights]
        order = sorted(range(5), key=lambda v: -chances[v])
        kept = set(order[: params.top_k or 5])
        if params.top_p < 1:
            size = next(n for n in range(1, 6) if sum(chances[v] for v in order[:n]) >= 0.7)
            kept = set(order[:size])
        kept = {v for v in kept if chances[v] >= params.min_p * max(chances)}
        total = sum(chances[v] for v in kept)
        return [chances[v] / total if v in kept else 0.0 for v in range(5)]

    return shaped


@pytest.mark.slow
def test_unseeded_sequences_are_independent_samples():
    """Streams shared between requests gave identical samples elsewhere; 1 in a million fails."""
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH, n=MAX_SAMPLES)
    system = system_for(None)
    counts = Counter()
    for _ in range(FEW // MAX_SAMPLES):
        counts.update(sample.token_ids for sample in system.generate(PROMPT, params).samples)
    assert check(counts, wanted(3))
