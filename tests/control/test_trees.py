"""The controller with drafters that branch, in simulation: never much slower than plain decoding,
nearly as fast as the best fixed shape, whatever a column costs."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from draftproof.core import Draft, Plan, Proposal, Step
from draftproof.theory.acceptance import Acceptance
from draftproof.theory.decoding import simulate_decoding
from draftproof.theory.machine import RoundCost
from tests.control.machines import MACHINES, machine
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


def play(control, rounds, branch, rng):
    """Plans of so many rounds of a drafter whose first choice is right in half of all cases, and
    whose second one, if it has any, always is where the first is not; and the widths planned."""
    widths = Counter()
    for _ in range(rounds):
        plan = control.plan(16, 50, 1)
        widths[plan.width] += plan.depth > 0
        right = rng.random() < 0.5
        if plan.depth == 0:
            draft, accepted = Draft.chain((), Proposal.POINT), 0
        elif branch and plan.width > 1:
            draft, accepted = Draft((1, 2), (-1, -1), None, Proposal.POINT), 1
        else:
            draft, accepted = Draft.chain((1,), Proposal.POINT), int(right)
        path = ((1 if right or draft.is_chain else 2),) * accepted
        origins = (*["accepted"] * accepted, "correction")
        size = len(draft.tokens)
        step = Step(0, (*path, 9), origins, size, min(1, size), accepted, None, None, ())
        cost = RoundCost(1 + size, min(1, size), 0.0, 0.02, 0.0, len(step.tokens), min(1, size))
        control.observe(draft, step, cost)
    return widths


def test_one_draft_without_branches_is_not_the_end_of_trees_and_many_are():
    """A drafter that has no second choice is asked for chains; once it has, for trees again."""
    dice = random.Random(1)
    curves = machine(0.3, 0.001)
    wide = {levels: 1.5 * seconds for levels, seconds in curves.draft[1].items()}
    curves = replace(curves, draft={**curves.draft, 4: wide})
    control = controller(curves, 0.5)()
    assert play(control, 5, False, dice)[4] > 1, "one chain is no proof"
    play(control, 40, False, dice)
    narrow = play(control, 40, False, dice)
    assert narrow[1] > narrow[4]
    play(control, 200, True, dice)
    wide = play(control, 40, True, dice)
    assert wide[4] > 30
