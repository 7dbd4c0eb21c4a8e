"""Trees that a model drafts: what is drawn, what is kept, and what a plan allows."""

from __future__ import annotations

import random

import pytest
import torch

from draftproof.core import Context, Plan, Proposal
from draftproof.drafters.rollout import roll_out
from draftproof.models.cache import KVCache
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.noise import KeyedNoise
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp
from draftproof.verification.registry import VERIFIERS
from tests.toys import remembered, rows_of

V = 7
LAW = remembered(random_law(V, seed=5, zeros=0.2))
FULL = remembered(random_law(V, seed=6))
TEXT = [1, 4, 2]


def rolled(proposal, plan, temperature=1.0, law=LAW, seed=3):
    model = ToyModel(law, V)
    warp = Warp(SamplingParams(temperature=temperature), prompt_length=1, num_tokens=V)
    context = Context(0, 0, TEXT, warp, KeyedNoise(seed), proposal)
    cache = KVCache(rows=1, capacity=100)
    model.prefill(TEXT[:-1], cache, 0, 8)
    (one,) = roll_out(model, cache, [context], [plan], V)
    assert cache.lengths == [len(TEXT)]
    return one


def text_before(draft, node):
    return (*TEXT, *(draft.tokens[step] for step in draft.path(node)))


def chance(draft, node):
    """Of the path down to `node` under LAW."""
    product = 1.0
    for step in draft.path(node):
        product *= LAW(text_before(draft, draft.parents[step]))[draft.tokens[step]]
    return product


@pytest.mark.parametrize("proposal", Proposal)
@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_exceeded(proposal, seed):
    dice = random.Random(seed)
    plan = Plan(dice.randint(0, 6), dice.randint(1, 5), dice.randint(1, 30), dice.choice([0, 0.1]))
    draft = rolled(proposal, plan).draft
    assert draft.proposal is proposal
    assert draft.depth <= plan.depth
    assert len(draft.tokens) <= plan.nodes
    for node in range(-1, len(draft.tokens)):
        assert len(draft.children(node)) <= plan.width
    if proposal in (Proposal.POINT, Proposal.COUPLED):
        assert all(chance(draft, node) >= plan.floor for node in range(len(draft.tokens)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_fixed_trees_keep_the_likeliest_paths(temperature):
    """Of all that were grown, none outside is likelier than one inside; greedy requests too."""
    wide = rolled(Proposal.POINT, Plan(4, 3, 60), temperature).draft
    cut = rolled(Proposal.POINT, Plan(4, 3, 9), temperature).draft
    assert len(wide.tokens) > len(cut.tokens) == 9
    grown = sorted((chance(wide, node) for node in range(len(wide.tokens))), reverse=True)
    kept = sorted((chance(cut, node) for node in range(9)), reverse=True)
    assert kept == pytest.approx(grown[:9])
    for node in range(-1, 9):
        tokens = [cut.tokens[child] for child in cut.children(node)]
        assert len(set(tokens)) == len(tokens)


@pytest.mark.parametrize("proposal", [Proposal.SAMPLED, Proposal.DISTINCT])
def test_drawn_siblings_are_all_there_in_their_order_with_their_laws(proposal):
    draft = rolled(proposal, Plan(3, 3, 40)).draft
    noise, counted = KeyedNoise(3), 0
    for node in range(-1, len(draft.tokens)):
        left = torch.tensor(LAW(text_before(draft, node)), dtype=torch.float64)
        children = draft.children(node)
        assert not children or len(children) == 3 or proposal is Proposal.DISTINCT
        for child in children:
            q = left / left.sum()
            assert torch.allclose(draft.q[child], q)
            assert noise.draw(draft.q[child], len(TEXT), 1, child) == draft.tokens[child]
            if proposal is Proposal.DISTINCT:
                left[draft.tokens[child]] = 0.0
            counted += 1
    assert counted == len(draft.tokens) > 6


@pytest.mark.parametrize("nodes", range(1, 20))
def test_a_budget_is_shared_out_before_the_draw(nodes):
    """Every level gets its part, whatever was drawn."""
    outlines = set()
    for seed in range(20):
        draft = rolled(Proposal.DISTINCT, Plan(3, 2, nodes), seed=seed, law=FULL).draft
        assert draft.depth == min(3, nodes)
        assert len(draft.tokens) == min(nodes, 2 + 4 + 4)
        levels = [len(draft.path(node)) for node in range(len(draft.tokens))]
        outlines.add(tuple(levels.count(level) for level in (1, 2, 3)))
    (outline,) = outlines
    assert outline[0] == min(2, max(1, nodes - 2))


@pytest.mark.parametrize(
    ("rule", "proposal"),
    [
        ("tree", Proposal.SAMPLED),
        ("tree", Proposal.DISTINCT),
        ("traversal", Proposal.DISTINCT),
        ("coupled", Proposal.COUPLED),
    ],
)
@pytest.mark.parametrize("plan", [Plan(4, 3, 12), Plan(4, 2, 8), Plan(3, 3, 5), Plan(5, 2, 40)])
def test_of_a_drafter_that_is_the_target_every_level_is_kept(rule, proposal, plan):
    """However wide the tree and however unlikely the first of the siblings."""
    for seed in range(15):
        draft = rolled(proposal, plan, seed=seed, law=FULL).draft
        p = rows_of(FULL, draft, tuple(TEXT))
        verdict = VERIFIERS[rule].verify(draft, p, len(TEXT), KeyedNoise(seed))
        assert len(verdict.accepted) == plan.depth


def test_racing_siblings_are_the_first_of_the_targets_own_race():
    draft = rolled(Proposal.COUPLED, Plan(2, 3, 40)).draft
    noise = KeyedNoise(3)
    q = torch.tensor(LAW(tuple(TEXT)), dtype=torch.float64)
    times = noise.exponentials(len(TEXT), q) / q
    first = [draft.tokens[child] for child in draft.children(-1)]
    assert first == times.argsort()[: len(first)].tolist()


@pytest.mark.parametrize("proposal", Proposal)
def test_floor_is_decided_by_what_was_drawn_before(proposal):
    """A chain ends where even the likeliest continuation is below the floor."""
    floor = 0.2
    draft = rolled(proposal, Plan(6, 1, 20, floor)).draft
    free = rolled(proposal, Plan(6, 1, 20)).draft
    assert draft.tokens == free.tokens[: len(draft.tokens)]
    product = 1.0
    for i, token in enumerate(draft.tokens):
        law = LAW((*TEXT, *draft.tokens[:i]))
        assert product * max(law) >= floor
        product *= law[token]
    assert len(draft.tokens) < len(free.tokens)


def test_columns_say_where_the_keys_and_values_lie():
    one = rolled(Proposal.POINT, Plan(3, 2, 40))
    fed = [column for column in one.columns if column is not None]
    assert sorted(fed) == fed
    assert len(set(fed)) == len(fed)
    deepest = [node for node, _ in enumerate(one.columns) if len(one.draft.path(node)) == 3]
    assert deepest
    assert all(one.columns[node] is None for node in deepest)
