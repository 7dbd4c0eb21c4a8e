"""The adaptive controller in simulation: never much slower than plain, nearly as fast as the best
fixed depth, steady, and quick to follow a text that changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftproof.control.acceptance import prior_of
from draftproof.control.adaptive import AdaptiveControl
from draftproof.core import Plan
from draftproof.theory import expected_tokens
from draftproof.theory.acceptance import Acceptance
from draftproof.theory.decoding import simulate_decoding
from draftproof.theory.machine import CostCurves
from tests.control.machines import MACHINES, STEP, machine

RATES = (0.0, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95, 1.0)
DEEPEST = 32


def controller(curves, prior=0.7, nodes=64):
    return lambda: AdaptiveControl(lambda _batch_size: curves, prior, nodes)


def decode(curves, acceptance, prior=0.7, seeds=1, **others):
    """(speed-up, switches a thousand tokens) over all seeds."""
    runs = [
        simulate_decoding(controller(curves, prior), acceptance, curves, seed=seed, **others)
        for seed in range(seeds)
    ]
    speedup = sum(run.plain_seconds for run in runs) / sum(run.seconds for run in runs)
    return speedup, 1000 * sum(run.switches for run in runs) / sum(run.tokens for run in runs)


def best_fixed(curves, rate):
    """The speed-up of the best depth, 0 included, by the formula."""
    plain = curves.round_seconds(0, 1, 1, 0)
    return max(
        expected_tokens(rate, depth) * plain / curves.round_seconds(depth, 1, 1 + depth, 0)
        for depth in range(DEEPEST + 1)
    )


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", MACHINES)
def test_long_texts_lose_little_against_plain_and_against_the_best_depth(name, rate):
    curves = MACHINES[name]
    speedup, switches = decode(curves, Acceptance((rate,)), num_tokens=4000)
    assert speedup >= 0.97
    assert speedup >= 0.95 * best_fixed(curves, rate)
    assert switches <= 15


@pytest.mark.parametrize("prior", [0.4, 0.9])
@pytest.mark.parametrize("name", MACHINES)
def test_a_drafter_that_is_never_right_costs_little_of_a_short_text(name, prior):
    speedup, _ = decode(MACHINES[name], Acceptance((0.0,)), prior, num_tokens=64)
    assert speedup >= 0.97


@pytest.mark.parametrize("rate", [0.6, 0.8, 0.9, 0.95])
def test_a_good_drafter_is_used_from_the_start_of_a_short_text(rate):
    curves, acceptance = MACHINES["int8 on a CPU"], Acceptance((rate,))
    speedup, _ = decode(curves, acceptance, prior=0.9, seeds=40, num_tokens=64)

    def fixed(depth):
        runs = [
            simulate_decoding(Plan(depth), acceptance, curves, seed=seed, num_tokens=64)
            for seed in range(40)
        ]
        return sum(run.plain_seconds for run in runs) / sum(run.seconds for run in runs)

    assert speedup >= 0.93 * max(fixed(depth) for depth in range(9))


class Adversary:
    """Right until the controller trusts it, then wrong until it does not: the worst of drafters."""

    def __init__(self):
        self._good = 0

    def __call__(self, _done):
        self._good = (self._good + 1) % 12
        return Acceptance((1.0 if self._good < 5 else 0.0,))


@pytest.mark.parametrize("name", MACHINES)
def test_no_drafter_however_fickle_makes_a_text_slower_than_the_account_allows(name):
    curves = MACHINES[name]
    run = simulate_decoding(controller(curves), Adversary(), curves, num_tokens=1000)
    assert run.speedup >= 0.97


@pytest.mark.parametrize("name", ["lookup", "int8 on a CPU", "dear columns"])
@pytest.mark.parametrize(("before", "after"), [(0.0, 0.95), (0.95, 0.0), (0.3, 0.8)])
def test_a_change_of_the_text_is_followed(name, before, after):
    curves = MACHINES[name]

    def acceptance(done):
        return Acceptance((before if done < 2000 else after,))

    run = simulate_decoding(controller(curves), acceptance, curves, num_tokens=4000)
    best = 4000 / (2000 / best_fixed(curves, before) + 2000 / best_fixed(curves, after))
    assert run.speedup >= 0.92 * best


def test_rates_that_fall_with_the_position_are_told_apart():
    curves = machine(0.05, 0.02)
    rates = (0.95, 0.9, 0.3, 0.1)
    run = simulate_decoding(controller(curves), Acceptance(rates), curves, num_tokens=3000)
    usual = max(run.depths, key=run.depths.get)
    assert usual in (2, 3)


def test_a_lookup_that_proposes_nothing_costs_nothing_and_teaches_nothing():
    curves = MACHINES["lookup"]
    silent = simulate_decoding(
        controller(curves), Acceptance((0.9,), proposes=0.0), curves, num_tokens=300
    )
    assert silent.speedup == pytest.approx(1.0, abs=1e-9)
    seldom = Acceptance((0.9,), proposes=0.1)
    run = simulate_decoding(controller(curves, 0.4), seldom, curves, num_tokens=3000)
    fixed = max(
        simulate_decoding(Plan(depth), seldom, curves, num_tokens=3000).speedup
        for depth in (2, 4, 8, 12)
    )
    assert run.speedup >= 0.95 * fixed


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_a_machine_that_is_slower_than_measured_is_still_planned_right(rate):
    """Wide passes cost more than was measured, drafting twice as much."""
    measured = machine(0.1, 0.01)
    real = machine(0.2, 0.1)
    run = simulate_decoding(
        controller(measured), Acceptance((rate,)), real, num_tokens=4000, seed=1
    )
    assert run.speedup >= 0.97
    assert run.speedup >= 0.93 * best_fixed(real, rate)


@pytest.mark.parametrize("rate", [0.9, 0.97])
def test_a_drafter_that_was_measured_too_dear_is_found_out(rate):
    """Beside other work passes took twice as long, and a drafted level more than a pass."""
    real = machine(0.34, 0.022)
    busy = CostCurves(
        {n: 2 * seconds for n, seconds in real.verify.items()},
        {1: {1: 2 * 1.2 * STEP, 4: 2 * 4.8 * STEP}},
    )
    short = simulate_decoding(controller(busy, 0.95), Acceptance((rate,)), real, num_tokens=256)
    long = simulate_decoding(controller(busy, 0.95), Acceptance((rate,)), real, num_tokens=2000)
    assert short.speedup > 1.1
    assert long.speedup >= 0.9 * best_fixed(real, rate)


def test_probing_gets_rarer_and_its_price_stays_below_one_percent():
    curves = MACHINES["int8 on a CPU"]
    run = simulate_decoding(controller(curves), Acceptance((0.0,)), curves, num_tokens=4000)
    drafts = sum(count for depth, count in run.depths.items() if depth > 0)
    assert 10 <= drafts <= 60
    assert run.seconds <= 1.01 * run.plain_seconds


def test_trees_are_chosen_where_the_second_choice_is_often_right_and_columns_are_cheap():
    curves = machine(0.3, 0.001)
    wide = {levels: 1.1 * seconds for levels, seconds in curves.draft[1].items()}
    branching = replace(curves, draft={**curves.draft, 4: wide})
    acceptance = Acceptance((0.5,), ranks=(0.6, 0.4, 0.3))
    chain = simulate_decoding(controller(curves), acceptance, curves, num_tokens=3000)
    tree = simulate_decoding(controller(branching), acceptance, branching, num_tokens=3000)
    assert tree.speedup > 1.15 * chain.speedup


def test_two_controllers_share_nothing():
    curves = MACHINES["int8 on a CPU"]
    make = controller(curves, 0.9)
    bad = simulate_decoding(make, Acceptance((0.0,)), curves, num_tokens=200)
    fresh = simulate_decoding(make, Acceptance((0.9,)), curves, num_tokens=200, seed=5)
    again = simulate_decoding(make, Acceptance((0.9,)), curves, num_tokens=200, seed=5)
    assert bad.depths != fresh.depths == again.depths


def test_no_plan_is_deeper_than_the_text_has_room_for_or_larger_than_allowed():
    curves = MACHINES["lookup"]
    control = controller(curves, 0.95, nodes=5)()
    for room in range(12):
        plan = control.plan(room, 10, 1)
        assert plan.depth <= min(room, 5)
        assert plan.depth == 0 or plan.nodes <= 5


@pytest.mark.parametrize("drafter", ["self-int8", "model:some/where", "ngram", "of your own"])
def test_every_drafter_has_a_prior(drafter):
    assert 0 < prior_of(drafter) < 1
