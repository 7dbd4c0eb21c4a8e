"""A Monte Carlo of speculative rounds, to check the closed form; does not know the formula.

Each round drafts k tokens. Drafted token i is accepted with probability A_i until the first
rejection, and one token of the target follows: the process that Leviathan et al. 2023
(arXiv 2211.17192) assume. No model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.theory.cost import VerifyCost
from draftproof.theory.ranges import check_count, check_depth, check_rates
from draftproof.theory.speedup import round_cost

_MAX_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True)
class SimulatedSpeedup:
    """What a simulation saw."""

    tokens_per_round: float
    """Mean number of tokens a round emitted, the target's own included."""
    speedup: float
    """Time plain decoding would take for these tokens, over the simulated time."""
    standard_error: float
    """Standard error of `speedup`; 0, up to rounding, where no draft is left to chance."""
    num_rounds: int
    """Rounds simulated."""


def simulate_speedup(
    acceptance_rate: float | Sequence[float],
    depth: int,
    cost_ratio: float,
    verify_cost: VerifyCost | None = None,
    *,
    num_tokens: int = 100_000,
    seed: int = 0,
) -> SimulatedSpeedup:
    """Simulate rounds until `num_tokens` tokens are out (two rounds at least) and time them.

    The other settings and their units are those of `expected_speedup`; equal seeds give equal
    results. Time is in units of one plain target step. The mean over the rounds estimates
    E[tokens] of Leviathan et al. 2023 (arXiv 2211.17192), eq. 1.

    Raises `InvalidSetting` as `expected_speedup` does, for `num_tokens` outside 1 to ten
    million, and for a negative seed.
    """
    rates = check_rates(acceptance_rate, check_depth(depth))
    cost = round_cost(depth, cost_ratio, verify_cost)
    wanted = check_count("num_tokens", num_tokens, 1, _MAX_TOKENS)
    rng = np.random.default_rng(check_count("seed", seed, 0, 2**63 - 1))

    # Each round emits a token at least, so as many rounds as tokens are surely enough.
    tokens = _emitted_per_round(rates, max(wanted, 2), rng)
    num_rounds = max(2, int(np.searchsorted(np.cumsum(tokens), wanted)) + 1)
    return _summary(tokens[:num_rounds], np.full(num_rounds, cost))


def _emitted_per_round(
    rates: tuple[float, ...], num_rounds: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the tokens of each round, i64[num_rounds], drafted position by position."""
    emitted = np.ones(num_rounds, dtype=np.int64)
    alive = np.arange(num_rounds)
    for rate in rates:
        alive = alive[rng.random(alive.size) < rate]
        if alive.size == 0:
            break
        emitted[alive] += 1
    return emitted


def _summary(tokens: NDArray[np.int64], time: NDArray[np.float64]) -> SimulatedSpeedup:
    """Return the ratio mean(tokens)/mean(time) with its error by the delta method."""
    speedup = float(tokens.sum() / time.sum())
    # First order: the ratio's error is the mean of (tokens - speedup * time) over mean(time).
    residual = tokens - speedup * time
    error = float(np.std(residual, ddof=1) / np.sqrt(tokens.size) / time.mean())
    return SimulatedSpeedup(
        tokens_per_round=float(tokens.mean()),
        speedup=speedup,
        standard_error=error,
        num_rounds=int(tokens.size),
    )
