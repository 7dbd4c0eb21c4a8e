"""Adds up rows of a matrix by weights: out[T, D] = weights[T, n] @ values[n, D].

The rows are added in order, so a result does not depend on what is computed beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from draftproof.kernels.team import cgutils, inner, intrinsic
from draftproof.kernels.vector import I64, LANES, LANES_F32, load, multiply_add, spread

MAX_QUERIES = 4
_VECTORS = 4 if LANES == 16 else 2


@intrinsic
def _tile(
    _typing: Any,
    queries: Any,
    vectors: Any,
    out: Any,
    weights: Any,
    values: Any,
    _num: Any,
    _first: Any,
    _column: Any,
) -> Any:
    """out[f + q, c + i] = sum over s < num of weights[f + q, s] * values[s, c + i], first s first.

    q runs over `queries` and i over `vectors` vectors, both literal, whose sums stay in registers.
    """
    if any(array.layout != "C" for array in (out, weights, values)):
        return None
    shape = queries.literal_value, vectors.literal_value

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[2:5], operands[2:5], strict=True)
        ]
        _emit(builder, shape, arrays, operands[5:])
        return context.get_dummy_value()

    scalars = [types.intp] * 3
    return types.void(queries, vectors, out, weights, values, *scalars), generate


def _emit(builder: Any, shape: tuple[int, int], arrays: Any, scalars: Any) -> None:
    num, first, column = scalars
    starts, strides = [], []
    for array, row in zip(arrays, (first, first, None), strict=True):
        stride = cgutils.unpack_tuple(builder, array.shape)[1]
        at = array.data if row is None else builder.gep(array.data, [builder.mul(row, stride)])
        starts.append(at)
        strides.append(stride)
    out, factors, matrix = starts
    sums = [
        [cgutils.alloca_once(builder, LANES_F32) for _ in range(shape[1])] for _ in range(shape[0])
    ]
    for place in (place for row in sums for place in row):
        builder.store(ir.Constant(LANES_F32, [0.0] * LANES), place)
    with cgutils.for_range(builder, num) as loop:
        row = builder.gep(matrix, [builder.add(builder.mul(loop.index, strides[2]), column)])
        found = [load(builder, builder.gep(row, [I64(i * LANES)]), LANES) for i in range(shape[1])]
        for q, places in enumerate(sums):
            at = builder.add(builder.mul(I64(q), strides[1]), loop.index)
            factor = spread(builder, load(builder, builder.gep(factors, [at]), 1))
            for value, place in zip(found, places, strict=True):
                builder.store(multiply_add(builder, factor, value, builder.load(place)), place)
    for q, places in enumerate(sums):
        row = builder.gep(out, [builder.add(builder.mul(I64(q), strides[0]), column)])
        for i, place in enumerate(places):
            target = builder.bitcast(builder.gep(row, [I64(i * LANES)]), LANES_F32.as_pointer())
            builder.store(builder.load(place), target, align=4)


@inner()
def weigh_rows(queries: int, out: Any, weights: Any, values: Any, num: int, f: int) -> None:
    """out[f : f + queries] = weights[f : f + queries, :num] @ values[:num], for 1 to 4 queries."""
    size = values.shape[1]
    d = 0
    while d + _VECTORS * LANES <= size:
        if queries == 1:
            _tile(1, _VECTORS, out, weights, values, num, f, d)
        elif queries == 2:
            _tile(2, _VECTORS, out, weights, values, num, f, d)
        elif queries == 3:
            _tile(3, _VECTORS, out, weights, values, num, f, d)
        else:
            _tile(4, _VECTORS, out, weights, values, num, f, d)
        d += _VECTORS * LANES
    for q in range(f, f + queries):
        for rest in range(d, size):
            total = np.float32(0.0)
            for i in range(num):
                total += weights[q, i] * values[i, rest]
            out[q, rest] = total
