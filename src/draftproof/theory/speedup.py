"""The expected speed-up of speculative decoding in closed form; measures and simulates nothing.

With k tokens drafted per round and A_i the probability that position i is accepted given that
position i - 1 was, a round emits in the mean

    E[tokens] = 1 + sum_{j=1..k} prod_{i<=j} A_i  =  (1 - a^(k+1)) / (1 - a)   if every A_i is a,

and takes k*c + v(k+1), in units of one pass of the target over one row. Plain decoding emits one
token per unit, so S = E[tokens] / (k*c + v(k+1)). Leviathan et al. 2023 (arXiv 2211.17192) set
v = 1; here v may be measured. The popular form 1 + k/r in the denominator has r = 1/c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from draftproof.config import MAX_DEPTH
from draftproof.theory.cost import VerifyCost, cost_curve
from draftproof.theory.ranges import (
    check_cost_ratio,
    check_depth,
    check_rates,
    is_number,
    rates_by_position,
)

_TIE_TOLERANCE = 1e-12
"""Relative gain below which two depths tie: rounding must not choose the deeper one."""


@dataclass(frozen=True, slots=True)
class BestDepth:
    """The depth that decodes fastest, and how fast."""

    depth: int
    """Tokens to draft per round; 0 is plain decoding."""
    speedup: float
    """Expected time of plain decoding over that of decoding at `depth`; 1 at depth 0."""


def expected_tokens(acceptance_rate: float | Sequence[float], depth: int) -> float:
    """Return the mean number of tokens one round emits, 1 to `depth` + 1.

    `acceptance_rate` is one probability for every drafted position, or a sequence of A_i, of
    which the first `depth` are used. One rate gives (1 - a^(k+1)) / (1 - a), summed term by
    term and so exact up to rounding at and near a = 1 (Leviathan et al. 2023, arXiv 2211.17192,
    eq. 1).

    Raises `InvalidSetting` for a rate outside 0 to 1, NaN, a negative depth, or fewer rates
    than `depth`.
    """
    *_, tokens = _tokens_by_depth(check_rates(acceptance_rate, check_depth(depth)))
    return tokens


def expected_speedup(
    acceptance_rate: float | Sequence[float],
    depth: int,
    cost_ratio: float,
    verify_cost: VerifyCost | None = None,
) -> float:
    """Return the expected time of plain decoding over that of decoding with `depth` drafts.

    `cost_ratio` is T_draft/T_target, the time of one drafter step over that of one target step.
    `verify_cost` is the time of one target pass over n rows relative to one row: `None` for
    free verification, a function of n, or measured points n -> cost, interpolated. Depth 0 is
    plain decoding and gives exactly 1. Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.8,
    is the case of free verification.

    Raises `InvalidSetting` for a setting out of range or NaN, fewer rates than `depth`, or
    costs that are not relative to one row.
    """
    tokens = expected_tokens(acceptance_rate, depth)
    return tokens / round_cost(depth, cost_ratio, verify_cost)


def best_depth(
    acceptance_rate: float | Sequence[float],
    cost_ratio: float,
    verify_cost: VerifyCost | None = None,
    max_depth: int = MAX_DEPTH,
) -> BestDepth:
    """Return the depth of the largest `expected_speedup`, 0 (plain decoding) if none pays.

    Every depth from 0 to `max_depth` is tried, for a measured cost may have several maxima; a
    sequence of rates is tried up to its length. Of equal depths the smaller one wins. With free
    verification a depth above 0 pays if and only if a > c (Leviathan et al. 2023,
    arXiv 2211.17192, Corollary 3.9).

    Raises `InvalidSetting` as `expected_speedup` does.
    """
    deepest = check_depth(max_depth, "max_depth")
    if not is_number(acceptance_rate):
        acceptance_rate = rates_by_position(acceptance_rate)
        deepest = min(deepest, len(acceptance_rate))
    rates = check_rates(acceptance_rate, deepest)
    ratio = check_cost_ratio(cost_ratio)
    verify = cost_curve(verify_cost)

    best = BestDepth(depth=0, speedup=1.0)
    for depth, tokens in enumerate(_tokens_by_depth(rates)):
        speedup = tokens / (depth * ratio + verify(depth + 1))
        if speedup > best.speedup * (1 + _TIE_TOLERANCE):
            best = BestDepth(depth, speedup)
    return best


def break_even_acceptance(
    depth: int, cost_ratio: float, verify_cost: VerifyCost | None = None
) -> float | None:
    """Return the smallest acceptance rate at which `depth` drafts are no slower than plain.

    The answer is a probability, the same for every position; `None` if even accepting every
    draft would be slower. With free verification and depth 1 it is `cost_ratio`
    (Leviathan et al. 2023, arXiv 2211.17192, Corollary 3.9).

    Raises `InvalidSetting` as `expected_speedup` does.
    """
    cost = round_cost(depth, cost_ratio, verify_cost)
    if cost <= 1:
        return 0.0
    if cost > expected_tokens(1.0, depth):
        return None
    # E[tokens] rises with a, in floating point too: bisect, keeping E(low) < cost <= E(high).
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if expected_tokens(middle, depth) < cost:
            low = middle
        else:
            high = middle
    return high


def round_cost(depth: int, cost_ratio: float, verify_cost: VerifyCost | None = None) -> float:
    """Return the time of one round, k*c + v(k+1), in units of one plain target step.

    Raises `InvalidSetting` as `expected_speedup` does.
    """
    num_drafts = check_depth(depth)
    verify = cost_curve(verify_cost)
    return num_drafts * check_cost_ratio(cost_ratio) + verify(num_drafts + 1)


def _tokens_by_depth(rates: Iterable[float]) -> Iterator[float]:
    """Yield E[tokens] at depths 0, 1, 2, ...: one more for each rate given."""
    survival = accumulate(rates, mul)
    return accumulate(survival, initial=1.0)
