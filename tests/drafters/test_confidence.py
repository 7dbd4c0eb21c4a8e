"""Drafts of a model end where it is in doubt: what is recorded, where they end, and that the law of
the text stays the target's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftproof.checks.exact import emitted_law, joint_law, total_variation
from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.drafters.intersection import ShiftedNoise
from draftproof.drafters.rollout import roll_out
from draftproof.models.cache import KVCache
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.noise import KeyedNoise
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp
from draftproof.verification.registry import VERIFIERS
from tests.toys import EXACT, likeliest, remembered

V = 7
LAW = remembered(random_law(V, seed=5, zeros=0.2))
TEXT = [1, 4, 2]
SHAPES = [Plan(6), Plan(3, 3, 40), Plan(4, 2, 9)]


class Counting(ToyModel):
    """Knows how many passes were asked for."""

    passes = 0

    def forward(self, batch, cache, columns=None):
        self.passes += 1
        return super().forward(batch, cache, columns)


def rolled(proposal, *plans, temperature=1.0, texts=None):
    """One draft per plan, all in one batch, and the passes that they took."""
    model = Counting(LAW, V)
    texts = texts or [TEXT] * len(plans)
    contexts = [
        Context(
            row,
            row,
            text,
            Warp(SamplingParams(temperature=temperature), prompt_length=1, num_tokens=V),
            KeyedNoise(row),
            proposal,
        )
        for row, text in enumerate(texts)
    ]
    cache = KVCache(rows=len(plans), capacity=100)
    for row, text in enumerate(texts):
        model.prefill(text[:-1], cache, row, 8)
    before = model.passes
    drafts = [one.draft for one in roll_out(model, cache, contexts, plans, V)]
    return drafts, model.passes - before


def surest(draft, node):
    """The largest chance of any token in the place of `node`."""
    above = [draft.tokens[step] for step in draft.path(node)[:-1]]
    return max(LAW((*TEXT, *above)))


@pytest.mark.parametrize("proposal", Proposal)
@pytest.mark.parametrize("plan", SHAPES)
def test_confidence_is_the_largest_chance_at_each_place(proposal, plan):
    (draft,), _ = rolled(proposal, plan)
    assert draft.tokens
    wanted = [surest(draft, node) for node in range(len(draft.tokens))]
    assert draft.confidences == pytest.approx(wanted)


def test_confidence_of_a_greedy_request_is_that_of_temperature_one():
    (draft,), _ = rolled(Proposal.POINT, Plan(5), temperature=0.0)
    assert draft.confidences == pytest.approx([surest(draft, node) for node in range(5)])


@pytest.mark.parametrize("proposal", Proposal)
@pytest.mark.parametrize("threshold", [0.3, 0.45, 0.6, 1.0])
def test_a_chain_ends_with_the_first_doubtful_token_and_the_model_is_asked_no_further(
    proposal, threshold
):
    (free,), _ = rolled(proposal, Plan(6))
    (draft,), passes = rolled(proposal, replace(Plan(6), min_confidence=threshold))
    doubtful = [i for i, sure in enumerate(free.confidences) if sure < threshold]
    length = 1 + doubtful[0] if doubtful else 6
    assert draft.tokens == free.tokens[:length]
    assert passes == length


@pytest.mark.parametrize("proposal", Proposal)
@pytest.mark.parametrize("threshold", [0.3, 0.45, 0.6])
def test_siblings_at_a_doubtful_place_have_no_children(proposal, threshold):
    (draft,), _ = rolled(proposal, Plan(4, 3, 60, min_confidence=threshold))
    for node, sure in enumerate(draft.confidences):
        assert sure >= threshold or not draft.children(node)
    assert draft.tokens[0] in [*rolled(proposal, Plan(4, 3, 60))[0][0].tokens]


@pytest.mark.parametrize("proposal", Proposal)
def test_a_row_that_ends_early_leaves_the_others_alone(proposal):
    plans = [Plan(5, min_confidence=1.0), Plan(5), Plan(0), Plan(4, 2, 9, min_confidence=0.45)]
    together, _ = rolled(proposal, *plans)
    for row, plan in enumerate(plans):
        alone, _ = rolled(proposal, *(p if p is plan else Plan(0) for p in plans))
        assert together[row].tokens == alone[row].tokens
        assert together[row].confidences == pytest.approx(alone[row].confidences)
    assert [len(draft.tokens) for draft in together[:3]] == [1, 5, 0]


# The law of the text ------------------------------------------------------------------------

TARGET, DRAFT = remembered(random_law(3, seed=1)), remembered(random_law(3, seed=2))
PLANS = {"chain": Plan(3), "tree": Plan(3, 2, 5)}
RULES = [
    ("tokenwise", Proposal.SAMPLED, "chain"),
    ("blockwise", Proposal.SAMPLED, "chain"),
    ("traversal", Proposal.SAMPLED, "chain"),
    ("tree", Proposal.DISTINCT, "tree"),
    ("traversal", Proposal.DISTINCT, "tree"),
    ("coupled", Proposal.COUPLED, "chain"),
    ("coupled", Proposal.POINT, "tree"),
    ("point", Proposal.POINT, "tree"),
    ("greedy", Proposal.POINT, "tree"),
]
LENGTH = 4


def proposer(proposal, plan, doubts):
    """Drafts of the real loop, on noise whose every branch is tried; a start token stands first.

    `doubts` hears of every place with room behind it whether the drafter was sure enough.
    """
    model = ToyModel(lambda tokens: DRAFT(tokens[1:]), 3)
    warp = Warp(SamplingParams(temperature=1.0), prompt_length=1, num_tokens=3)

    def propose(prefix, most, noise):
        text = [0, *prefix]
        cache = KVCache(rows=1, capacity=20)
        model.prefill(text[:-1], cache, 0, 8)
        context = Context(0, 0, text, warp, ShiftedNoise(noise, -1), proposal)
        wanted = replace(plan, depth=min(plan.depth, most))
        draft = roll_out(model, cache, [context], [wanted], 3)[0].draft
        for node, sure in enumerate(draft.confidences):
            if len(draft.path(node)) < wanted.depth:
                doubts.add(sure >= plan.min_confidence)
        return draft

    return propose


def deviation(rule, propose):
    target = likeliest(TARGET) if rule.greedy else TARGET
    return total_variation(emitted_law(rule, target, propose, LENGTH), joint_law(target, LENGTH))


@pytest.mark.parametrize(("rule", "proposal", "shape"), RULES)
def test_the_law_stays_the_targets(rule, proposal, shape):
    doubts = set()
    propose = proposer(proposal, replace(PLANS[shape], min_confidence=0.78), doubts)
    assert deviation(VERIFIERS[rule], propose) < EXACT
    assert doubts == {True, False}


@pytest.mark.parametrize("rule", ["tokenwise", "blockwise"])
def test_a_drawn_token_that_is_dropped_for_its_own_chance_is_noticed(rule):
    """The same loop, its last token withdrawn where q of that very token is below the threshold."""
    propose = proposer(Proposal.SAMPLED, Plan(3), set())

    def dropping(prefix, most, noise):
        draft = propose(prefix, most, noise)
        kept = len(draft.tokens)
        if kept and float(draft.q[-1, draft.tokens[-1]]) < 0.5:
            kept -= 1
        q = draft.q[:kept] if kept else None
        return Draft.chain(draft.tokens[:kept], draft.proposal, q)

    assert deviation(VERIFIERS[rule], dropping) > 0.005


def test_laws_are_recorded_beside_confidences():
    (draft,), _ = rolled(Proposal.SAMPLED, Plan(4, min_confidence=0.3))
    assert draft.confidences == tuple(draft.q.max(dim=-1).values.tolist())
