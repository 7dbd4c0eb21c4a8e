"""The closed forms of the expected speed-up, against published tables and brute force."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import draftproof.theory as theory
from draftproof.errors import InvalidSetting
from draftproof.theory import (
    best_depth,
    break_even_acceptance,
    expected_speedup,
    expected_tokens,
    round_cost,
)

RATES = st.floats(0, 1)
DEPTHS = st.integers(0, 64)
RATIOS = st.floats(0, 2)
GROWTHS = st.one_of(st.none(), st.floats(0, 1))
"""Extra verification cost of each row after the first; None for free verification."""

# a -> {c: (best depth, speed-up)}, free verification.
GOLDEN = {
    0.5: {0.01: (5, 1.88), 0.05: (3, 1.63), 0.1: (2, 1.46), 0.2: (1, 1.25), 0.4: (1, 1.07)},
    0.6: {0.01: (7, 2.30), 0.05: (4, 1.92), 0.1: (3, 1.67), 0.2: (2, 1.40), 0.4: (1, 1.14)},
    0.7: {0.01: (9, 2.97), 0.05: (6, 2.35), 0.1: (4, 1.98), 0.2: (3, 1.58), 0.4: (2, 1.22)},
    0.8: {0.01: (14, 4.23), 0.05: (8, 3.09), 0.1: (6, 2.47), 0.2: (4, 1.87), 0.4: (2, 1.36)},
    0.9: {0.01: (24, 7.49), 0.05: (13, 4.67), 0.1: (10, 3.43), 0.2: (7, 2.37), 0.4: (4, 1.58)},
}


def linear_cost(growth: float | None):
    return None if growth is None else lambda num_rows: 1 + growth * (num_rows - 1)


@pytest.mark.parametrize(
    ("rate", "ratio", "depth", "speedup"),
    [(a, c, *want) for a, row in GOLDEN.items() for c, want in row.items()],
)
def test_best_depth_matches_the_published_table(rate, ratio, depth, speedup):
    best = best_depth(rate, ratio)
    assert best.depth == depth
    assert best.speedup == pytest.approx(speedup, abs=0.00501)


@pytest.mark.parametrize(("ratio", "depth"), [(0.01, 7), (0.02, 6), (0.05, 4), (0.1, 3)])
def test_best_depth_matches_the_asserts_of_online_speculative_decoding(ratio, depth):
    assert best_depth(0.6, ratio).depth == depth


def test_popular_form_with_target_over_draft_time():
    assert expected_speedup(0.8, 5, 1 / 20) == pytest.approx(2.95, abs=0.005)


@settings(deadline=None)
@given(RATES, DEPTHS)
def test_expected_tokens_equals_the_exact_closed_form(rate, depth):
    a = Fraction(rate)
    exact = Fraction(depth + 1) if a == 1 else (1 - a ** (depth + 1)) / (1 - a)
    assert expected_tokens(rate, depth) == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.parametrize("gap", [0.0, 2.0**-53, 1e-15, 1e-12, 1e-9])
def test_expected_tokens_is_stable_near_certain_acceptance(gap):
    assert expected_tokens(1 - gap, 64) == pytest.approx(65 - 64 * 65 / 2 * gap, rel=1e-13)


@given(RATES, DEPTHS)
def test_equal_rates_by_position_are_one_rate(rate, depth):
    assert expected_tokens([rate] * depth, depth) == expected_tokens(rate, depth)


def test_rates_by_position_multiply_up_to_the_depth():
    rates = (0.9, 0.5, 0.2)
    assert expected_tokens(rates, 0) == 1
    assert expected_tokens(rates, 2) == pytest.approx(1 + 0.9 + 0.9 * 0.5)
    assert expected_tokens(rates, 3) == pytest.approx(1 + 0.9 + 0.9 * 0.5 + 0.9 * 0.5 * 0.2)


@given(RATES, RATIOS)
def test_one_draft_gives_one_plus_a_over_one_plus_c(rate, ratio):
    assert expected_speedup(rate, 1, ratio) == pytest.approx((1 + rate) / (1 + ratio))


@given(RATES, RATIOS, GROWTHS)
def test_depth_zero_is_plain_decoding(rate, ratio, growth):
    assert expected_speedup(rate, 0, ratio, linear_cost(growth)) == 1.0


@given(RATES, st.floats(0, 1))
def test_free_verification_can_pay_if_and_only_if_a_exceeds_c(rate, ratio):
    best = best_depth(rate, ratio)
    if rate > ratio + 1e-9:
        assert best.depth > 0
        assert best.speedup >= (1 + rate) / (1 + ratio) * (1 - 1e-11)
    elif rate <= ratio:
        assert (best.depth, best.speedup) == (0, 1.0)


@given(RATES, RATES, DEPTHS, RATIOS, GROWTHS)
def test_speedup_never_falls_as_acceptance_rises(one, other, depth, ratio, growth):
    low, high = sorted((one, other))
    verify = linear_cost(growth)
    slow = expected_speedup(low, depth, ratio, verify)
    assert slow <= expected_speedup(high, depth, ratio, verify)


def test_speedup_rises_strictly_with_acceptance():
    speedups = [expected_speedup(i / 20, 4, 0.1) for i in range(21)]
    assert all(a < b for a, b in pairwise(speedups))


@settings(deadline=None)
@given(RATES, RATIOS, GROWTHS, st.integers(0, 40))
def test_best_depth_is_the_argmax(rate, ratio, growth, max_depth):
    verify = linear_cost(growth)
    speedups = [expected_speedup(rate, k, ratio, verify) for k in range(max_depth + 1)]
    best = best_depth(rate, ratio, verify, max_depth)
    assert best.speedup == speedups[best.depth]
    assert best.speedup >= max(speedups) * (1 - 1e-11)
    assert all(s < best.speedup for s in speedups[: best.depth])


def test_best_depth_finds_a_second_maximum_of_a_stepped_cost():
    def by_eight(num_rows):
        return 1.0 if num_rows == 1 else (2.2, 3.0, 9.0)[(num_rows - 1) // 8]

    speedups = [expected_speedup(0.97, depth, 0.01, by_eight) for depth in range(24)]
    assert speedups[7] > speedups[8]
    assert best_depth(0.97, 0.01, by_eight, max_depth=23).depth == 15


def test_ties_go_to_the_smaller_depth():
    assert expected_speedup(0.5, 1, 0.2) == pytest.approx(expected_speedup(0.5, 2, 0.2), rel=1e-15)
    assert best_depth(0.5, 0.2).depth == 1
    assert best_depth(1.0, 1.0).depth == 0
    assert best_depth(0.0, 0.0).depth == 0


def test_rounding_does_not_break_a_tie():
    # (1 + a)/(1 + c) = (1 + a + a^2)/(1 + 2c) for this c, yet the second rounds higher.
    rate = 0.08
    ratio = rate * rate / (1 + rate - rate * rate)
    assert expected_speedup(rate, 1, ratio) < expected_speedup(rate, 2, ratio)
    assert best_depth(rate, ratio).depth == 1


def test_best_depth_stops_at_the_last_known_position():
    assert best_depth((1.0, 1.0, 1.0), 0.01).depth == 3
    assert best_depth((), 0.01).depth == 0
    assert best_depth((1.0, 1.0, 1.0), 0.01, max_depth=2).depth == 2


def test_best_depth_leaves_out_positions_that_fade():
    assert best_depth((0.9, 0.8, 0.05, 0.9), 0.1).depth == 2


def test_measured_cost_makes_speculation_not_pay():
    assert best_depth(0.5, 0.05).depth == 3
    for measured in ({1: 1, 5: 3}, [(5, 3), (1, 1)], {5: 3}, linear_cost(0.5)):
        best = best_depth(0.5, 0.05, measured)
        assert (best.depth, best.speedup) == (0, 1.0)
        assert expected_speedup(0.5, 3, 0.05, measured) == pytest.approx(1.875 / (0.15 + 2.5))


@pytest.mark.parametrize(
    ("num_rows", "cost"),
    [(1, 1.0), (2, 1.2), (3, 1.4), (4, 1.4), (5, 1.4), (6, 1.8), (7, 2.2), (9, 3.0), (17, 6.2)],
)
def test_measured_points_are_joined_and_extended_by_lines(num_rows, cost):
    measured = {7: 2.2, 1: 1, 3: 1.4, 5: 1.4}
    assert round_cost(num_rows - 1, 0.0, measured) == pytest.approx(cost)


def test_measured_cost_of_one_row_is_exactly_one():
    assert round_cost(0, 0.3, {1: 1.0000001, 7: 1.3, 9: 1.7}) == 1.0
    assert expected_speedup(0.7, 0, 0.3, {7: 1.3, 9: 1.7}) == 1.0


def test_cost_may_fall_between_measurements_but_not_beyond_them():
    assert round_cost(4, 0.0, {1: 1, 4: 1.5, 6: 1.3}) == pytest.approx(1.4)
    assert round_cost(63, 0.0, {1: 1, 4: 1.5, 5: 1.4}) == pytest.approx(1.4)


@settings(deadline=None)
@given(DEPTHS, RATIOS, GROWTHS)
def test_break_even_is_the_smallest_rate_that_does_not_lose(depth, ratio, growth):
    verify = linear_cost(growth)
    rate = break_even_acceptance(depth, ratio, verify)
    if rate is None:
        assert expected_speedup(1.0, depth, ratio, verify) < 1
        return
    assert expected_speedup(rate, depth, ratio, verify) >= 1
    if rate > 0:
        assert expected_speedup(math.nextafter(rate, 0), depth, ratio, verify) < 1


def test_break_even_of_known_cases():
    assert break_even_acceptance(1, 0.25) == pytest.approx(0.25)
    assert break_even_acceptance(0, 0.25) == 0.0
    assert break_even_acceptance(3, 0.0) == 0.0
    assert break_even_acceptance(4, 1.0) == 1.0
    assert break_even_acceptance(4, 1.01) is None
    # One draft at a measured cost: (1 + a) T_ar = T_d + T_v(2).
    assert break_even_acceptance(1, 0.2, {2: 1.5}) == pytest.approx(0.7)


BAD_CALLS = {
    "rate above 1": (lambda: expected_tokens(1.1, 2), "acceptance_rate is 1.1; .* 0 to 1"),
    "rate below 0": (lambda: expected_tokens(-0.1, 2), "acceptance_rate is -0.1"),
    "rate NaN": (lambda: expected_tokens(math.nan, 2), "acceptance_rate is nan"),
    "rate bool": (lambda: expected_tokens(True, 2), "acceptance_rate is True"),
    "rate text": (lambda: expected_tokens("0.8", 2), "acceptance_rate is '0.8'"),
    "rate absent": (lambda: best_depth(None, 0.1), "acceptance_rate is None"),
    "one of rates NaN": (lambda: best_depth([0.5, math.nan], 0.1), r"acceptance_rate\[1\] is nan"),
    "too few rates": (lambda: expected_tokens([0.5], 2), "1 positions for depth 2"),
    "depth negative": (lambda: expected_tokens(0.5, -1), "depth is -1; .* from 0"),
    "depth fraction": (lambda: expected_tokens(0.5, 2.5), "depth is 2.5, not a whole number"),
    "depth NaN": (lambda: expected_tokens(0.5, math.nan), "depth is nan"),
    "depth bool": (lambda: expected_tokens(0.5, True), "depth is True"),
    "depth huge": (lambda: expected_tokens(0.5, 10**12), "depth is 1000000000000"),
    "max_depth negative": (lambda: best_depth(0.5, 0.1, None, -1), "max_depth is -1"),
    "ratio negative": (lambda: expected_speedup(0.5, 2, -0.1), "cost_ratio is -0.1; give the time"),
    "ratio NaN": (lambda: best_depth(0.5, math.nan), "cost_ratio is nan"),
    "ratio infinite": (lambda: break_even_acceptance(2, math.inf), "cost_ratio is inf"),
    "cost NaN": (lambda: best_depth(0.5, 0.1, {1: 1, 5: math.nan}), "5 rows is nan"),
    "cost zero": (lambda: best_depth(0.5, 0.1, {1: 1, 5: 0}), "5 rows is 0; give the time"),
    "cost function NaN": (lambda: best_depth(0.5, 0.1, lambda _: math.nan), "1 rows is nan"),
    "cost function negative": (
        lambda: best_depth(0.5, 0.1, lambda num_rows: 3.0 - 2 * num_rows),
        "2 rows is -1.0",
    ),
    "cost in seconds": (lambda: best_depth(0.5, 0.1, {1: 0.02, 5: 0.03}), "divide every cost"),
    "function in seconds": (lambda: best_depth(0.5, 0.1, lambda _: 0.02), "divide every cost"),
    "cost of no rows": (lambda: best_depth(0.5, 0.1, {0: 1, 5: 2}), "row count .* is 0"),
    "rows twice": (lambda: best_depth(0.5, 0.1, [(5, 2), (5, 3)]), "5 rows twice"),
    "one row only": (lambda: best_depth(0.5, 0.1, {1: 1}), "no point beyond 1 row"),
    "no points": (lambda: best_depth(0.5, 0.1, []), "no point beyond 1 row"),
    "costs without rows": (lambda: best_depth(0.5, 0.1, [1.0, 1.2]), "pairs"),
    "cost a number": (lambda: best_depth(0.5, 0.1, 1.5), "verify_cost is 1.5"),
}


@pytest.mark.parametrize(("call", "message"), list(BAD_CALLS.values()), ids=list(BAD_CALLS))
def test_bad_input_is_refused_with_what_to_do(call, message):
    with pytest.raises(InvalidSetting, match=message) as caught:
        call()
    assert any(verb in str(caught.value) for verb in ("give", "measure", "divide"))


def test_public_names_are_sorted_and_exist():
    assert theory.__all__ == sorted(theory.__all__)
    assert set(theory.__all__) <= set(dir(theory))
    assert all(hasattr(theory, name) for name in theory.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = theory.no_such_name


def test_import_loads_neither_numpy_nor_torch():
    script = (
        "import sys, draftproof.theory as t\n"
        "t.best_depth(0.8, 0.05, {1: 1, 5: 1.4})\n"
        "print(sorted({'numpy', 'torch'} & set(sys.modules)))\n"
        "t.simulate_speedup\n"
        "print(sorted({'numpy', 'torch'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split("\n")[:2] == ["[]", "['numpy']"]
