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

from collections.abc import Callable
from typing import Any, NamedTuple

import numba.core.cgutils
import numba.extending
import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import prange, types

Floats = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float32] | npt.NDArray[np.int8]

# Typed loosely: what numba says about its own types differs from release to release.
cgutils: Any = numba.core.cgutils
intrinsic: Callable[[Callable[..., Any]], Any] = numba.extending.intrinsic(prefer_literal=True)
njit: Any = numba.njit

LINE_BYTES = 64
ROWS_PER_TILE = 4
TOKENS_PER_PASS = 6
# A thread takes this many weights at a time: enough to hide the taking (some 10 us of work), few
# enough that a thread which the system holds up leaves the rest to the others.
WEIGHTS_PER_TAKE = 1 << 16

_WIDE = bool(binding.get_host_cpu_features().get("avx512f", False))
LANES = 16 if _WIDE else 8
# Sums kept in registers at once: 24 of AVX-512's 32, 12 of AVX2's 16; the rest hold operands.
MAX_SUMS = 24 if _WIDE else 12

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_LANES_F32 = ir.VectorType(_F32, LANES)


class _Tile(NamedTuple):
    """The operands of one tile while its code is written: LLVM values."""

    rows: list[Any]
    """Pointers to rows of weights."""
    tokens: list[Any]
    """Pointers to rows of x."""
    length: Any
    """K"""
    weight_bytes: int


def _load(builder: Any, pointer: Any, lanes: int) -> Any:
    """Read `lanes` numbers (one: a scalar) and make them float32."""

    def kind(element: Any) -> Any:
        return ir.VectorType(element, lanes) if lanes > 1 else element

    element = pointer.type.pointee
    place = builder.bitcast(pointer, kind(element).as_pointer())
    # Rows of any K start anywhere: promise LLVM the alignment of one number only.
    value = builder.load(place, align=4 if element == _F32 else 1)
    if element == _F32:
        return value
    return builder.sitofp(builder.sext(value, kind(_I32)), kind(_F32))


def _multiply_add(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """a * b + total, fused where the machine can."""
    name = "llvm.fmuladd.f32" if a.type == _F32 else f"llvm.fmuladd.v{LANES}f32"
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, total])


def _add_lanes(builder: Any, value: Any) -> Any:
    """Add the upper half of the lanes to the lower until one number is left."""
    width = LANES
    while width > 1:
        width //= 2
        nothing = ir.Constant(value.type, ir.Undefined)
        lower, upper = (
            ir.Constant(ir.VectorType(_I32, width), list(range(start, start + width)))
            for start in (0, width)
        )
        value = builder.fadd(
            builder.shuffle_vector(value, nothing, lower),
            builder.shuffle_vector(value, nothing, upper),
        )
    return builder.extract_element(value, _I32(0))


def _prefetch(builder: Any, pointer: Any) -> None:
    """Ask for the cache line at pointer, to be put in the second-level cache."""
    place = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [place.type, _I32, _I32, _I32])
    name = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
    # For reading; locality 2, since 3 (first level) evicts the tokens and measured half as fast.
    builder.call(name, [place, _I32(0), _I32(2), _I32(1)])


def _accumulate(
    builder: Any, tile: _Tile, sums: list[Any], span: tuple[Any, Any], step: tuple[int, int]
) -> None:
    """Add the products over `span` of K to `sums`, in `step` = (vectors a turn, lanes)."""
    vectors, lanes = step
    turn = _I64(vectors * lanes)
    with cgutils.for_range_slice(builder, *span, turn, _I64, inc=True) as (k, _):
        if vectors * lanes * tile.weight_bytes == LINE_BYTES:
            ahead = builder.add(k, builder.mul(tile.length, _I64(ROWS_PER_TILE)))
            for row in tile.rows:
                _prefetch(builder, builder.gep(row, [ahead]))
        for vector in range(vectors):
            column = builder.add(k, _I64(vector * lanes))
            weights = [_load(builder, builder.gep(row, [column]), lanes) for row in tile.rows]
            for t, token in enumerate(tile.tokens):
                x = _load(builder, builder.gep(token, [column]), lanes)
                for r, w in enumerate(weights):
                    place = sums[r * len(tile.tokens) + t]
                    builder.store(_multiply_add(builder, w, x, builder.load(place)), place)


def _inner_products(builder: Any, tile: _Tile) -> list[Any]:
    """Emit the inner products of every row with every token, row-major."""
    count = len(tile.rows) * len(tile.tokens)
    # A turn of the loop is a cache line of each row, then one vector, then one number.
    vectors = max(1, LINE_BYTES // (LANES * tile.weight_bytes))
    lines = builder.and_(tile.length, _I64(-LANES * vectors))
    whole = builder.and_(tile.length, _I64(-LANES))
    # Stack places of the entry block: LLVM turns them into registers.
    wide = [cgutils.alloca_once(builder, _LANES_F32) for _ in range(count)]
    for place in wide:
        builder.store(ir.Constant(_LANES_F32, [0.0] * LANES), place)
    _accumulate(builder, tile, wide, (_I64(0), lines), (vectors, LANES))
    _accumulate(builder, tile, wide, (lines, whole), (1, LANES))
    narrow = [cgutils.alloca_once(builder, _F32) for _ in range(count)]
    for source, place in zip(wide, narrow, strict=True):
        builder.store(_add_lanes(builder, builder.load(source)), place)
    _accumulate(builder, tile, narrow, (whole, tile.length), (1, 1))
    return [builder.load(place) for place in narrow]


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
        index = builder.mul(builder.add(first, _I64(offset)), width)
        return builder.gep(array.data, [index])

    num_rows, num_tokens = shape
    weight_bytes = signature.args[4].dtype.bitwidth // 8
    tokens = [line(x, first_token, t, length) for t in range(num_tokens)]
    group = max(1, min(num_rows, MAX_SUMS // num_tokens))
    for start in range(0, num_rows, group):
        offsets = range(start, min(start + group, num_rows))
        rows = [line(w, first_row, r, length) for r in offsets]
        sums = _inner_products(builder, _Tile(rows, tokens, length, weight_bytes))
        for n, value in enumerate(sums):
            out = line(y, first_token, n % num_tokens, stride)
            column = builder.add(first_row, _I64(offsets[n // num_tokens]))
            builder.store(value, builder.gep(out, [column]))
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


@intrinsic
def take(_typing: Any, counter: Any) -> Any:
    """Add one to counter[0] for all threads and return what it was."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = context.make_array(signature.args[0])(context, builder, values[0]).data
        return builder.atomic_rmw("add", place, _I64(1), "monotonic")

    return types.intp(counter), generate


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """numba's njit with the disk cache, or without where no folder can be written."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            dispatcher: Callable[..., Any] = njit(cache=True, **options)(function)
        except RuntimeError:
            dispatcher = njit(**options)(function)
        return dispatcher

    return decorate


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
    elif num == 5:
        _tile(4, 5, y, x, w, t, o)
    else:
        _tile(4, 6, y, x, w, t, o)


@compiled()
def multiply_rows(
    x: Floats, w: Weights, scale: Floats, bias: Floats, y: Floats, start: int, stop: int
) -> None:
    """Fill output rows start to stop of y, on the calling thread; shapes as in `multiply`."""
    num_tokens = x.shape[0]
    passes = (num_tokens + TOKENS_PER_PASS - 1) // TOKENS_PER_PASS
    whole = start + (stop - start) // ROWS_PER_TILE * ROWS_PER_TILE
    for o in range(start, whole, ROWS_PER_TILE):
        for p in range(passes):
            # Even passes: 8 tokens are 4 + 4, since 6 + 2 would wait longer for memory.
            t = num_tokens * p // passes
            _four_rows(num_tokens * (p + 1) // passes - t, y, x, w, t, o)
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


@compiled(parallel=True)
def multiply_blocks(
    x: Floats, w: Weights, scale: Floats, bias: Floats, y: Floats, workers: int
) -> None:
    """`multiply` on `workers` threads, each taking the next block of output rows when free."""
    num_rows = w.shape[0]
    per_take = WEIGHTS_PER_TAKE // max(1, w.shape[1]) // ROWS_PER_TILE * ROWS_PER_TILE
    per_take = max(ROWS_PER_TILE, per_take)
    takes = (num_rows + per_take - 1) // per_take
    counter = np.zeros(1, np.intp)
    for _ in prange(workers):
        taken: int = take(counter)
        while taken < takes:
            start = taken * per_take
            multiply_rows(x, w, scale, bias, y, start, min(num_rows, start + per_take))
            taken = take(counter)


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
