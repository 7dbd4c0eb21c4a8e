"""The test of sampled tokens: right rules pass at the stated rate, wrong ones do not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from draftproof.api import Speculator
from draftproof.checks.control import WRONG_RULES
from draftproof.checks.uniformity import pair_fit, token_fit
from draftproof.config import EngineSettings
from draftproof.core import Draft, Proposal, Purpose, Verdict
from draftproof.drafters.base import Drafting
from draftproof.drafters.model import ModelDrafter
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from tests.toys import ResampleFromTarget, RightResidual, only, remembered

pytest.importorskip("scipy")

ERROR_RATE = 1e-6
V = 6
PARAMS = SamplingParams(temperature=1.0, max_tokens=24, seed=1, ignore_eos=True)


def uniform_pairs(count, seed=0):
    return np.random.default_rng(seed).random((count, 2)).tolist()


def sharpened(law):
    """Too sure of what is likely, as drafters are."""

    def sharp(prefix):
        weights = [chance**3 for chance in law(prefix)]
        return [weight / sum(weights) for weight in weights]

    return sharp


TARGET = remembered(random_law(V, seed=11))
SHARP = remembered(sharpened(TARGET))


def speculator(verifier, draft=SHARP, target=TARGET, depth=3):
    settings = EngineSettings(depth=depth)
    drafter = drafter_of(draft)
    return Speculator(ToyModel(target, V), drafter, verifier=verifier, settings=settings)


def drafter_of(law):
    return ModelDrafter(ToyModel(law, V), V, prefill_chunk=4)


def fit(judged, samples=24, params=PARAMS):
    prompts = [[1, 2], [3, 4, 5], [0]]
    return token_fit(judged, prompts, params, samples, ERROR_RATE, lambda _done, _total: None)


# Pairs --------------------------------------------------------------------------------------


def test_uniform_pairs_fail_as_often_as_stated():
    """400 tests at an error rate of 0.05: 20 failures expected, 0.05 % chance of 38 or more."""
    rate = 0.05
    failed = sum(not pair_fit(uniform_pairs(256, seed), rate).passed for seed in range(400))
    assert 6 <= failed <= 38


def test_more_pairs_make_finer_cells():
    """One cell in sixteen is empty: two by two cells could not be filled so unevenly."""
    pairs = [(x, y) for x, y in uniform_pairs(2000) if not (x < 0.25 and y < 0.25)]
    assert not pair_fit(pairs, ERROR_RATE).passed
    assert pair_fit(pairs[:40], ERROR_RATE).threshold < pair_fit(pairs, ERROR_RATE).threshold


def test_likely_tokens_too_often_are_seen():
    pairs = [(x**1.5, y**1.5) for x, y in uniform_pairs(400)]
    assert not pair_fit(pairs, ERROR_RATE).passed


def test_neighbours_that_depend_on_each_other_are_seen_though_each_is_uniform():
    pairs = [(x, (x + 0.5 * y) % 1) for x, y in uniform_pairs(400)]
    assert not pair_fit(pairs, ERROR_RATE).passed


def test_an_impossible_token_fails_at_once():
    result = pair_fit([*uniform_pairs(400), (0.5, math.inf)], ERROR_RATE)
    assert result.statistic == math.inf
    assert not result.passed


# Rules through the whole pipeline -----------------------------------------------------------


@pytest.mark.parametrize("verifier", ["tokenwise", "blockwise", "coupled"])
def test_a_right_rule_passes(verifier):
    result = fit(speculator(verifier))
    assert result.passed
    assert result.num_samples == 24 * 12


def test_the_harness_for_wrong_rules_passes_when_its_correction_is_right():
    assert fit(speculator(RightResidual())).passed


@pytest.mark.parametrize(
    "rule", [ResampleFromTarget(), *WRONG_RULES], ids=["resample", "full", "scalar"]
)
def test_a_wrong_rule_is_rejected(rule):
    assert not fit(speculator(rule)).passed


class BonusFromTheRowBefore:
    """Draws the bonus from the row of the last drafted token: one row late."""

    name = "late"
    accepts = frozenset({Proposal.SAMPLED})
    greedy = False
    keyed = False
    trees = False

    def verify(self, draft, p, position, noise):
        verdict = RightResidual().verify(draft, p, position, noise)
        if not verdict.all_accepted or not draft.tokens:
            return verdict
        bonus = noise.draw(p[-2], position, Purpose.CORRECTION)
        return Verdict(verdict.accepted, bonus, all_accepted=True)


def test_a_bonus_drawn_one_row_late_is_rejected():
    assert fit(speculator("tokenwise", TARGET, depth=1)).passed
    assert not fit(speculator(BonusFromTheRowBefore(), TARGET, depth=1)).passed


class AcceptsAll:
    name = "accepts-all"
    accepts = frozenset({Proposal.SAMPLED})
    greedy = False
    keyed = False
    trees = False

    def verify(self, draft, p, position, noise):
        bonus = noise.draw(p[-1], position, Purpose.CORRECTION)
        return Verdict(tuple(range(len(draft.tokens))), bonus, all_accepted=True)


def test_accepting_what_the_target_never_says_fails_at_once():
    without_zero = only(TARGET, {1, 2, 3, 4, 5})
    assert fit(speculator(AcceptsAll(), TARGET, without_zero)).statistic == math.inf


class Liar:
    """Draws from one law and hands over another as q."""

    name = "liar"
    proposals = frozenset({Proposal.SAMPLED})

    def __init__(self, drafter):
        self._drafter = drafter

    def begin(self, cache):
        return _Lying(self._drafter.begin(cache))


class _Lying(Drafting):
    def __init__(self, drafting):
        self._drafting = drafting

    def propose(self, contexts, plans):
        drafts = self._drafting.propose(contexts, plans)
        return [replace(d, q=_flattened(d)) if d.tokens else d for d in drafts]

    def move(self, source, target):
        self._drafting.move(source, target)


def _flattened(draft: Draft) -> torch.Tensor:
    flat = draft.q**0.3
    return flat / flat.sum(dim=-1, keepdim=True)


def test_a_drafter_that_reports_another_law_than_it_drew_from_is_rejected():
    settings = EngineSettings(depth=4)
    liar = Liar(drafter_of(SHARP))
    judged = Speculator(ToyModel(TARGET, V), liar, verifier="tokenwise", settings=settings)
    assert not fit(judged).passed


def test_what_is_tested_is_the_law_that_the_request_asks_for():
    params = replace(PARAMS, temperature=0.7, top_k=4, logit_bias={2: 1.0})
    assert fit(speculator("blockwise"), params=params).passed


def test_the_controls_draft_what_they_judge():
    assert {rule.accepts for rule in WRONG_RULES} == {
        frozenset({Proposal.POINT}),
        frozenset({Proposal.SAMPLED}),
    }
