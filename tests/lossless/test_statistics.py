"""The tests of counts fail as often as they say, and see what they have to see."""

from __future__ import annotations

import builtins
import math
from collections import Counter

import numpy as np
import pytest

from draftproof.checks.exact import total_variation
from draftproof.checks.statistics import goodness_of_fit, tv_threshold
from draftproof.errors import InvalidSetting, MissingExtra

LAW = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}


def sample(law, number, seed):
    rng = np.random.default_rng(seed)
    return Counter(
        dict(zip(law, rng.multinomial(number, list(law.values())).tolist(), strict=True))
    )


def test_statistic_and_p_value_of_a_worked_example():
    """G = 2 (60 ln 60/50 + 40 ln 40/50); with one degree of freedom p = erfc(sqrt(G / 2))."""
    fit = goodness_of_fit({"a": 60, "b": 40}, {"a": 0.5, "b": 0.5}, 0.05)
    g = 2 * (60 * math.log(1.2) + 40 * math.log(0.8))
    assert fit.statistic == pytest.approx(g)
    assert fit.p_value == pytest.approx(math.erfc(math.sqrt(g / 2)))
    assert fit.threshold == pytest.approx(3.841459, abs=1e-6)
    assert (fit.passed, fit.num_samples, fit.error_rate) == (False, 100, 0.05)


def test_counts_that_follow_the_law_fail_about_as_often_as_stated():
    failed = sum(
        not goodness_of_fit(sample(LAW, 500, seed), LAW, 0.05).passed for seed in range(2000)
    )
    assert 60 <= failed <= 145  # 100 expected, four and a half standard deviations


@pytest.mark.parametrize("size", [50, 200])
def test_rare_cells_are_pooled_and_the_error_rate_holds(size):
    law = dict.fromkeys(range(size), 0.1 / size) | {"most": 0.9}
    failed = sum(
        not goodness_of_fit(sample(law, 300, seed), law, 0.05).passed for seed in range(500)
    )
    assert failed <= 47  # 25 expected
    biased = sample(law, 300, 0) + Counter({0: 30})
    assert not goodness_of_fit(biased, law, 0.05).passed


def test_small_bias_is_seen_with_enough_samples():
    biased = {"a": 0.46, "b": 0.34, "c": 0.15, "d": 0.05}
    assert not goodness_of_fit(sample(biased, 20_000, 1), LAW, 1e-6).passed
    assert goodness_of_fit(sample(LAW, 20_000, 1), LAW, 1e-6).passed


@pytest.mark.parametrize("law", [LAW, {**LAW, "e": 0.0}, {"a": 1.0}])
def test_one_impossible_outcome_fails_at_once(law):
    counts = sample(law, 10_000, 3)
    assert goodness_of_fit(counts, law, 1e-6).passed
    fit = goodness_of_fit(counts + Counter(e=1), law, 1e-6)
    assert not fit.passed
    assert (fit.statistic, fit.p_value) == (math.inf, 0.0)


def test_law_with_one_outcome_fits_trivially():
    fit = goodness_of_fit({"a": 7}, {"a": 1.0}, 1e-6)
    assert (fit.passed, fit.p_value) == (True, 1.0)


@pytest.mark.parametrize(
    ("counts", "law", "error_rate", "words"),
    [
        ({}, LAW, 0.1, "needs samples"),
        ({"a": 1}, {"a": 0.5}, 0.1, "sum to 1"),
        ({"a": 1}, LAW, 0.0, "error_rate"),
        ({"a": 1}, LAW, 1.0, "error_rate"),
    ],
)
def test_question_without_an_answer_is_refused(counts, law, error_rate, words):
    with pytest.raises(InvalidSetting, match=words):
        goodness_of_fit(counts, law, error_rate)


def test_distance_threshold_is_kept_and_shrinks_with_samples():
    for number in (200, 5000):
        limit = tv_threshold(len(LAW), number, 1e-3)
        for seed in range(200):
            counts = sample(LAW, number, seed)
            assert total_variation({k: n / number for k, n in counts.items()}, LAW) <= limit
    assert tv_threshold(4, 5000, 1e-3) < tv_threshold(4, 200, 1e-3) / 4
    assert tv_threshold(4, 100, 0.5) == pytest.approx(0.1 + math.sqrt(math.log(2) / 200))


def test_missing_scipy_says_which_extra_brings_it(monkeypatch):
    real = builtins.__import__

    def without_scipy(name, *args, **kwargs):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    with pytest.raises(MissingExtra, match=r"scipy.*draftproof\[proof\]"):
        goodness_of_fit({"a": 50, "b": 50}, {"a": 0.5, "b": 0.5}, 0.1)
