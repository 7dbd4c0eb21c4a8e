"""Batches planned at once, in simulation: never slower than plain, each row by its own worth."""

from __future__ import annotations

import pytest

from draftproof.control.acceptance import AcceptanceEstimate
from draftproof.control.adaptive import AdaptiveControl
from draftproof.control.fixed import FixedPlan
from draftproof.control.joint import plan_together
from draftproof.core import Plan
from draftproof.theory.acceptance import Acceptance
from draftproof.theory.decoding import simulate_decoding
from draftproof.theory.machine import CostCurves, RoundCost
from tests.control.machines import STEP

HOT, COLD = Acceptance((0.95,)), Acceptance((0.05,))


def curves(rows, draft=0.1, free=8, per_row=0.06):
    """A machine that computes `free` rows in one step's time, and takes longer for each further."""

    def seconds(columns):
        return STEP * (1 + per_row * max(0, rows * columns - free))

    verify = {n: seconds(n) for n in (1, 2, 3, 5, 9, 17)}
    level = STEP * draft * (1 + 0.02 * rows)
    return CostCurves(verify, {1: {1: level, 4: 4 * level}})


def run(batch, acceptance, together=plan_together, padded=False, tokens=600, prior=0.7, **machine):
    book = {rows: curves(rows, **machine) for rows in range(1, batch + 1)}
    return simulate_decoding(
        lambda: AdaptiveControl(book.__getitem__, prior),
        acceptance,
        book[batch],
        num_tokens=tokens,
        batch_size=batch,
        together=together,
        padded=padded,
    )


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("batch", [2, 4, 8, 16])
def test_a_batch_is_never_much_slower_than_plain(batch, rate, padded):
    assert run(batch, Acceptance((rate,)), padded=padded).speedup >= 0.97


def test_a_growing_batch_drafts_less():
    gains, drafted = [], []
    for batch in (2, 4, 8, 16, 32):
        done = run(batch, Acceptance((0.85,)))
        gains.append(done.speedup)
        rounds = sum(done.depths.values())
        drafted.append(sum(depth * count for depth, count in done.depths.items()) / rounds)
    assert gains[0] > 1.5
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[-1] < 0.2 * drafted[0]


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_equal_rows_come_near_the_best_depth_of_all(batch):
    acceptance = Acceptance((0.8,))
    fixed = max(
        simulate_decoding(
            Plan(depth), acceptance, curves(batch), num_tokens=600, batch_size=batch, padded=False
        ).speedup
        for depth in range(9)
    )
    assert run(batch, acceptance).speedup >= 0.95 * fixed


def test_rows_whose_drafts_fail_leave_their_place_to_others():
    mixed = [HOT, HOT, COLD, COLD, COLD, COLD]
    together = run(6, mixed, draft=0.02)
    apart = run(6, mixed, together=None, draft=0.02)
    assert together.seconds < apart.seconds
    # The cold rows last as long as they would have done alone, but for what they wait for others.
    assert together.speedup >= 0.85


def test_rows_that_turn_good_are_found_out():
    """Rows that fail for long, then draft well: they come back."""

    def changing(done):
        return HOT if done > 300 else COLD

    late = run(4, [changing] * 4, tokens=1500)
    assert late.speedup > 1.25
    assert run(4, COLD, tokens=300).speedup >= 0.97


def test_a_wish_for_a_fixed_depth_is_kept_beside_adaptive_rows():
    book = {rows: curves(rows) for rows in (1, 2)}
    controllers = [FixedPlan(5), AdaptiveControl(book.__getitem__, 0.7)]
    plans = plan_together(controllers, [64, 3], [10, 10], padded=False)
    assert plans[0] == Plan(5)
    assert 0 < plans[1].depth <= 3


def test_rows_beside_plain_ones_draft_as_in_a_batch_of_that_size():
    """Somebody who wants no drafts does not make the others plan as if each were alone."""
    book = {rows: curves(rows, per_row=0.05) for rows in range(1, 17)}
    many = [AdaptiveControl(book.__getitem__, 0.85) for _ in range(8)]
    alone = plan_together(many, [64] * 8, [10] * 8, padded=False)
    mixed = [AdaptiveControl(book.__getitem__, 0.85) for _ in range(8)]
    plans = plan_together([*mixed, *[FixedPlan(0)] * 8], [64] * 16, [10] * 16, padded=False)
    assert plans[8:] == [Plan(0)] * 8
    assert sum(plan.depth for plan in plans) < sum(plan.depth for plan in alone)


@pytest.mark.parametrize("padded", [False, True])
def test_each_row_is_priced_by_its_own_drafter(padded):
    """Padding pays for columns, not for another drafter's levels."""
    free = {rows: curves(rows, draft=0.001, free=99) for rows in (1, 2, 3, 4)}
    dear = {rows: curves(rows, draft=0.9, free=99) for rows in (1, 2, 3, 4)}
    for first, second in ((free, dear), (dear, free)):
        many = [AdaptiveControl(book.__getitem__, 0.9) for book in (first, first, second, second)]
        depths = [plan.depth for plan in plan_together(many, [64] * 4, [10] * 4, padded)]
        cheap, costly = (depths[:2], depths[2:]) if first is free else (depths[2:], depths[:2])
        assert min(cheap) >= 2
        assert max(costly) == 0


def test_a_round_of_many_drafters_teaches_none_of_them_what_it_costs():
    free = {rows: curves(rows, draft=0.001, free=99) for rows in (1, 2)}
    dear = {rows: curves(rows, draft=0.5, free=99) for rows in (1, 2)}
    cheap, costly = (AdaptiveControl(book.__getitem__, 0.9) for book in (free, dear))
    before = cheap.forecast
    for _ in range(20):
        plan_together([cheap, costly], [64, 64], [10, 10], padded=False)
        took = RoundCost(3.0, 2, dear[2].draft_seconds(2), STEP, 0.0, 2.0, 2)
        cheap.forecast.observe(took, 1)
        costly.forecast.observe(took, 1)
    assert before.draft_seconds(2, 1) == pytest.approx(free[2].draft_seconds(2))
    assert costly.forecast.draft_seconds(2, 1) == pytest.approx(dear[2].draft_seconds(2))


def test_who_plans_apart_does_not_notice_how_the_others_fare():
    book = {rows: curves(rows, draft=0.05) for rows in (1, 2, 3)}

    def depths(others):
        controllers = [AdaptiveControl(book.__getitem__, 0.7) for _ in range(3)]
        for one in controllers[:2]:
            one._acceptance = AcceptanceEstimate(others)
        plans = plan_together(controllers, [9] * 3, [10] * 3, False, apart=[2])
        return [plan.depth for plan in plans]

    good, bad = depths(0.99), depths(0.05)
    assert good[:2] != bad[:2]
    assert good[2] == bad[2] > 0


def test_no_room_is_no_draft():
    book = {rows: curves(rows) for rows in (1, 2)}
    controllers = [AdaptiveControl(book.__getitem__, 0.9) for _ in range(2)]
    plans = plan_together(controllers, [0, 2], [10, 10], padded=True)
    assert [plan.depth for plan in plans] == [0, 2]
