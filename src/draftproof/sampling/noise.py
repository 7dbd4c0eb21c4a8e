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
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from draftproof.core import Purpose

_CACHED_POSITIONS = 16
_BLOCK = 512


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
        self._races: dict[int, _Race] = {}

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
        return self._race(position).winner(weights)

    def exponentials(self, position: int, weights: torch.Tensor) -> torch.Tensor:
        """Exp(1) noise f64[V], above 0; a prefix of it serves a smaller vocabulary."""
        return self._race(position).numbers(len(weights)).to(weights.device)

    def _race(self, position: int) -> _Race:
        race = self._races.get(position)
        if race is None:
            while len(self._races) >= _CACHED_POSITIONS:
                del self._races[next(iter(self._races))]
            race = _Race(lambda block: self._source(position, Purpose.RACE, block))
            self._races[position] = race
        return race

    def _uniform(self, position: int, purpose: Purpose, offset: int) -> float:
        return (self._bits(position, purpose, offset) >> 11) * 2.0**-53

    def _bits(self, position: int, purpose: Purpose, offset: int) -> int:
        return int(self._source(position, purpose, offset).random_raw())

    def _source(self, position: int, purpose: Purpose, offset: int) -> np.random.Philox:
        # The lowest counter word runs while numbers are taken; the others hold the key.
        counter = np.array([0, offset, position, int(purpose)], dtype=np.uint64)
        return np.random.Philox(key=np.array(self._key, dtype=np.uint64), counter=counter)


class _Race:
    """The exponential noise of one position, made only where it can decide.

    The least of `_BLOCK` independent Exp(1) numbers is Exp(_BLOCK), any of them is it with equal
    chance, and the others exceed it by Exp(1) again. So the least of every block is drawn first,
    and the rest only of blocks that can hold the winner: of hundreds, the few that hold a likely
    token.
    """

    def __init__(self, source: Callable[[int], np.random.Philox]) -> None:
        """`source(b + 1)` is the generator of block b, `source(0)` that of the least numbers."""
        self._source = source
        self._least = np.empty(0)
        self._blocks: dict[int, np.ndarray] = {}

    def winner(self, weights: torch.Tensor) -> int:
        """argmin over v of E[v] / weights[v]; the first of those that tie."""
        values = weights.cpu().numpy()
        peaks = np.maximum.reduceat(values, np.arange(0, len(values), _BLOCK))
        best, found = np.inf, 0
        with np.errstate(divide="ignore", over="ignore"):
            bounds = self._least_of(len(peaks)) / peaks
            for block in np.argsort(bounds, kind="stable").tolist():
                if bounds[block] > best:
                    break
                part = values[block * _BLOCK : (block + 1) * _BLOCK]
                times = self._block(block)[: len(part)] / part
                first = int(times.argmin())
                if (times[first], block * _BLOCK + first) < (best, found):
                    best, found = times[first], block * _BLOCK + first
        return found

    def numbers(self, count: int) -> torch.Tensor:
        """The noise of ids 0 to count - 1, f64[count]: all that `winner` could look at."""
        num_blocks = -(-count // _BLOCK)
        self._least_of(num_blocks)
        blocks = [self._block(block) for block in range(num_blocks)]
        return torch.from_numpy(np.concatenate(blocks)[:count])

    def _least_of(self, count: int) -> np.ndarray:
        if len(self._least) < count:
            drawn = np.random.Generator(self._source(0)).standard_exponential(count) / _BLOCK
            # Nothing is 0, so that no weight of 0 can win.
            self._least = np.maximum(drawn, np.finfo(float).tiny)
        return self._least[:count]

    def _block(self, block: int) -> np.ndarray:
        numbers = self._blocks.get(block)
        if numbers is None:
            generator = np.random.Generator(self._source(block + 1))
            numbers = generator.standard_exponential(_BLOCK)
            numbers[generator.integers(_BLOCK)] = 0.0
            numbers += self._least_of(block + 1)[block]
            self._blocks[block] = numbers
        return numbers
