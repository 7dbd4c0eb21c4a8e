"""Attention of a few rows over a cache, compiled; knows arrays, not models.

A row's tokens are taken in chunks of `CHUNK`, which are put together in a fixed order. That keeps
all threads busy whatever the number of heads. Chunks are cut by a token's place in the row's own
text, not by its slot, so a row's result has the same bits whatever rows are computed beside it,
and on a branch of a tree the same as in plain decoding.

numba's disk cache notices changes in this file only: touch it after changing `matmul.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import prange, types

from draftproof.kernels.matmul import compiled, intrinsic, take

CHUNK = 128
_REASSOCIATED = {"reassoc", "contract"}
"""Lets a sum run in vector lanes; its order then depends on its length alone."""


@intrinsic
def _as_float(_typing: Any, _bits: Any) -> Any:
    """The float32 whose bits are those of an int32."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.FloatType())

    return types.float32(types.int32), generate


@compiled(inline="always")
def exp(x: Any) -> Any:
    """e^x in float32 for x <= 0, to about 1e-7; plain arithmetic, so that loops vectorise."""
    y = max(x, np.float32(-87.0)) * np.float32(1.4426950408889634)
    n = np.floor(y + np.float32(0.5))
    f = y - n
    p = np.float32(1.5403530393381606e-4)
    p = p * f + np.float32(1.3333558146428443e-3)
    p = p * f + np.float32(9.618129107628477e-3)
    p = p * f + np.float32(5.5504108664821584e-2)
    p = p * f + np.float32(2.4022650695910072e-1)
    p = p * f + np.float32(6.931471805599453e-1)
    p = p * f + np.float32(1.0)
    return p * _as_float(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))


@compiled(fastmath=_REASSOCIATED)
def _dot(a: Any, b: Any, n: int) -> Any:
    total = np.float32(0.0)
    for i in range(n):
        total += a[i] * b[i]
    return total


@compiled(fastmath=_REASSOCIATED)
def _sum(a: Any, n: int) -> Any:
    total = np.float32(0.0)
    for i in range(n):
        total += a[i]
    return total


@compiled()
def _attend_chunk(
    query: Any,
    keys: Any,
    values: Any,
    columns: Any,
    start: int,
    span: Any,
    scale: float,
    scores: Any,
    out: Any,
) -> Any:
    """Softmax numerators over the tokens first .. last - 1 of a row's own text; (peak, sum).

    query f32[D]; keys, values f32[S, D]. Token i is in slot i, or behind the committed `start`
    tokens in slot start + columns[i - start]; span = (first, last, low), and tokens before `low`
    lie outside the window. out f32[D] becomes the weighted sum of values, relative to the peak.
    """
    first, last, low = span
    size = query.shape[0]
    peak = np.float32(-np.inf)
    for i in range(first, last):
        slot = i if i < start else start + columns[i - start]
        score = np.float32(-np.inf)
        if i >= low:
            score = _dot(query, keys[slot], size) * np.float32(scale)
        scores[i - first] = score
        peak = max(peak, score)
    for d in range(size):
        out[d] = np.float32(0.0)
    if peak == np.float32(-np.inf):
        return peak, np.float32(0.0)
    for i in range(last - first):
        scores[i] = exp(scores[i] - peak) if scores[i] > np.float32(-np.inf) else np.float32(0.0)
    for i in range(first, last):
        slot = i if i < start else start + columns[i - start]
        weight = scores[i - first]
        value = values[slot]
        for d in range(size):
            out[d] += weight * value[d]
    return peak, _sum(scores, last - first)


@compiled(parallel=True)
def attend(
    q: Any,
    keys: Any,
    values: Any,
    first_row: int,
    starts: Any,
    lows: Any,
    columns: Any,
    lengths: Any,
    out: Any,
    workers: int,
) -> None:
    """Attention of all rows: q, out f32[R, heads * D]; keys, values f32[rows, kv_heads, S, D].

    Row r = b * W + w is column w of cache row first_row + b. It sees `lengths[r]` tokens, i64[R]:
    starts[b] committed ones, i64[B], and the columns[r] of this pass, i64[R, W]; lows i64[R].
    """
    batch, width = len(starts), columns.shape[1]
    kv_heads, size = keys.shape[1], keys.shape[3]
    heads = q.shape[1] // size
    group = heads // kv_heads
    chunks = (lengths.max() + CHUNK - 1) // CHUNK
    peaks = np.empty((len(q), heads, chunks), np.float32)
    totals = np.empty_like(peaks)
    parts = np.empty((len(q), heads, chunks, size), np.float32)
    scale = 1.0 / np.sqrt(size)
    items = batch * kv_heads * chunks
    counter = np.zeros(1, np.intp)
    for _ in prange(workers):
        scores = np.empty(CHUNK, np.float32)
        item: int = take(counter)
        while item < items:
            b = item // (kv_heads * chunks)
            kv = item // chunks % kv_heads
            c = item % chunks
            first = c * CHUNK
            for r in range(b * width, (b + 1) * width):
                last = min(first + CHUNK, lengths[r])
                if first >= last:
                    continue
                for h in range(kv * group, (kv + 1) * group):
                    peaks[r, h, c], totals[r, h, c] = _attend_chunk(
                        q[r, h * size : (h + 1) * size],
                        keys[first_row + b, kv],
                        values[first_row + b, kv],
                        columns[r],
                        starts[b],
                        (first, last, lows[r]),
                        scale,
                        scores,
                        parts[r, h, c],
                    )
            item = take(counter)
    _combine(lengths, peaks, totals, parts, out)


@compiled()
def _combine(lengths: Any, peaks: Any, totals: Any, parts: Any, out: Any) -> None:
    """Put the chunks of every head together, first chunk first."""
    rows, heads, _, size = parts.shape
    for r in range(rows):
        chunks = (lengths[r] + CHUNK - 1) // CHUNK
        for h in range(heads):
            peak = np.float32(-np.inf)
            for c in range(chunks):
                peak = max(peak, peaks[r, h, c])
            total = np.float32(0.0)
            for d in range(size):
                out[r, h * size + d] = np.float32(0.0)
            for c in range(chunks):
                if totals[r, h, c] > 0:
                    factor = exp(peaks[r, h, c] - peak)
                    total += factor * totals[r, h, c]
                    for d in range(size):
                        out[r, h * size + d] += factor * parts[r, h, c, d]
            for d in range(size):
                out[r, h * size + d] /= total
