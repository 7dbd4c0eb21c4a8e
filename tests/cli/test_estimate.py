"""`draftproof estimate`: the numbers of the theory, as a table or as JSON."""

from __future__ import annotations

import json

import pytest

from draftproof.theory import best_depth, break_even_acceptance, expected_speedup

PAIR = ("--acceptance-rate", "0.8", "--cost-ratio", "0.05")


def report(call, *arguments):
    result = call("estimate", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def test_the_popular_example(call):
    """Acceptance 0.8, depth 5, r = 20: 2.95."""
    assert report(call, *PAIR, "--depth", "5")["speedup"] == pytest.approx(2.95, abs=0.005)


def test_the_best_depth_is_taken_where_none_is_given(call):
    found, best = report(call, *PAIR), best_depth(0.8, 0.05)
    assert (found["depth"], found["best_depth"]) == (best.depth, best.depth)
    assert found["speedup"] == found["best_speedup"] == pytest.approx(best.speedup)


def test_measured_verification_costs_count(call):
    costs = {5: 1.4, 9: 2.2}
    options = [part for n, cost in costs.items() for part in ("--verify-cost", f"{n}={cost}")]
    found = report(call, *PAIR, "--depth", "6", *options)
    assert found["speedup"] == pytest.approx(expected_speedup(0.8, 6, 0.05, costs))
    assert found["break_even_acceptance"] == pytest.approx(break_even_acceptance(6, 0.05, costs))
    assert found["speedup"] < report(call, *PAIR, "--depth", "6")["speedup"]


def test_the_simulation_agrees_with_the_formula(call):
    found = report(call, *PAIR, "--depth", "4", "--simulate")
    run = found["simulated"]
    assert abs(run["speedup"] - found["speedup"]) < 6 * run["standard_error"]
    assert run["standard_error"] < 0.1


def test_the_table_says_what_to_do(call):
    result = call("estimate", *PAIR)
    assert result.code == 0
    assert "best depth 8: 3.09x" in result.out
    assert "\x1b" not in result.out
    assert "no depth pays" in call("estimate", "--acceptance-rate", "0.2", "--cost-ratio", "1").out
    never = call("estimate", "--acceptance-rate", "1", "--cost-ratio", "2", "--depth", "3").out
    assert "does not pay even if every draft is accepted" in never


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (("--acceptance-rate", "2", "--cost-ratio", "0.1"), "acceptance_rate is 2.0"),
        (("--acceptance-rate", "0.5", "--cost-ratio", "-1"), "cost_ratio is -1.0"),
        (("--acceptance-rate", "0.5"), "--cost-ratio"),
        ((*PAIR, "--depth", "-1"), "depth is -1"),
        ((*PAIR, "--verify-cost", "5"), "--verify-cost is '5'; give ROWS=COST"),
        ((*PAIR, "--verify-cost", "1=2"), "verify_cost of 1 row is 2"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(call, line, named):
    result = call("estimate", *line)
    assert (result.code, result.out) == (2, "")
    assert named in result.err
    assert result.err.count("\n") == 1
