"""Tests of counts against a known law with a stated error rate; they know no model and no rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from draftproof.errors import InvalidSetting, MissingExtra

T = TypeVar("T")

MIN_EXPECTED = 5.0
"""Cells that expect fewer counts are pooled; below, the chi-square law of G does not hold."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How well counts fit a law."""

    statistic: float
    """G = 2 sum observed ln(observed / expected); infinite when something impossible came up."""
    threshold: float
    """A larger statistic fails."""
    p_value: float
    """Probability of so large a statistic if the counts do follow the law."""
    error_rate: float
    """Probability with which counts that follow the law fail."""
    num_samples: int

    @property
    def passed(self) -> bool:
        return self.statistic <= self.threshold


def goodness_of_fit(counts: Mapping[T, int], law: Mapping[T, float], error_rate: float) -> Fit:
    """G-test of `counts` of independent outcomes against `law`, outcome -> probability.

    An outcome to which the law gives no probability fails at once.
    """
    if not 0 < error_rate < 1:
        raise InvalidSetting(f"error_rate is {error_rate!r}; give a number between 0 and 1")
    num_samples = sum(counts.values())
    if num_samples == 0:
        raise InvalidSetting("no outcome was counted; a test needs samples")
    if not math.isclose(math.fsum(law.values()), 1.0, abs_tol=1e-6):
        raise InvalidSetting(f"the law sums to {math.fsum(law.values()):.6g}; it has to sum to 1")
    cells = _pooled(counts, law, num_samples)
    impossible = any(count > 0 and law.get(outcome, 0.0) <= 0 for outcome, count in counts.items())
    if len(cells) == 1 and not impossible:  # a single cell always fits
        return Fit(0.0, 0.0, 1.0, error_rate, num_samples)
    statistic = math.inf if impossible else _g(cells)
    chi2, freedom = _chi2(), max(1, len(cells) - 1)
    return Fit(
        statistic=statistic,
        threshold=float(chi2.isf(error_rate, freedom)),
        p_value=float(chi2.sf(statistic, freedom)),
        error_rate=error_rate,
        num_samples=num_samples,
    )


def tv_threshold(num_cells: int, num_samples: int, error_rate: float) -> float:
    """Total variation between counts and their own law that is passed with `error_rate` at most.

    0.5 sqrt(K / N) bounds the mean over K cells and N samples; McDiarmid's inequality adds
    sqrt(ln(1 / error_rate) / (2 N)).
    """
    mean = 0.5 * math.sqrt(num_cells / num_samples)
    return mean + math.sqrt(math.log(1 / error_rate) / (2 * num_samples))


def _pooled(
    counts: Mapping[T, int], law: Mapping[T, float], num_samples: int
) -> list[tuple[int, float]]:
    """(observed, expected) per cell, those that expect too little as one."""
    cells: list[tuple[int, float]] = []
    rare_seen, rare_expected = 0, 0.0
    for outcome, probability in law.items():
        seen, expected = counts.get(outcome, 0), probability * num_samples
        if expected >= MIN_EXPECTED:
            cells.append((seen, expected))
        else:
            rare_seen, rare_expected = rare_seen + seen, rare_expected + expected
    if not cells:
        return [(rare_seen, rare_expected)]
    if rare_expected < MIN_EXPECTED:  # still too few: they join the smallest cell
        cells.sort(key=lambda cell: cell[1], reverse=True)
        seen, expected = cells.pop()
        rare_seen, rare_expected = rare_seen + seen, rare_expected + expected
    return [*cells, (rare_seen, rare_expected)]


def _g(cells: list[tuple[int, float]]) -> float:
    terms = (seen * math.log(seen / expected) for seen, expected in cells if seen)
    # Rounding may leave a tiny negative number where counts fit exactly.
    return max(0.0, 2 * math.fsum(terms))


def _chi2() -> Any:
    try:
        from scipy.stats import chi2
    except ImportError as error:
        raise MissingExtra("scipy", "proof", "a goodness-of-fit test") from error
    return chi2
