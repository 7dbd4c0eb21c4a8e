"""Randomness keyed by (seed, sample, position, purpose); it knows no model and no rule.

A counter-based generator (Philox 4x64, Salmon et al. 2011) turns a key into numbers without any
stream to share, so a token does not depend on batch neighbours, on depth or on call order.

Which position belongs in the key decides losslessness. The target's own draws (TARGET) are keyed
by the position of the token they produce: whatever was rejected before, that draw is still fresh.
Numbers that are only used while one draft is judged (DRAFT, ACCEPT, CORRECTION) are keyed by the
position where the draft starts plus an offset. A rule like blockwise looks at the whole draft
before it accepts a part of it, so the numbers behind a rejected tail are no longer independent of
the outcome; keyed by their own position they would be used again one round later, and bias it.
"""

from __future__ import annotations

import secrets
from typing import Protocol

import numpy as np
import torch

from draftproof.core import Purpose

_CACHED_POSITIONS = 16


class Noise(Protocol):
    """The only decisions a rule or drafter may leave to chance."""

    def accepts(self, p: float, q: float, position: int, offset: int) -> bool:
        """True with probability min(1, p / q): u * q < p with u uniform in [0, 1)."""
        ...

    def draw(self, weights: torch.Tensor, position: int, purpose: Purpose, offset: int = 0) -> int:
        """An index drawn in proportion to `weights`: f[V], non-negative, not all zero."""
        ...

    def race(self, weights: torch.Tensor, position: int) -> int:
        """argmin over v of E[v] / weights[v], E the position's exponential noise; f[V]."""
        ...


class KeyedNoise:
    """The noise of one sequence. `sample` tells the n samples of one request apart."""

    def __init__(self, seed: int | None, sample: int = 0) -> None:
        self._key = (secrets.randbits(64) if seed is None else seed, sample)
        self._races: dict[int, torch.Tensor] = {}

    def accepts(self, p: float, q: float, position: int, offset: int) -> bool:
        return self._uniform(position, Purpose.ACCEPT, offset) * q < p

    def draw(self, weights: torch.Tensor, position: int, purpose: Purpose, offset: int = 0) -> int:
        total = torch.cumsum(weights, dim=0, dtype=torch.float64)
        mark = self._uniform(position, purpose, offset) * total[-1]
        # right=True lands where total[i-1] <= mark < total[i], which never has zero weight.
        index = int(torch.searchsorted(total, mark, right=True))
        if index == len(total):  # mark rounded up to the whole mass: the last positive weight
            index = int(torch.searchsorted(total, total[-1]))
        return index

    def race(self, weights: torch.Tensor, position: int) -> int:
        return int(torch.argmin(self.exponentials(position, weights) / weights))

    def _uniform(self, position: int, purpose: Purpose, offset: int) -> float:
        return float(self._bits(1, position, purpose, offset)[0] >> np.uint64(11)) * 2.0**-53

    def exponentials(self, position: int, weights: torch.Tensor) -> torch.Tensor:
        """Exp(1) noise f64[V]; a prefix of it serves a smaller vocabulary."""
        noise = self._races.get(position)
        if noise is None or len(noise) < len(weights):
            bits = self._bits(len(weights), position, Purpose.TARGET, 0) >> np.uint64(12)
            # (bits + 1/2) / 2^52 is exact and never 0 or 1, so no noise is infinite or zero; with
            # 53 bits the half would round, at the top to 1.
            noise = torch.from_numpy(-np.log((bits + 0.5) * 2.0**-52)).to(weights.device)
            while len(self._races) >= _CACHED_POSITIONS:
                del self._races[next(iter(self._races))]
            self._races[position] = noise
        return noise[: len(weights)]

    def _bits(self, count: int, position: int, purpose: Purpose, offset: int) -> np.ndarray:
        # The lowest counter word runs while numbers are taken; the others hold the key.
        counter = np.array([0, offset, position, int(purpose)], dtype=np.uint64)
        key = np.array(self._key, dtype=np.uint64)
        bits: np.ndarray = np.random.Philox(key=key, counter=counter).random_raw(count)
        return bits
