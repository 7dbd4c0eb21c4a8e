"""The layers of a Llama-shaped decoder over a few rows, compiled; knows arrays, not models.

One call runs all layers and the head: RMS norm, projections to queries, keys and values, rotary
embedding, attention over a cache, output projection, RMS norm, gated MLP; then the final norm and
the logits. A team of threads shares its items (`team.py`); what is too small to share, the thread
that finishes a phase does at its end. The arithmetic of a row does not depend on the rows beside
it, so its result has the same bits in any company.

numba's disk cache notices changes in this file only: touch it after changing its imports.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numba.core import types as numba_types
from numba.np.numpy_support import carray

from draftproof.kernels.attention import CHUNK, attend, combine, exp
from draftproof.kernels.matmul import multiply_rows
from draftproof.kernels.team import (
    FINISHED,
    READY,
    TAKEN,
    TEAM_SIZE,
    compiled,
    count,
    intrinsic,
    publish,
    wait,
)

types: Any = numba_types

QKV, ATTENTION, OUTPUT, GATE, DOWN, PHASES = range(6)
HEAD = 7
# What a waiting thread fetches ahead; more would not stay in a second-level cache.
_FETCH_BYTES = 1 << 17


class Weights(NamedTuple):
    """A decoder's numbers, by address.

    Lists of arrays would need methods that numba compiles anew in every process.
    """

    places: Any
    """i64[L, 25], 0 for none: weights, scales, biases of q, k, v, o, gate, up, down, then the norms
    before attention, before the MLP, of queries, of keys."""
    shapes: Any
    """i64[8, 2]: (outputs, inputs) of those seven and the head."""
    head: Any
    """i64[3]: weight, scale, bias."""
    norm: Any
    """f32[H]: the final norm."""
    like: Any
    """f32[0, 0] or i8[0, 0]: the weights' type; all else is float32."""
    eps: float


class State(NamedTuple):
    """Arrays that one pass over R rows fills."""

    x: Any
    """f32[R, H]: the residual stream."""
    h: Any
    """f32[R, H]: what the next projection reads."""
    y: Any
    """f32[R, H]: what is added to x."""
    q: Any
    k: Any
    v: Any
    mixed: Any
    """f32[R, heads * D]: attention's result."""
    gate: Any
    up: Any
    peaks: Any
    """f32[R, heads, chunks]: largest score of each chunk of attention."""
    totals: Any
    """f32[R, heads, chunks]: its softmax's denominator, relative to the peak."""
    sums: Any
    """f32[R, heads, chunks, D]: its weighted sum of values, likewise."""
    queries: Any
    """f32[workers, W * heads of a group, D]: attention's scratch, as are the next two."""
    scores: Any
    """f32[workers, W * heads of a group, CHUNK]"""
    gathered: Any
    """f32[workers, 2, CHUNK, D]"""
    keys: Any
    """f32[L, rows, kv_heads, S, D]: the cache; values likewise."""
    values: Any
    cos: Any
    """f32[R, D]; sin likewise."""
    sin: Any
    asked: Any
    """i64[A]: rows whose logits are wanted."""
    logits: Any
    """f32[A, V]"""


@compiled(fastmath={"reassoc", "contract"})
def _square_sum(x: Any) -> Any:
    total = np.float32(0.0)
    for i in range(len(x)):
        total += x[i] * x[i]
    return total


@compiled()
def _norm(x: Any, weight: Any, eps: float, out: Any) -> None:
    """RMS norm of one row: x, weight, out f32[H]."""
    mean = _square_sum(x) / np.float32(len(x))
    factor = np.float32(1.0) / np.float32(np.sqrt(mean + np.float32(eps)))
    for i in range(len(x)):
        out[i] = weight[i] * (x[i] * factor)


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
                _norm(head, norm, eps, head)
            for i in range(half):
                a, b = head[i], head[i + half]
                head[i] = a * cos[r, i] - b * sin[r, i]
                head[i + half] = b * cos[r, i + half] + a * sin[r, i + half]


@compiled()
def _store(k: Any, v: Any, keys: Any, values: Any, text: Any) -> None:
    """Put k, v f32[R, kv_heads * D] behind each cache row's start."""
    kv_heads, size = keys.shape[1], keys.shape[3]
    width = text.columns.shape[1]
    for r in range(k.shape[0]):
        row = text.first_row + r // width
        slot = text.starts[r // width] + r % width
        for h in range(kv_heads):
            for d in range(size):
                keys[row, h, slot, d] = k[r, h * size + d]
                values[row, h, slot, d] = v[r, h * size + d]


@compiled()
def _silu_times(gate: Any, up: Any, start: int, stop: int) -> None:
    """gate = silu(gate) * up in columns start to stop; f32[R, I]"""
    for r in range(gate.shape[0]):
        for o in range(start, stop):
            g = gate[r, o]
            e = exp(-abs(g))
            s = np.float32(1.0) / (np.float32(1.0) + e)
            gate[r, o] = g * (s if g >= 0 else e * s) * up[r, o]


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
def _project(x: Any, weights: Any, at: tuple[int, int, int], item: Any, y: Any) -> None:
    """Fill the item's columns of y with x @ w.T * scale + bias; at: the three addresses."""
    outputs, inputs = weights.shapes[item[1]]
    weight = carray(_pointer(at[0], weights.like), (outputs, inputs))
    scale = _vector(at[1], outputs, weights.norm)
    bias = _vector(at[2], outputs, weights.norm)
    multiply_rows(x, weight, scale, bias, y, item[2], item[3])


@compiled()
def _do(weights: Any, text: Any, s: Any, item: Any, layer: int, worker: int) -> None:
    """Compute one item; the phases before it have ended."""
    phase, linear = item[0], item[1]
    if phase == ATTENTION:
        kv_heads = s.keys.shape[2]
        b, kv = item[1] // kv_heads, item[1] % kv_heads
        row = text.first_row + b
        keys, values = s.keys[layer, row, kv], s.values[layer, row, kv]
        attend(s.q, keys, values, text, s, (b, kv, item[2]), worker)
        return
    if linear == HEAD:
        head = (weights.head[0], weights.head[1], weights.head[2])
        _project(s.h[: len(s.asked)], weights, head, item, s.logits)
        return
    at = weights.places[layer]
    where = (at[linear], at[7 + linear], at[14 + linear])
    if phase == QKV:
        y = s.q if linear == 0 else (s.k if linear == 1 else s.v)
        _project(s.h, weights, where, item, y)
    elif phase == OUTPUT:
        _project(s.mixed, weights, where, item, s.y)
    elif phase == DOWN:
        _project(s.gate, weights, where, item, s.y)
    else:
        _project(s.h, weights, where, item, s.gate)
        _project(s.h, weights, (at[5], at[12], at[19]), item, s.up)
        _silu_times(s.gate, s.up, item[2], item[3])


@compiled()
def _end(weights: Any, text: Any, s: Any, phase: int, layer: int) -> None:
    """What one thread does when all items of a phase are done."""
    at = weights.places[layer]
    rows, hidden = s.x.shape
    size = s.cos.shape[1]
    if phase == QKV:
        q_norm = _vector(at[23], size, weights.norm)
        k_norm = _vector(at[24], size, weights.norm)
        _rotate(s.q, s.q.shape[1] // size, s.cos, s.sin, q_norm, weights.eps)
        _rotate(s.k, s.k.shape[1] // size, s.cos, s.sin, k_norm, weights.eps)
        _store(s.k, s.v, s.keys[layer], s.values[layer], text)
    elif phase == ATTENTION:
        combine(text.lengths, s, s.mixed)
    elif phase != GATE:
        for r in range(rows):
            for i in range(hidden):
                s.x[r, i] += s.y[r, i]
        if phase == OUTPUT:
            norm = _vector(at[22], hidden, weights.norm)
        elif layer + 1 < len(weights.places):
            norm = _vector(weights.places[layer + 1, 21], hidden, weights.norm)
        else:
            for i in range(len(s.asked)):
                _norm(s.x[s.asked[i]], weights.norm, weights.eps, s.h[i])
            return
        for r in range(rows):
            _norm(s.x[r], norm, weights.eps, s.h[r])


@compiled()
def _fetched(weights: Any, text: Any, s: Any, item: Any, layer: int) -> tuple[int, int]:
    """Address and size of the weights that an item reads first."""
    phase, linear = item[0], item[1]
    if phase == ATTENTION:
        kv_heads = s.keys.shape[2]
        keys = s.keys[layer, text.first_row + item[1] // kv_heads, item[1] % kv_heads]
        chunk_bytes = CHUNK * keys.shape[1] * 4
        return keys.ctypes.data + item[2] * chunk_bytes, chunk_bytes
    address = weights.head[0] if linear == HEAD else weights.places[layer, linear]
    row_bytes = weights.shapes[linear, 1] * weights.like.itemsize
    return address + item[2] * row_bytes, min(_FETCH_BYTES, (item[3] - item[2]) * row_bytes)


@compiled()
def _work(
    weights: Any, text: Any, s: Any, items: Any, ends: Any, heads: Any, team: Any, worker: int
) -> None:
    """Take items until none is left."""
    layers, per_layer = len(weights.places), len(items)
    total = layers * per_layer + len(heads)
    ticket: int = count(team, TAKEN)
    while ticket < total:
        layer = min(layers, ticket // per_layer)
        place = ticket - layer * per_layer
        item = items[place] if layer < layers else heads[place]
        phase = item[0] if layer < layers else 0
        address, num_bytes = _fetched(weights, text, s, item, layer)
        wait(team, layer * PHASES + phase, address, num_bytes)
        _do(weights, text, s, item, layer, worker)
        if layer < layers and count(team, FINISHED) + 1 == layer * per_layer + ends[phase]:
            _end(weights, text, s, phase, layer)
            publish(team, READY, layer * PHASES + phase + 1)
        ticket = count(team, TAKEN)


@compiled(parallel=True)
def run(weights: Any, text: Any, s: Any, items: Any, ends: Any, heads: Any, workers: int) -> None:
    """One pass: s.x, the embedded rows, to s.logits of the rows asked for.

    items i64[N, 4]: those of one layer in the order of phases, of which phase f ends before
    ends[f]; heads: those of the head.
    """
    team = np.zeros(TEAM_SIZE, np.int64)
    norm = _vector(weights.places[0, 21], s.x.shape[1], weights.norm)
    for r in range(len(s.x)):
        _norm(s.x[r], norm, weights.eps, s.h[r])
    for worker in prange(workers):
        _work(weights, text, s, items, ends, heads, team, worker)
