"""A controller that hears how sure the drafter is, beside the same one that does not, in
simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftproof.control.adaptive import AdaptiveControl
from draftproof.control.confidence import ConfidenceEstimate
from draftproof.core import Draft, Plan, Proposal
from draftproof.errors import InvalidSetting
from draftproof.theory.acceptance import Acceptance
from draftproof.theory.decoding import simulate_decoding
from tests.control.machines import MACHINES

TELLING = {
    "steps": Acceptance(
        (1.0,), confidences=((0.2, 0.2), (0.4, 0.4), (0.6, 0.6), (0.9, 0.9), (0.99, 0.98))
    ),
    "doubt or none": Acceptance((1.0,), confidences=((0.2, 0.1), (0.99, 0.95))),
    "seldom in doubt": Acceptance((1.0,), confidences=((0.3, 0.3), *[(0.99, 0.95)] * 3)),
}
IDLE = ((0.2, 1.0), (0.6, 1.0), (0.99, 1.0))
"""Confidences that say nothing."""
DRAFTERS = [name for name in MACHINES if name != "lookup"]
"""A look-up has no confidence."""


class Deaf:
    """A controller that is not told how sure the drafter was."""

    def __init__(self, control):
        self._control = control
        self.plan = control.plan

    def observe(self, draft, step, cost):
        self._control.observe(replace(draft, confidences=None), step, cost)


def hearing(curves):
    return AdaptiveControl(lambda _batch_size: curves, prior=0.7)


def speedup(curves, acceptance, make=hearing, **others):
    runs = [
        simulate_decoding(
            lambda: make(curves), acceptance, curves, num_tokens=1000, seed=seed, **others
        )
        for seed in range(4)
    ]
    return sum(run.plain_seconds for run in runs) / sum(run.seconds for run in runs)


def deaf(curves):
    return Deaf(hearing(curves))


@pytest.mark.parametrize("acceptance", TELLING)
@pytest.mark.parametrize("name", ["int8 on a CPU", "small drafter on a GPU"])
def test_what_is_heard_is_worth_something(name, acceptance):
    curves = MACHINES[name]
    heard = speedup(curves, TELLING[acceptance])
    assert heard >= 1.015 * speedup(curves, TELLING[acceptance], deaf)


@pytest.mark.parametrize("rate", [0.1, 0.6, 0.9])
@pytest.mark.parametrize("name", DRAFTERS)
def test_what_says_nothing_does_no_harm(name, rate):
    curves, acceptance = MACHINES[name], Acceptance((rate,), confidences=IDLE)
    heard = speedup(curves, acceptance)
    assert heard >= 0.97
    assert heard >= 0.97 * speedup(curves, acceptance, deaf)


@pytest.mark.parametrize("acceptance", TELLING)
@pytest.mark.parametrize("name", DRAFTERS)
def test_never_much_slower_than_plain_or_than_the_best_fixed_plan(name, acceptance):
    curves, law = MACHINES[name], TELLING[acceptance]
    heard = speedup(curves, law)
    assert heard >= 0.97
    plans = [
        Plan(depth, min_confidence=threshold)
        for depth in (1, 3, 8)
        for threshold in (0.0, 0.5, 0.95)
    ]
    best = max(simulate_decoding(plan, law, curves, num_tokens=1000).speedup for plan in plans)
    assert heard >= 0.92 * best


def test_a_text_that_changes_between_sure_and_doubtful_is_followed():
    curves = MACHINES["small drafter on a GPU"]
    sure, doubtful = Acceptance((0.9,), confidences=((0.99, 1.0),)), TELLING["steps"]

    def acceptance(done):
        return sure if done // 25 % 2 else doubtful

    assert speedup(curves, acceptance) >= 1.03 * speedup(curves, acceptance, deaf)


def test_a_batch_saves_a_level_only_where_all_its_sequences_stop():
    curves, law = MACHINES["int8 on a CPU"], TELLING["seldom in doubt"]
    assert speedup(curves, law, batch_size=2) >= 0.97 * speedup(curves, law, deaf, batch_size=2)


def test_fixed_plans_that_stop_take_what_was_drafted_and_no_more():
    """A sure token is always right, a doubtful one never, and drafting ends with it."""
    law = Acceptance((1.0,), confidences=((0.9, 1.0), (0.1, 0.0)))
    curves = MACHINES["dear drafter"]
    plan = Plan(64, min_confidence=0.5)
    run = simulate_decoding(plan, law, curves, num_tokens=10_000)
    assert run.tokens / run.rounds == pytest.approx(2.0, rel=0.03)
    seconds = sum(0.5**n * curves.round_seconds(n, 1, 1 + n, 0) for n in range(1, 50))
    assert run.seconds / run.rounds == pytest.approx(seconds, rel=0.03)


def test_shares_are_those_of_the_bands():
    estimate = ConfidenceEstimate()
    assert estimate.stops(0.5) == []
    for _ in range(1000):
        estimate.see(0.4, hit=False)
        estimate.see(0.4, hit=True)
        estimate.see(0.99, hit=True)
        estimate.see(0.99, hit=True)
    shares = {stop.min_confidence: (stop.goes_on, stop.kept) for stop in estimate.stops(0.5)}
    assert shares[0.3] == pytest.approx((1.0, 1.0), abs=0.01)
    assert shares[0.5] == pytest.approx((0.5, 2 / 3), abs=0.01)
    assert shares[0.95] == pytest.approx((0.5, 2 / 3), abs=0.01)
    estimate.age(0.0)
    for stop in estimate.stops(0.5):
        assert stop.goes_on < stop.kept, "what is usual, until more is known"
    for stop in estimate.stops(1.0):
        assert stop.goes_on == pytest.approx(stop.kept), "doubts that are never right"


def test_what_is_no_confidence_is_refused():
    with pytest.raises(InvalidSetting):
        Acceptance((0.5,), confidences=((1.5, 1.0),))
    with pytest.raises(InvalidSetting):
        Acceptance((0.5,), confidences=((0.5, 2.5),))
    with pytest.raises(AssertionError):
        Draft((1, 2), (-1, 0), None, Proposal.POINT, (0.5,))
