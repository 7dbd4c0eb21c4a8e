"""The layers of a Llama-shaped decoder over a few rows, compiled; knows arrays, not models.

One call runs all layers: RMS norm, projections to queries, keys and values, rotary embedding,
attention over a cache, output projection, RMS norm, gated MLP. The arithmetic of a row does not
depend on the rows beside it, so its result has the same bits in any company.

numba's disk cache notices changes in this file only: touch it after changing its imports.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange
from numba.core import types as numba_types
from numba.np.numpy_support import carray

from draftproof.kernels.attention import attend, exp
from draftproof.kernels.matmul import (
    ROWS_PER_TILE,
    WEIGHTS_PER_TAKE,
    compiled,
    intrinsic,
    multiply_blocks,
    multiply_rows,
    take,
)

types: Any = numba_types


@compiled()
def _norm(x: Any, weight: Any, eps: float, out: Any) -> None:
    """RMS norm of every row: x f32[R, H], weight f32[H], out f32[R, H]."""
    width = x.shape[1]
    for r in range(x.shape[0]):
        total = np.float32(0.0)
        for i in range(width):
            total += x[r, i] * x[r, i]
        factor = np.float32(1.0 / np.sqrt(total / np.float32(width) + np.float32(eps)))
        for i in range(width):
            out[r, i] = weight[i] * (x[r, i] * factor)


@compiled()
def _rotate(x: Any, heads: int, cos: Any, sin: Any, norm: Any, eps: float) -> None:
    """Rotary embedding of x f32[R, heads * D] in place, behind an RMS norm per head if given.

    cos, sin: f32[R, D]; norm: f32[D], or f32[0] for none. Halves are rotated against each other.
    """
    size = cos.shape[1]
    half = size // 2
    for r in range(x.shape[0]):
        for h in range(heads):
            head = x[r, h * size : (h + 1) * size]
            if norm.size > 0:
                total = np.float32(0.0)
                for i in range(size):
                    total += head[i] * head[i]
                factor = np.float32(1.0 / np.sqrt(total / np.float32(size) + np.float32(eps)))
                for i in range(size):
                    head[i] = norm[i] * (head[i] * factor)
            for i in range(half):
                a, b = head[i], head[i + half]
                head[i] = a * cos[r, i] - b * sin[r, i]
                head[i + half] = b * cos[r, i + half] + a * sin[r, i + half]


@compiled(parallel=True)
def _project(
    x: Any,
    wq: Any,
    sq: Any,
    bq: Any,
    q: Any,
    wk: Any,
    sk: Any,
    bk: Any,
    k: Any,
    wv: Any,
    sv: Any,
    bv: Any,
    v: Any,
    workers: int,
) -> None:
    """q, k, v = x @ w.T * scale + bias for three matrices, their blocks shared out together."""
    per_take = WEIGHTS_PER_TAKE // max(1, x.shape[1]) // ROWS_PER_TILE * ROWS_PER_TILE
    per_take = max(ROWS_PER_TILE, per_take)
    takes_q = (wq.shape[0] + per_take - 1) // per_take
    takes_k = takes_q + (wk.shape[0] + per_take - 1) // per_take
    takes = takes_k + (wv.shape[0] + per_take - 1) // per_take
    counter = np.zeros(1, np.intp)
    for _ in prange(workers):
        taken: int = take(counter)
        while taken < takes:
            if taken < takes_q:
                start = taken * per_take
                multiply_rows(x, wq, sq, bq, q, start, min(wq.shape[0], start + per_take))
            elif taken < takes_k:
                start = (taken - takes_q) * per_take
                multiply_rows(x, wk, sk, bk, k, start, min(wk.shape[0], start + per_take))
            else:
                start = (taken - takes_k) * per_take
                multiply_rows(x, wv, sv, bv, v, start, min(wv.shape[0], start + per_take))
            taken = take(counter)


@compiled(parallel=True)
def _gate(
    x: Any, wg: Any, sg: Any, bg: Any, gate: Any, wu: Any, su: Any, bu: Any, up: Any, workers: int
) -> None:
    """gate = silu(x @ wg.T) * (x @ wu.T), f32[R, I]; `up` is scratch of the same shape."""
    rows = wg.shape[0]
    per_take = WEIGHTS_PER_TAKE // 2 // max(1, x.shape[1]) // ROWS_PER_TILE * ROWS_PER_TILE
    per_take = max(ROWS_PER_TILE, per_take)
    takes = (rows + per_take - 1) // per_take
    counter = np.zeros(1, np.intp)
    for _ in prange(workers):
        taken: int = take(counter)
        while taken < takes:
            start = taken * per_take
            stop = min(rows, start + per_take)
            multiply_rows(x, wg, sg, bg, gate, start, stop)
            multiply_rows(x, wu, su, bu, up, start, stop)
            for r in range(x.shape[0]):
                for o in range(start, stop):
                    g = gate[r, o]
                    e = exp(-abs(g))
                    s = np.float32(1.0) / (np.float32(1.0) + e)
                    gate[r, o] = g * (s if g >= 0 else e * s) * up[r, o]
            taken = take(counter)


@compiled()
def _store(k: Any, v: Any, keys: Any, values: Any, first_row: int, starts: Any, width: int) -> None:
    """Put k, v f32[R, kv_heads * D] behind each cache row's start."""
    kv_heads, size = keys.shape[1], keys.shape[3]
    for r in range(k.shape[0]):
        slot = starts[r // width] + r % width
        for h in range(kv_heads):
            for d in range(size):
                keys[first_row + r // width, h, slot, d] = k[r, h * size + d]
                values[first_row + r // width, h, slot, d] = v[r, h * size + d]


@compiled()
def _add(x: Any, y: Any) -> None:
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[r, i] += y[r, i]


@intrinsic
def _pointer(_typing: Any, address: Any, like: Any) -> Any:
    """The number `address` as a pointer to what the array `like` holds."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(address, like), generate


@compiled()
def _vector(address: int, size: int, floats: Any) -> Any:
    """f32[size] at `address`, or f32[0] for address 0."""
    return carray(_pointer(address, floats), (size if address != 0 else 0,))


@compiled()
def _linear(at: Any, shapes: Any, i: int, like: Any, floats: Any) -> Any:
    """Weight, scale and bias of the layer's i-th linear layer."""
    weight = carray(_pointer(at[i], like), (shapes[i, 0], shapes[i, 1]))
    scale = _vector(at[7 + i], shapes[i, 0], floats)
    return weight, scale, _vector(at[14 + i], shapes[i, 0], floats)


@compiled()
def _mlp(
    x: Any,
    h: Any,
    y: Any,
    at: Any,
    shapes: Any,
    like: Any,
    floats: Any,
    gate: Any,
    up: Any,
    eps: float,
    workers: int,
) -> None:
    """Add the gated MLP of the layer at `at` to x; h, y, gate, up are scratch."""
    _norm(x, _vector(at[22], x.shape[1], floats), eps, h)
    wg, sg, bg = _linear(at, shapes, 4, like, floats)
    wu, su, bu = _linear(at, shapes, 5, like, floats)
    _gate(h, wg, sg, bg, gate, wu, su, bu, up, workers)
    wd, sd, bd = _linear(at, shapes, 6, like, floats)
    multiply_blocks(gate, wd, sd, bd, y, workers)
    _add(x, y)


@compiled()
def run_layers(
    x: Any,
    like: Any,
    places: Any,
    shapes: Any,
    eps: float,
    keys: Any,
    values: Any,
    first_row: int,
    starts: Any,
    lows: Any,
    columns: Any,
    lengths: Any,
    cos: Any,
    sin: Any,
    workers: int,
) -> None:
    """All layers on x f32[R, H], in place; the final norm is the caller's.

    places i64[L, 25] holds addresses (0 for none): weights, then scales, then biases of q, k, v,
    o, gate, up, down, then the norms before attention, before the MLP, of queries, of keys. Weights
    are like `like`, f32[0, 0] or i8[0, 0], and of shape shapes i64[7, 2]; all else is float32.
    Addresses and not lists of arrays, whose methods numba compiles anew in every process.
    keys, values: f32[L, rows, kv_heads, S, D]; cos, sin: f32[R, D]; the rest as in `attend`.
    """
    rows, hidden = x.shape
    size = keys.shape[4]
    heads, kv_heads = shapes[0, 0] // size, keys.shape[2]
    floats = cos[0]
    h = np.empty_like(x)
    y = np.empty_like(x)
    q = np.empty((rows, shapes[0, 0]), np.float32)
    k = np.empty((rows, shapes[1, 0]), np.float32)
    v = np.empty_like(k)
    mixed = np.empty_like(q)
    gate = np.empty((rows, shapes[4, 0]), np.float32)
    up = np.empty_like(gate)
    for layer in range(len(places)):
        at = places[layer]
        _norm(x, _vector(at[21], hidden, floats), eps, h)
        wq, sq, bq = _linear(at, shapes, 0, like, floats)
        wk, sk, bk = _linear(at, shapes, 1, like, floats)
        wv, sv, bv = _linear(at, shapes, 2, like, floats)
        _project(h, wq, sq, bq, q, wk, sk, bk, k, wv, sv, bv, v, workers)
        _rotate(q, heads, cos, sin, _vector(at[23], size, floats), eps)
        _rotate(k, kv_heads, cos, sin, _vector(at[24], size, floats), eps)
        _store(k, v, keys[layer], values[layer], first_row, starts, columns.shape[1])
        attend(
            q, keys[layer], values[layer], first_row, starts, lows, columns, lengths, mixed, workers
        )
        wo, so, bo = _linear(at, shapes, 3, like, floats)
        multiply_blocks(mixed, wo, so, bo, y, workers)
        _add(x, y)
        _mlp(x, h, y, at, shapes, like, floats, gate, up, eps, workers)
