"""Multiplies a few token rows with a weight matrix; knows numbers, not layers or models.

`multiply` computes y[T, O] = x[T, K] @ weight[O, K].T for float32 or int8 weights. Reading the
weights from memory is what such a product costs, so every weight is read once, for up to
`TOKENS_PER_PASS` tokens, four output rows side by side.

A token's result has the same bits whatever is computed beside it. The inner loop is therefore
written out in vector instructions instead of being left to the vectoriser, which orders the sums
of a loop by how much of it fits the registers. The order of one sum, for lane l of LANES:

    lane[l] = x[l]*w[l], then + x[l+LANES]*w[l+LANES], ...     (fused, one step per LANES numbers)
    sum     = halves of the lanes added until one is left, then the last K mod LANES products
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import prange, types

from draftproof.kernels.team import (
    LINE_BYTES,
    TAKEN,
    TEAM_SIZE,
    cgutils,
    compiled,
    count,
    intrinsic,
    prefetch_line,
)
from draftproof.kernels.vector import I64, LANES, LANES_F32, MAX_SUMS, fold, load, multiply_add

Floats = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float32] | npt.NDArray[np.int8]

ROWS_PER_TILE = 4
# How far ahead weights are asked for at least: what memory delivers while it takes to answer.
_AHEAD_BYTES = 4096
TOKENS_PER_PASS = 5
# A thread takes this many weights at a time: enough to hide the taking (some 10 us of work), few
# enough that a thread which the system holds up leaves the rest to the others.
WEIGHTS_PER_TAKE = 1 << 16


class _Tile(NamedTuple):
    """The operands of one tile while its code is written: LLVM values."""

    num_rows: int
    num_tokens: int
    row: Any
    """Pointer to the first row of weights; the others follow, `length` numbers each."""
    token: Any
    """Pointer to the first row of x, likewise."""
    results: list[Any]
    """Pointers to the first result of each token; those of the other rows follow it."""
    length: Any
    """K"""
    weight_bytes: int


def _accumulate(
    builder: Any, tile: _Tile, sums: list[Any], span: tuple[Any, Any], step: tuple[int, int]
) -> None:
    """Add the products over `span` of K to `sums`, in `step` = (vectors a turn, lanes)."""
    vectors, lanes = step
    turn = I64(vectors * lanes)
    row_offsets = [builder.mul(tile.length, I64(r)) for r in range(tile.num_rows)]
    token_offsets = [builder.mul(tile.length, I64(t)) for t in range(tile.num_tokens)]
    ahead = builder.mul(tile.length, I64(ROWS_PER_TILE))
    least = I64(_AHEAD_BYTES // tile.weight_bytes)
    ahead = builder.select(builder.icmp_signed("<", ahead, least), least, ahead)
    # Two pointers that move and few distances: a pointer for each row would not fit the registers.
    row_place, token_place = (
        cgutils.alloca_once_value(builder, builder.gep(pointer, [span[0]]))
        for pointer in (tile.row, tile.token)
    )
    with cgutils.for_range_slice(builder, *span, turn, I64, inc=True):
        row, token = builder.load(row_place), builder.load(token_place)
        if vectors * lanes * tile.weight_bytes == LINE_BYTES:
            next_tile = builder.gep(row, [ahead])
            for offset in row_offsets:
                prefetch_line(builder, builder.gep(next_tile, [offset]))
        for vector in range(vectors):
            shift = I64(vector * lanes)
            weights = [
                load(builder, builder.gep(builder.gep(row, [offset]), [shift]), lanes)
                for offset in row_offsets
            ]
            for t, offset in enumerate(token_offsets):
                x = load(builder, builder.gep(builder.gep(token, [offset]), [shift]), lanes)
                for r, w in enumerate(weights):
                    place = sums[r * tile.num_tokens + t]
                    builder.store(multiply_add(builder, w, x, builder.load(place)), place)
        builder.store(builder.gep(row, [turn]), row_place)
        builder.store(builder.gep(token, [turn]), token_place)


def _multiply_tile(builder: Any, tile: _Tile) -> None:
    """Emit the inner products of every row with every token."""
    num_rows, num_tokens = tile.num_rows, tile.num_tokens
    # A turn of the loop is a cache line of each row, then one vector, then one number.
    vectors = max(1, LINE_BYTES // (LANES * tile.weight_bytes))
    lines = builder.and_(tile.length, I64(-LANES * vectors))
    whole = builder.and_(tile.length, I64(-LANES))
    # Stack places of the entry block: LLVM turns them into registers.
    sums = [cgutils.alloca_once(builder, LANES_F32) for _ in range(num_rows * num_tokens)]
    for place in sums:
        builder.store(ir.Constant(LANES_F32, [0.0] * LANES), place)
    _accumulate(builder, tile, sums, (I64(0), lines), (vectors, LANES))
    _accumulate(builder, tile, sums, (lines, whole), (1, LANES))
    for t, result in enumerate(tile.results):
        row = 0
        while row < num_rows:
            taken = 1 << min(2, (num_rows - row).bit_length() - 1)
            folded = fold(
                builder,
                [builder.load(sums[r * num_tokens + t]) for r in range(row, row + taken)],
            )
            place = builder.bitcast(builder.gep(result, [I64(row)]), folded.type.as_pointer())
            builder.store(folded, place, align=4)
            row += taken
    rest = [builder.gep(result, [I64(r)]) for r in range(num_rows) for result in tile.results]
    _accumulate(builder, tile, rest, (whole, tile.length), (1, 1))


def _emit_tile(
    context: Any, builder: Any, signature: Any, values: Any, shape: tuple[int, int]
) -> Any:
    """Emit y[t0 + t, o + r] = x[t0 + t] . w[o + r] for the rows r and tokens t of `shape`."""
    y, x, w = (
        context.make_array(kind)(context, builder, value)
        for kind, value in zip(signature.args[2:5], values[2:5], strict=True)
    )
    first_token, first_row = values[5:]
    length = cgutils.unpack_tuple(builder, x.shape)[1]
    stride = cgutils.unpack_tuple(builder, y.shape)[1]

    def line(array: Any, first: Any, offset: int, width: Any) -> Any:
        index = builder.mul(builder.add(first, I64(offset)), width)
        return builder.gep(array.data, [index])

    num_rows, num_tokens = shape
    weight_bytes = signature.args[4].dtype.bitwidth // 8
    group = max(1, min(num_rows, MAX_SUMS // num_tokens))
    for start in range(0, num_rows, group):
        column = builder.add(first_row, I64(start))
        results = [
            builder.gep(line(y, first_token, t, stride), [column]) for t in range(num_tokens)
        ]
        rows = min(group, num_rows - start)
        first = line(w, first_row, start, length), line(x, first_token, 0, length)
        _multiply_tile(builder, _Tile(rows, num_tokens, *first, results, length, weight_bytes))
    return context.get_dummy_value()


@intrinsic
def _tile(
    _typing: Any, rows: Any, tokens: Any, y: Any, x: Any, w: Any, _token: Any, _row: Any
) -> Any:
    """Typing of one tile: `rows` and `tokens` are literals, the arrays C-contiguous."""
    if any(array.layout != "C" for array in (y, x, w)):
        return None
    shape = (rows.literal_value, tokens.literal_value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _emit_tile(context, builder, signature, values, shape)

    return types.void(rows, tokens, y, x, w, types.intp, types.intp), generate


@compiled()
def _four_rows(num: int, y: Floats, x: Floats, w: Weights, t: int, o: int) -> None:
    """Output rows o to o + 3 for the `num` tokens from t on: one body per number of tokens."""
    if num == 1:
        _tile(4, 1, y, x, w, t, o)
    elif num == 2:
        _tile(4, 2, y, x, w, t, o)
    elif num == 3:
        _tile(4, 3, y, x, w, t, o)
    elif num == 4:
        _tile(4, 4, y, x, w, t, o)
    else:
        _tile(4, 5, y, x, w, t, o)


@compiled()
def multiply_rows(
    x: Floats, w: Weights, scale: Floats, bias: Floats, y: Floats, start: int, stop: int
) -> None:
    """Fill output rows start to stop of y, on the calling thread; shapes as in `multiply`."""
    num_tokens = x.shape[0]
    passes = (num_tokens + TOKENS_PER_PASS - 1) // TOKENS_PER_PASS
    # Even passes: 6 tokens are 3 + 3, since 5 + 1 would wait longer for memory.
    least, more = num_tokens // max(1, passes), num_tokens % max(1, passes)
    whole = start + (stop - start) // ROWS_PER_TILE * ROWS_PER_TILE
    for o in range(start, whole, ROWS_PER_TILE):
        t = 0
        for p in range(passes):
            num = least + 1 if p < more else least
            _four_rows(num, y, x, w, t, o)
            t += num
    for o in range(whole, stop):
        for t in range(num_tokens):
            _tile(1, 1, y, x, w, t, o)
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
    return max(ROWS_PER_TILE, WEIGHTS_PER_TAKE // max(1, length) // ROWS_PER_TILE * ROWS_PER_TILE)


@compiled(parallel=True)
def multiply_blocks(
    x: Floats, w: Weights, scale: Floats, bias: Floats, y: Floats, workers: int
) -> None:
    """`multiply` on `workers` threads, each taking the next block of output rows when free."""
    num_rows, per_take = w.shape[0], rows_per_take(w.shape[1])
    takes = (num_rows + per_take - 1) // per_take
    team = np.zeros(TEAM_SIZE, np.int64)
    for _ in prange(workers):
        taken: int = count(team, TAKEN)
        while taken < takes:
            start = taken * per_take
            multiply_rows(x, w, scale, bias, y, start, min(num_rows, start + per_take))
            taken = count(team, TAKEN)


def multiply(x: Floats, w: Weights, scale: Floats, bias: Floats, y: Floats, threads: int) -> None:
    """Fill y with x @ w.T * scale + bias.

    x: f32[T, K]; w: f32[O, K] or i8[O, K]; scale, bias: f32[O], or f32[0] for none;
    y: f32[T, O]; all C-contiguous. `threads` is lowered to numba's own limit."""
    limit = numba.get_num_threads()
    if min(threads, limit) == 1 or w.size <= WEIGHTS_PER_TAKE:  # no team to wait for
        multiply_rows(x, w, scale, bias, y, 0, len(w))
        return
    if threads >= limit:
        multiply_blocks(x, w, scale, bias, y, limit)
        return
    # As many threads as torch keeps: GNU OpenMP, which both use, rebuilds its pool on a change.
    numba.set_num_threads(threads)
    try:
        multiply_blocks(x, w, scale, bias, y, threads)
    finally:
        numba.set_num_threads(limit)
