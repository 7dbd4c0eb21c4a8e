"""Multiplies token rows with a weight matrix; knows numbers, not layers or models.

`multiply` computes y[T, O] = x[T, K] @ weight[O, K].T for float32 or int8 weights. For a few tokens
such a product costs what reading the weights from memory does, so each is read once. For many it
costs arithmetic, so that what a tile (`tile.py`) is made of is kept in the nearest caches.

A token's result has the same bits whatever is computed beside it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import prange
from numba.np.numpy_support import carray

from draftproof.kernels.address import locate, pointer, vector
from draftproof.kernels.routine import Routine, call
from draftproof.kernels.team import TAKEN, TEAM_SIZE, compiled, count, inner
from draftproof.kernels.tile import ROWS_PER_TILE, TOKENS_PER_TILE, multiply_tile
from draftproof.kernels.vector import LANES

Floats = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float32] | npt.NDArray[np.int8]

# Tiles of tokens beside each other, which share weights while those are in the first-level cache.
# Weights in bytes may come from farther away: converting them takes as long.
_TILES_F32, _TILES_I8 = 3, 1
# Numbers of x that the first-level cache holds beside the weights that stream through it.
_CACHED_NUMBERS = 5120
# A thread takes this many weights at a time: enough to hide the taking (some 10 us of work), few
# enough that a thread which the system holds up leaves the rest to the others. Long rows are taken
# by so many at least, since what is loaded of x serves all of them.
WEIGHTS_PER_TAKE = 1 << 16
_LEAST_ROWS = 24


@inner()
def _even(total: int, most: int) -> int:
    """The size of even parts of `total`, none larger than `most`."""
    parts = max(1, (total + most - 1) // most)
    return max(1, (total + parts - 1) // parts)


@inner()
def _multiply_rows(
    x: Floats, w: Weights, scale: Floats, bias: Floats, y: Floats, start: int, stop: int
) -> None:
    """Fill output rows start to stop of y; shapes as in `multiply`."""
    num_tokens, length = x.shape
    whole = start + (stop - start) // ROWS_PER_TILE * ROWS_PER_TILE
    tiles = _TILES_F32 if w.itemsize == 4 else _TILES_I8
    group = _even(num_tokens, tiles * TOKENS_PER_TILE)
    part = length
    if group >= TOKENS_PER_TILE:  # fewer wait for memory, which is read best in whole rows
        part = (_even(length, _CACHED_NUMBERS // group) + 63) // 64 * 64
    kept = np.empty((stop - start) * group * LANES if part < length else 0, np.float32)
    for first in range(0, num_tokens, group):
        size = min(group, num_tokens - first)
        per_tile = _even(size, TOKENS_PER_TILE)
        for k in range(0, length, part):
            place = 0
            for o in range(start, whole, ROWS_PER_TILE):
                for t in range(first, first + size, per_tile):
                    num = min(per_tile, first + size - t)
                    multiply_tile(
                        ROWS_PER_TILE, num, y, x, w, kept, t, o, k, min(length, k + part), place
                    )
                    place += ROWS_PER_TILE * num * LANES
    for o in range(whole, stop):
        for t in range(num_tokens):
            multiply_tile(1, 1, y, x, w, kept, t, o, 0, length, 0)
    if scale.size > 0:
        for t in range(num_tokens):
            for o in range(start, stop):
                y[t, o] *= scale[o]
    if bias.size > 0:
        for t in range(num_tokens):
            for o in range(start, stop):
                y[t, o] += bias[o]


@compiled()
def rows_per_take(length: int) -> int:
    """Output rows of `length` weights each that a thread takes at a time: whole tiles."""
    return max(_LEAST_ROWS, WEIGHTS_PER_TAKE // max(1, length) // ROWS_PER_TILE * ROWS_PER_TILE)


def _product_with(kind: Any) -> Routine:
    """The routine that fills output rows start to stop of a product with weights of a NumPy type.

    f32[num_tokens, length] at x, f32[num_tokens, width] at y; the others as in `multiply`, 0 for
    none.
    """

    def rows(
        x: int,
        num_tokens: int,
        length: int,
        w: int,
        scale: int,
        bias: int,
        y: int,
        width: int,
        start: int,
        stop: int,
    ) -> None:
        floats = np.empty(0, np.float32)
        _multiply_rows(
            carray(pointer(x, floats), (num_tokens, length)),
            carray(pointer(w, np.empty(0, kind)), (stop, length)),
            vector(scale, stop, floats),
            vector(bias, stop, floats),
            carray(pointer(y, floats), (num_tokens, width)),
            start,
            stop,
        )

    return Routine(rows)


MULTIPLY_ROWS = {np.dtype(kind): _product_with(kind) for kind in (np.float32, np.int8)}
"""By the type of the weights."""


@inner()
def _multiply_block(
    routine: int, x: Floats, w: Weights, scale: Floats, bias: Floats, y: Floats, block: int
) -> None:
    """Fill the output rows that a thread takes at a time, `block` being the number of the take."""
    num_tokens, length = x.shape
    per_take = rows_per_take(length)
    start = block * per_take
    stop = min(len(w), start + per_take)
    operands = (locate(x), num_tokens, length, locate(w), locate(scale), locate(bias), locate(y))
    call(routine, (*operands, y.shape[1], start, stop))


@inner()
def _takes(w: Weights) -> int:
    per_take: int = rows_per_take(w.shape[1])
    return (len(w) + per_take - 1) // per_take


@compiled()
def _multiply_alone(
    routine: int, x: Floats, w: Weights, scale: Floats, bias: Floats, y: Floats
) -> None:
    for block in range(_takes(w)):
        _multiply_block(routine, x, w, scale, bias, y, block)


@compiled(parallel=True)
def _multiply_together(
    routine: int, x: Floats, w: Weights, scale: Floats, bias: Floats, y: Floats, workers: int
) -> None:
    """On `workers` threads, each taking the next block of output rows when free."""
    team = np.zeros(TEAM_SIZE, np.int64)
    for _ in prange(workers):
        taken: int = count(team, TAKEN)
        while taken < _takes(w):
            _multiply_block(routine, x, w, scale, bias, y, taken)
            taken = count(team, TAKEN)


def multiply(x: Floats, w: Weights, scale: Floats, bias: Floats, y: Floats, threads: int) -> None:
    """Fill y with x @ w.T * scale + bias.

    x: f32[T, K]; w: f32[O, K] or i8[O, K]; scale, bias: f32[O], or f32[0] for none;
    y: f32[T, O]; all C-contiguous. `threads` is lowered to numba's own limit."""
    limit = numba.get_num_threads()
    routine = MULTIPLY_ROWS[w.dtype].address
    if min(threads, limit) == 1 or w.size <= WEIGHTS_PER_TAKE:  # no team to wait for
        _multiply_alone(routine, x, w, scale, bias, y)
        return
    if threads >= limit:
        _multiply_together(routine, x, w, scale, bias, y, limit)
        return
    # As many threads as torch keeps: GNU OpenMP, which both use, rebuilds its pool on a change.
    numba.set_num_threads(threads)
    try:
        _multiply_together(routine, x, w, scale, bias, y, threads)
    finally:
        numba.set_num_threads(limit)
