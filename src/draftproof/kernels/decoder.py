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

from draftproof.kernels.attention import CHUNK, attend, exp
from draftproof.kernels.matmul import (
    ROWS_PER_TILE,
    WEIGHTS_PER_TAKE,
    compiled,
    multiply_blocks,
    multiply_rows,
    take,
)


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


@compiled()
def run_layers(
    x: Any,
    weights: Any,
    scales: Any,
    biases: Any,
    norms: Any,
    keys: Any,
    values: Any,
    first_row: int,
    starts: Any,
    lows: Any,
    columns: Any,
    lengths: Any,
    cos: Any,
    sin: Any,
    eps: float,
    workers: int,
) -> None:
    """All layers on x f32[R, H], in place; the final norm is the caller's.

    Per layer, in order: weights f32|i8[O, K], scales f32[O] or f32[0] and biases likewise of
    q, k, v, o, gate, up, down; norms f32[H] before attention and MLP, then f32[D] or f32[0] of
    queries and keys. keys, values: f32[L, rows, kv_heads, S, D].
    """
    rows, width = x.shape[0], columns.shape[1]
    size = keys.shape[4]
    heads = weights[0].shape[0] // size
    kv_heads = keys.shape[2]
    chunks = (lengths.max() + CHUNK - 1) // CHUNK
    h = np.empty_like(x)
    y = np.empty_like(x)
    q = np.empty((rows, heads * size), np.float32)
    k = np.empty((rows, kv_heads * size), np.float32)
    v = np.empty((rows, kv_heads * size), np.float32)
    mixed = np.empty((rows, heads * size), np.float32)
    gate = np.empty((rows, weights[4].shape[0]), np.float32)
    up = np.empty_like(gate)
    peaks = np.empty((rows, heads, chunks), np.float32)
    totals = np.empty((rows, heads, chunks), np.float32)
    parts = np.empty((rows, heads, chunks, size), np.float32)
    scale = 1.0 / np.sqrt(size)
    for layer in range(len(weights) // 7):
        w, n = layer * 7, layer * 4
        _norm(x, norms[n], eps, h)
        _project(
            h,
            weights[w],
            scales[w],
            biases[w],
            q,
            weights[w + 1],
            scales[w + 1],
            biases[w + 1],
            k,
            weights[w + 2],
            scales[w + 2],
            biases[w + 2],
            v,
            workers,
        )
        _rotate(q, heads, cos, sin, norms[n + 2], eps)
        _rotate(k, kv_heads, cos, sin, norms[n + 3], eps)
        _store(k, v, keys[layer], values[layer], first_row, starts, width)
        attend(
            q,
            keys[layer],
            values[layer],
            first_row,
            starts,
            lows,
            columns,
            lengths,
            scale,
            peaks,
            totals,
            parts,
            mixed,
            workers,
        )
        multiply_blocks(mixed, weights[w + 3], scales[w + 3], biases[w + 3], y, workers)
        _add(x, y)
        _norm(x, norms[n + 1], eps, h)
        _gate(
            h,
            weights[w + 4],
            scales[w + 4],
            biases[w + 4],
            gate,
            weights[w + 5],
            scales[w + 5],
            biases[w + 5],
            up,
            workers,
        )
        multiply_blocks(gate, weights[w + 6], scales[w + 6], biases[w + 6], y, workers)
        _add(x, y)
