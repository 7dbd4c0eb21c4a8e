"""Cost curves, trees and whole texts in simulation, against the closed form and by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from draftproof.core import Plan
from draftproof.errors import InvalidSetting
from draftproof.theory import (
    Acceptance,
    CostCurves,
    expected_tokens,
    simulate_decoding,
)
from draftproof.theory.trees import best_nodes

CURVES = CostCurves(
    verify={1: 1.0, 5: 1.4, 9: 1.2},
    draft={1: {1: 0.1, 4: 0.4}, 4: {1: 0.2, 4: 0.8}},
    attention={1: 0.001},
    context=100,
    rest=0.05,
)


def test_points_are_joined_and_never_extrapolated_downwards():
    assert CURVES.verify_seconds(3) == pytest.approx(1.2)
    assert CURVES.verify_seconds(9) == CURVES.verify_seconds(90) == 1.2
    assert CURVES.verify_seconds(1, 50) == 1.0
    assert CURVES.verify_seconds(1, 300) == pytest.approx(1.2)
    assert CURVES.draft_seconds(0) == 0
    assert CURVES.draft_seconds(8) == pytest.approx(0.8)
    assert CURVES.draft_seconds(4, 2) == CURVES.draft_seconds(4, 9) == pytest.approx(0.8)
    assert CURVES.round_seconds(4, 1, 5, 100) == pytest.approx(0.4 + 1.4 + 0.05)
    assert (CURVES.widest, CostCurves({1: 1.0}).widest) == (4, 1)


def test_curves_survive_json():
    assert CostCurves.from_dict(CURVES.as_dict()) == CURVES


@pytest.mark.parametrize(
    "fields",
    [
        {"verify": {2: 1.0}},
        {"verify": {1: 0.0}},
        {"verify": {1: 1.0, 3: -1.0}},
        {"verify": {1: 1.0, 0: 1.0}},
        {"verify": {1: 1.0}, "draft": {1: {1: math.nan}}},
    ],
)
def test_what_is_no_cost_is_refused(fields):
    with pytest.raises(InvalidSetting):
        CostCurves(**fields)


def test_a_chain_is_the_tree_of_width_one():
    nodes = list(best_nodes([0.9, 0.5, 0.5], (0.4,), width=1, nodes=9))
    assert [node.parent for node in nodes] == [-1, 0, 1]
    assert [node.chance for node in nodes] == pytest.approx([0.9, 0.45, 0.225])


def test_nodes_come_by_chance_and_parents_before_children():
    nodes = list(best_nodes([0.6] * 4, (0.5, 0.4), width=3, nodes=20))
    assert all(a.chance >= b.chance for a, b in pairwise(nodes))
    assert all(node.parent < i for i, node in enumerate(nodes))
    levels = [nodes[node.parent].level if node.parent >= 0 else 0 for node in nodes]
    assert [node.level for node in nodes] == [1 + level for level in levels]
    second = next(node for node in nodes if node.level == 1 and node.rank == 1)
    assert second.chance == pytest.approx(0.4 * 0.5)
    parents = {node.parent for node in nodes if node.level == 3}
    assert len(parents) <= 3


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_chains_take_what_the_formula_says(rate, depth):
    curves = CostCurves({1: 1.0, 5: 1.4}, {1: {1: 0.1}})
    run = simulate_decoding(Plan(depth), Acceptance((rate,)), curves, num_tokens=20_000)
    seconds = curves.round_seconds(depth, 1, 1 + depth, 0)
    assert run.speedup == pytest.approx(expected_tokens(rate, depth) / seconds, rel=0.03)


def test_trees_take_what_their_chances_add_up_to():
    acceptance = Acceptance((0.5,), ranks=(0.5, 0.3))
    plan = Plan(depth=3, width=3, nodes=12)
    run = simulate_decoding(plan, acceptance, CostCurves({1: 1.0}), num_tokens=20_000)
    expected = 1 + sum(node.chance for node in best_nodes([0.5] * 3, (0.5, 0.3), 3, 12))
    assert run.tokens / run.rounds == pytest.approx(expected, rel=0.03)


def test_a_batch_waits_for_its_widest_draft_and_shrinks():
    run = simulate_decoding(
        Plan(2), Acceptance((0.5,)), CostCurves({1: 1.0}), num_tokens=50, batch_size=4
    )
    assert run.tokens == 200
    assert run.plain_seconds == 50
    assert run.rounds == run.seconds


def test_a_long_context_costs_more():
    short, long = (
        simulate_decoding(Plan(0), Acceptance((0.5,)), CURVES, num_tokens=10, context_length=n)
        for n in (0, 1000)
    )
    assert long.seconds > 1.5 * short.seconds
    assert short.speedup == long.speedup == pytest.approx(1.0)


@pytest.mark.parametrize(
    "fields", [{"rates": ()}, {"rates": (1.2,)}, {"rates": (0.5,), "ranks": (2.0,)}]
)
def test_what_is_no_probability_is_refused(fields):
    with pytest.raises(InvalidSetting):
        Acceptance(**fields)
