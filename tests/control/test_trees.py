"""The controller with drafters that branch, in simulation: never much slower than plain decoding,
nearly as fast as the best fixed shape, whatever a column costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftproof.core import Plan
from draftproof.theory.acceptance import Acceptance
from draftproof.theory.decoding import simulate_decoding
from tests.control.machines import MACHINES
from tests.control.test_adaptive import controller

RANKS = (0.4, 0.28, 0.2)
RATES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)
SHAPES = [(depth, width, nodes) for width in (1, 4) for depth, nodes in ((1, 4), (3, 8), (5, 17))]


def branching(name):
    """The machine with a drafter whose levels of four nodes cost a fifth more."""
    curves = MACHINES[name]
    wide = {levels: 1.2 * seconds for levels, seconds in curves.draft[1].items()}
    return replace(curves, draft={**curves.draft, 4: wide})


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("rate", RATES)
def test_trees_are_never_much_slower_than_plain_or_than_the_best_shape(name, rate):
    # A second choice is seldom better than a first one.
    acceptance = Acceptance((rate,), tuple(min(rate, rank) for rank in RANKS))
    curves = branching(name)
    run = simulate_decoding(controller(curves), acceptance, curves, num_tokens=3000)
    assert run.speedup >= 0.97
    assert 1000 * run.switches / run.tokens <= 15
    best = max(
        simulate_decoding(Plan(*shape), acceptance, curves, num_tokens=3000).speedup
        for shape in SHAPES
    )
    assert run.speedup >= 0.93 * best


@pytest.mark.parametrize("nodes", [1, 3, 9])
@pytest.mark.parametrize("room", [0, 1, 2, 5])
def test_no_tree_is_larger_than_allowed_or_deeper_than_there_is_room(nodes, room):
    curves = branching("lookup")
    control = controller(curves, 0.5, nodes)()
    for context_length in range(10, 40):
        plan = control.plan(room, context_length, 1)
        assert plan.depth <= min(room, nodes)
        assert plan.depth == 0 or plan.nodes <= nodes
