"""A hybrid's controller: a look-up is used exactly where it brings more tokens a second."""

from __future__ import annotations

import pytest

from draftproof.control.hybrid import HybridControl
from draftproof.control.joint import plan_together
from draftproof.core import Draft, Proposal, Step
from draftproof.theory.machine import CostCurves, RoundCost
from tests.control.machines import MACHINES, STEP, machine

INT8 = MACHINES["int8 on a CPU"]


def control(curves=INT8, prior=0.95):
    return HybridControl(lambda _batch_size: curves, prior)


def chain(size, promised=None):
    return Draft((*range(size),), (*range(-1, size - 1),), None, Proposal.POINT, promised=promised)


def step(drafted, accepted):
    size = accepted + 1
    origins = ("accepted",) * accepted + ("correction" if drafted else "plain",)
    texts = ("",) * size
    return Step(0, (*range(size),), origins, drafted, drafted, accepted, None, None, texts)


def play(one, curves, draft, accepted):
    """A round with `draft`, of which so much was accepted; returns its seconds."""
    size = len(draft.tokens)
    levels = 0 if draft.promised is not None else size
    cost = RoundCost(
        columns=1 + size,
        levels=levels,
        draft_s=curves.draft_seconds(levels),
        verify_s=curves.verify_seconds(1 + size),
        rest_s=0.0,
        tokens=accepted + 1,
        drafting=int(levels > 0),
    )
    one.observe(draft, step(size, accepted), cost)
    return cost.draft_s + cost.verify_s


def warmed(curves=INT8, rounds=60, accepted=4):
    """A controller whose drafter was right in up to `accepted` tokens, again and again."""
    one = control(curves)
    for _ in range(rounds):
        plan = one.plan(32, 100, 1)
        play(one, curves, chain(plan.depth), min(accepted, plan.depth))
    return one


def uses(plan, size, promised):
    return promised - plan.lookup.floor * size > plan.lookup.bar


@pytest.mark.parametrize("accepted", [0, 2, 4])
def test_a_lookup_is_used_where_it_brings_more_tokens_a_second(accepted):
    one = warmed(accepted=accepted)
    plan = one.plan(32, 100, 1)
    plain = INT8.round_seconds(0, 1, 1, 0)
    assert one.rate == pytest.approx(1 / plain) if accepted == 0 else one.rate > 1.2 / plain
    for size in (2, 4, 8, 16):
        for promised in (0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 6.0, 12.0):
            rate = (1 + promised) / INT8.round_seconds(0, 1, 1 + size, 0)
            if rate > 1.12 * one.rate:
                assert uses(plan, size, promised)
            elif rate < one.rate:
                assert not uses(plan, size, promised)


def test_a_lookup_that_breaks_its_promises_has_to_promise_more_until_that_is_long_ago():
    one = warmed()
    before = one.plan(32, 100, 1).lookup
    for _ in range(5):
        one.plan(32, 100, 1)
        play(one, INT8, chain(4, promised=3.0), 0)
    after = one.plan(32, 100, 1).lookup
    assert after.bar > 4 * before.bar
    assert after.floor > 4 * before.floor
    for _ in range(300):
        plan = one.plan(32, 100, 1)
        play(one, INT8, chain(plan.depth), min(4, plan.depth))
    assert one.plan(32, 100, 1).lookup.bar == pytest.approx(before.bar, rel=0.1)


def test_what_a_lookup_was_right_in_says_nothing_of_the_other_drafter():
    one = warmed()
    before = one.plan(32, 100, 1)
    for accepted in (0, 0, 0, 8, 0, 0):
        one.plan(32, 100, 1)
        play(one, INT8, chain(8, promised=4.0), accepted)
    after = one.plan(32, 100, 1)
    assert (after.depth, after.min_confidence) == (before.depth, before.min_confidence)


def test_a_plain_sequence_still_looks_up():
    one = warmed(accepted=0)
    plans = [one.plan(32, 100, 1) for _ in range(2)]
    assert {plan.depth for plan in plans} == {0}
    assert plans[0].lookup.depth > 0
    assert plans[0].lookup.bar == pytest.approx(0.0)


@pytest.mark.parametrize("name", MACHINES)
def test_a_lookup_that_always_lies_costs_no_more_than_the_account(name):
    curves = MACHINES[name]
    one, seconds, tokens = control(curves), 0.0, 0
    while tokens < 300:
        plan = one.plan(300 - tokens, 100, 1)
        size = min(plan.lookup.depth, plan.lookup.nodes)
        draft = chain(plan.depth)
        if size and uses(plan, size, float(size)):
            draft = chain(size, promised=float(size))
        seconds += play(one, curves, draft, 0)
        tokens += 1
    plain = 300 * STEP
    assert seconds <= plain + (1.4 * 0.95 + 0.01 * 300) * STEP
    assert one.account.balance >= -1e-9


def test_in_a_batch_a_lookup_replaces_the_draft_of_its_row_where_it_promises_more():
    book = {rows: machine(0.1, 0.01 * rows) for rows in (1, 2, 3, 4)}
    many = [HybridControl(book.__getitem__, 0.9) for _ in range(4)]
    plans = plan_together(many, [32] * 4, [10] * 4, padded=False)
    for plan in plans:
        assert plan.lookup.depth > 0
        assert uses(plan, 8, 7.0)
        assert not uses(plan, 1, 0.1)


def test_room_limits_what_is_looked_up():
    one = warmed()
    for room in (0, 1, 3):
        plan = one.plan(room, 100, 1)
        assert plan.lookup.depth == room


def test_costs_without_a_price_of_columns_are_no_trouble():
    free = CostCurves({1: STEP, 33: STEP}, {1: {1: STEP}})
    assert control(free).plan(8, 10, 1).lookup.floor == 0.0
