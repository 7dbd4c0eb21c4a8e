"""The simulation and the closed form check each other."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from draftproof.errors import InvalidSetting
from draftproof.theory import (
    SimulatedSpeedup,
    expected_speedup,
    expected_tokens,
    round_cost,
    simulate_speedup,
)

MAX_ERRORS = 5.0
"""Standard errors allowed: one false alarm in about two million comparisons."""
ROUNDING = 1e-9
MEASURED = {1: 1.0, 4: 1.3, 9: 2.1}
GRID = list(itertools.product((0.0, 0.3, 0.6, 0.9, 1.0), (0, 1, 3, 8), (None, MEASURED)))


@pytest.mark.parametrize(("rate", "depth", "verify"), GRID)
def test_simulation_agrees_with_the_formula(rate, depth, verify):
    seen = simulate_speedup(rate, depth, 0.1, verify, seed=depth)
    allowed = MAX_ERRORS * seen.standard_error + ROUNDING
    assert abs(seen.speedup - expected_speedup(rate, depth, 0.1, verify)) <= allowed
    tokens_allowed = allowed * round_cost(depth, 0.1, verify)
    assert abs(seen.tokens_per_round - expected_tokens(rate, depth)) <= tokens_allowed


def test_simulation_agrees_with_rates_by_position():
    rates = (0.9, 0.5, 0.7, 0.1)
    seen = simulate_speedup(rates, 4, 0.05, MEASURED)
    expected = expected_speedup(rates, 4, 0.05, MEASURED)
    assert abs(seen.speedup - expected) <= MAX_ERRORS * seen.standard_error


@pytest.mark.parametrize(("rate", "depth"), list(itertools.product((0.5, 0.8, 0.9), (1, 3, 5))))
def test_a_formula_with_the_wrong_exponent_is_caught(rate, depth):
    cost = round_cost(depth, 0.1)
    wrong = (1 - rate**depth) / (1 - rate) / cost
    seen = simulate_speedup(rate, depth, 0.1, num_tokens=1_000_000)
    assert rate**depth / cost > 2 * MAX_ERRORS * seen.standard_error  # enough tokens to tell
    assert abs(seen.speedup - wrong) > MAX_ERRORS * seen.standard_error + ROUNDING


def test_standard_error_is_the_spread_over_seeds():
    runs = [simulate_speedup(0.7, 4, 0.1, num_tokens=2_000, seed=seed) for seed in range(400)]
    spread = np.std([run.speedup for run in runs], ddof=1)
    stated = np.mean([run.standard_error for run in runs])
    # The spread of 400 runs is known to 1/sqrt(800) = 3.5%: allow five of these.
    assert stated == pytest.approx(spread, rel=0.18)


def test_standard_error_falls_with_the_square_root_of_the_tokens():
    few = simulate_speedup(0.7, 4, 0.1, num_tokens=10_000)
    many = simulate_speedup(0.7, 4, 0.1, num_tokens=1_000_000)
    assert few.standard_error / many.standard_error == pytest.approx(10, rel=0.1)


def test_rounds_stop_once_the_tokens_are_out():
    seen = simulate_speedup(0.8, 4, 0.1, num_tokens=50_000)
    total = seen.tokens_per_round * seen.num_rounds
    assert 50_000 <= round(total) < 50_000 + 5
    assert simulate_speedup(1.0, 4, 0.1, num_tokens=50_000).num_rounds == 10_000
    assert simulate_speedup(0.0, 4, 0.1, num_tokens=50_000).num_rounds == 50_000


def test_certain_acceptance_is_exact():
    seen = simulate_speedup(1.0, 4, 0.25)
    assert seen.tokens_per_round == 5
    assert seen.speedup == pytest.approx(2.5)
    assert seen.standard_error == pytest.approx(0, abs=ROUNDING)


def test_a_single_token_still_has_a_standard_error():
    seen = simulate_speedup(0.5, 4, 0.1, num_tokens=1)
    assert seen.num_rounds == 2
    assert math.isfinite(seen.standard_error)


def test_equal_seeds_give_equal_results_and_other_seeds_do_not():
    once = simulate_speedup(0.6, 3, 0.1, num_tokens=1_000, seed=7)
    assert once == simulate_speedup(0.6, 3, 0.1, num_tokens=1_000, seed=7)
    assert once != simulate_speedup(0.6, 3, 0.1, num_tokens=1_000, seed=8)


def test_simulation_leaves_the_global_generator_alone():
    before = np.random.get_state()[1].copy()
    simulate_speedup(0.6, 3, 0.1, num_tokens=100)
    assert (np.random.get_state()[1] == before).all()


def test_result_is_a_frozen_record_of_plain_numbers():
    seen = simulate_speedup(0.6, 3, 0.1, num_tokens=100)
    assert isinstance(seen, SimulatedSpeedup)
    assert {type(value) for value in dataclasses.astuple(seen)} == {float, int}
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen.speedup = 2.0


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((1.5, 3, 0.1), {}, "acceptance_rate is 1.5"),
        ((math.nan, 3, 0.1), {}, "acceptance_rate is nan"),
        (([0.5], 3, 0.1), {}, "1 positions for depth 3"),
        ((0.5, -1, 0.1), {}, "depth is -1"),
        ((0.5, 3, math.nan), {}, "cost_ratio is nan"),
        ((0.5, 3, 0.1, {1: 2, 5: 3}), {}, "divide every cost"),
        ((0.5, 3, 0.1), {"num_tokens": 0}, "num_tokens is 0"),
        ((0.5, 3, 0.1), {"num_tokens": 10**12}, "num_tokens is 1000000000000"),
        ((0.5, 3, 0.1), {"num_tokens": 1e5}, "num_tokens is 100000.0, not a whole"),
        ((0.5, 3, 0.1), {"seed": -1}, "seed is -1"),
    ],
)
def test_bad_input_is_refused(arguments, options, message):
    with pytest.raises(InvalidSetting, match=message):
        simulate_speedup(*arguments, **options)
