"""Attention of a few rows over a cache, compiled; knows arrays, not models.

A row's tokens are taken in chunks of `CHUNK`, which are put together in a fixed order. That keeps
all threads busy whatever the number of heads. Chunks are cut by a token's place in the row's own
text, not by its slot, so a row's result has the same bits whatever rows are computed beside it,
and on a branch of a tree the same as in plain decoding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from draftproof.kernels.address import locate
from draftproof.kernels.routine import call
from draftproof.kernels.state import CHUNK
from draftproof.kernels.team import inner, intrinsic
from draftproof.kernels.weigh import MAX_QUERIES, weigh_rows

_REASSOCIATED = {"reassoc", "contract"}
"""Lets a sum run in vector lanes; its order then depends on its length alone."""


@intrinsic
def _as_float(_typing: Any, _bits: Any) -> Any:
    """The float32 whose bits are those of an int32."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.FloatType())

    return types.float32(types.int32), generate


@inner(inline="always")
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
    power = _as_float(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
    return p * power + (x - x)  # the comparison above loses NaN; this brings it back


@inner(fastmath=_REASSOCIATED)
def _sum(a: Any, n: int) -> Any:
    total = np.float32(0.0)
    for i in range(n):
        total += a[i]
    return total


@inner()
def _soften(scores: Any, num: int, hidden: int, scale: float) -> Any:
    """Softmax numerators of scores[:num], in place, relative to their peak; (peak, sum).

    The first `hidden` tokens lie outside the window.
    """
    peak = np.float32(-np.inf)
    for i in range(num):
        scores[i] = scores[i] * np.float32(scale) if i >= hidden else np.float32(-np.inf)
        peak = max(peak, scores[i])
    if num <= hidden:
        scores[:num] = np.float32(0.0)
        return peak, np.float32(0.0)
    for i in range(num):
        scores[i] = exp(scores[i] - peak) if i >= hidden else np.float32(0.0)
    return peak, _sum(scores, num)


@inner()
def _gather(columns: Any, start: int, span: tuple[int, int], source: Any, out: Any) -> None:
    """Put the tokens first .. last - 1 of a row's own text side by side: source f32[S, D]."""
    for i in range(span[0], span[1]):
        slot = i if i < start else start + columns[i - start]
        for d in range(source.shape[1]):
            out[i - span[0], d] = source[slot, d]


@inner()
def _lies_in_order(columns: Any, num: int) -> bool:
    """Whether the first `num` columns that a row sees are the first of the pass."""
    for i in range(num):  # noqa: SIM110  numba knows no generators inside all()
        if columns[i] != i:
            return False
    return True


@inner()
def _attend_rows(
    keys: Any, values: Any, text: Any, s: Any, members: Any, place: Any, worker: Any
) -> None:
    """The chunk `place` = (kv, chunk) for the rows `members`, whose text begins with these tokens.

    keys, values f32[n, D].
    """
    w, multiply = worker
    kv, c = place
    first, size = c * CHUNK, keys.shape[1]
    group = s.q.shape[1] // s.k.shape[1]
    queries, scores = s.queries[w, : len(members) * group], s.scores[w, : len(members) * group]
    for i in range(len(members)):
        for h in range(group):
            for d in range(size):
                queries[i * group + h, d] = s.q[members[i], (kv * group + h) * size + d]
    operands = (locate(queries), len(queries), size, locate(keys), 0, 0, locate(scores))
    call(multiply, (*operands, CHUNK, 0, len(keys)))
    scale = 1.0 / np.sqrt(size)
    for i in range(len(members)):
        r = members[i]
        num = min(CHUNK, text.lengths[r] - first)
        for h in range(group):
            s.peaks[r, kv * group + h, c], s.totals[r, kv * group + h, c] = _soften(
                scores[i * group + h], num, text.lows[r] - first, scale
            )
    _weigh_values(values, text, s, members, place, w)


@inner()
def _weigh_values(
    values: Any, text: Any, s: Any, members: Any, place: tuple[int, int], w: int
) -> None:
    """The values f32[n, D] that the members' scores weigh; queries of one length share a pass."""
    kv, c = place
    group = s.q.shape[1] // s.k.shape[1]
    # The scores are done, so their queries' place takes the results.
    results, scores = s.queries[w], s.scores[w]
    queries = len(members) * group
    done = 0
    while done < queries:
        num = min(CHUNK, text.lengths[members[done // group]] - c * CHUNK)
        taken = 1
        while taken < MAX_QUERIES and done + taken < queries:
            if num != min(CHUNK, text.lengths[members[(done + taken) // group]] - c * CHUNK):
                break
            taken += 1
        weigh_rows(taken, results, scores, values, num, done)
        done += taken
    for i in range(len(members)):
        for h in range(group):
            for d in range(values.shape[1]):
                s.sums[members[i], kv * group + h, c, d] = results[i * group + h, d]


@inner()
def attend(keys: Any, values: Any, text: Any, s: Any, place: Any, worker: Any) -> None:
    """One chunk for all columns of a row and all query heads of a key head: place = (b, kv, chunk).

    keys, values f32[n, D] of that cache row and key head. The state `s` has the queries, gives
    scratch to the worker, and takes the chunk's peaks, totals and sums. worker: its number, and the
    address of the routine that multiplies with float32.
    """
    w = worker[0]
    b, kv, c = place
    start, first = text.starts[b], c * CHUNK
    members = np.empty(text.firsts[b + 1] - text.firsts[b], np.int64)
    num, last = 0, first
    for r in range(text.firsts[b], text.firsts[b + 1]):
        end = min(first + CHUNK, text.lengths[r])
        if first >= end:
            continue
        if _lies_in_order(text.columns[r], end - start):
            members[num] = r
            num += 1
            last = max(last, end)
        else:
            _gather(text.columns[r], start, (first, end), keys, s.gathered[w, 0])
            _gather(text.columns[r], start, (first, end), values, s.gathered[w, 1])
            near, found = s.gathered[w, 0, : end - first], s.gathered[w, 1, : end - first]
            _attend_rows(near, found, text, s, np.full(1, r), (kv, c), worker)
    if num > 0:
        _attend_rows(keys[first:last], values[first:last], text, s, members[:num], (kv, c), worker)


@inner()
def combine(lengths: Any, parts: Any, out: Any) -> None:
    """Put the chunks of every head together, first chunk first; out f32[R, heads * D]."""
    rows, heads, _, size = parts.sums.shape
    for r in range(rows):
        chunks = (lengths[r] + CHUNK - 1) // CHUNK
        for h in range(heads):
            peak = np.float32(-np.inf)
            for c in range(chunks):
                peak = max(peak, parts.peaks[r, h, c])
            total = np.float32(0.0)
            for d in range(size):
                out[r, h * size + d] = np.float32(0.0)
            for c in range(chunks):
                if parts.totals[r, h, c] != 0:
                    factor = exp(parts.peaks[r, h, c] - peak)
                    total += factor * parts.totals[r, h, c]
                    for d in range(size):
                        out[r, h * size + d] += factor * parts.sums[r, h, c, d]
            for d in range(size):
                out[r, h * size + d] /= total
