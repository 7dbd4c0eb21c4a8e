"""The layers of a Llama-shaped decoder over a few rows, compiled; knows arrays, not models.

One call runs all layers and the head: RMS norm, projections to queries, keys and values, rotary
embedding, attention over a cache, output projection, RMS norm, gated MLP; then the final norm and
the logits. A team of threads shares its items (`team.py`); what is too small to share, the thread
that finishes a phase does at its end. The arithmetic of a row does not depend on the rows beside
it, so its result has the same bits in any company.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from draftproof.kernels.address import locate, pointer, vector
from draftproof.kernels.attention import attend, combine, exp
from draftproof.kernels.routine import Routine, call
from draftproof.kernels.state import CHUNK, unpack
from draftproof.kernels.team import (
    FINISHED,
    READY,
    TAKEN,
    TEAM_SIZE,
    compiled,
    count,
    inner,
    publish,
    wait,
)

QKV, ATTENTION, OUTPUT, GATE, DOWN, PHASES = range(6)
HEAD = 7
# What a waiting thread fetches ahead; more would not stay in a second-level cache.
_FETCH_BYTES = 1 << 17


@inner(fastmath={"reassoc", "contract"})
def _square_sum(x: Any) -> Any:
    total = np.float32(0.0)
    for i in range(len(x)):
        total += x[i] * x[i]
    return total


@inner()
def _norm(x: Any, weight: Any, eps: float, out: Any) -> None:
    """RMS norm of one row: x, weight, out f32[H]."""
    mean = _square_sum(x) / np.float32(len(x))
    factor = np.float32(1.0) / np.float32(np.sqrt(mean + np.float32(eps)))
    for i in range(len(x)):
        out[i] = weight[i] * (x[i] * factor)


@inner()
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


@inner()
def _head(stored: Any, text: Any, b: int, kv: int, kv_heads: int, size: int) -> Any:
    """f32[n, D]: what cache row b stores of one key head; stored f32[T * kv_heads * D]."""
    offset, num = text.places[b, 0], text.places[b, 1]
    first = (offset * kv_heads + kv * num) * size
    return stored[first : first + num * size].reshape(num, size)


@inner()
def _store(new: Any, stored: Any, text: Any, size: int) -> None:
    """Put new f32[R, kv_heads * D] behind what each cache row holds."""
    kv_heads = new.shape[1] // size
    for b in range(len(text.starts)):
        for h in range(kv_heads):
            head = _head(stored, text, b, h, kv_heads, size)
            slot = text.starts[b] + text.earlier[0]
            for r in range(text.firsts[b], text.firsts[b + 1]):
                for d in range(size):
                    head[slot, d] = new[r, h * size + d]
                slot += 1


@inner()
def _silu_times(gate: Any, up: Any, start: int, stop: int) -> None:
    """gate = silu(gate) * up in columns start to stop; f32[R, I]"""
    for r in range(gate.shape[0]):
        for o in range(start, stop):
            g = gate[r, o]
            e = exp(-abs(g))
            s = np.float32(1.0) / (np.float32(1.0) + e)
            gate[r, o] = g * (s if g >= 0 else e * s) * up[r, o]


@inner()
def _project(x: Any, weights: Any, at: Any, item: Any, y: Any) -> None:
    """Fill the item's columns of y with x @ w.T * scale + bias; at: the three addresses."""
    rows, inputs = x.shape
    width = y.shape[1]
    numbers = (locate(x), rows, inputs, at[0], at[1], at[2], locate(y), width, item[2], item[3])
    call(weights.products[0], numbers)


@inner()
def _operands(s: Any, phase: int, linear: int) -> Any:
    """What a linear layer reads and what it fills."""
    if linear == HEAD:
        return s.h[: len(s.asked)], s.logits
    if phase == QKV:
        return s.h, s.q if linear == 0 else (s.k if linear == 1 else s.v)
    if phase == GATE:
        return s.h, s.gate if linear == 4 else s.up
    return (s.mixed if phase == OUTPUT else s.gate), s.y


@inner()
def _do(weights: Any, text: Any, s: Any, item: Any, layer: int, worker: int) -> None:
    """Compute one item; the phases before it have ended."""
    phase, linear = item[0], item[1]
    if phase == ATTENTION:
        size = s.cos.shape[1]
        kv_heads = s.k.shape[1] // size
        b, kv = item[1] // kv_heads, item[1] % kv_heads
        keys = _head(s.keys[layer], text, b, kv, kv_heads, size)
        values = _head(s.values[layer], text, b, kv, kv_heads, size)
        attend(keys, values, text, s, (b, kv, item[2]), (worker, weights.products[1]))
        return
    # One call for all layers, since each would be compiled anew.
    for i in range(linear, linear + (2 if phase == GATE else 1)):
        x, y = _operands(s, phase, i)
        if i == HEAD:
            where = (weights.head[0], weights.head[1], weights.head[2])
        else:
            at = weights.places[layer]
            where = (at[i], at[7 + i], at[14 + i])
        _project(x, weights, where, item, y)
    if phase == GATE:
        _silu_times(s.gate, s.up, item[2], item[3])


@inner()
def _end(weights: Any, text: Any, s: Any, phase: int, layer: int) -> None:
    """What one thread does when all items of a phase are done."""
    at = weights.places[layer]
    rows, hidden = s.x.shape
    size = s.cos.shape[1]
    if phase == QKV:
        q_norm = vector(at[23], size, weights.norm)
        k_norm = vector(at[24], size, weights.norm)
        _rotate(s.q, s.q.shape[1] // size, s.cos, s.sin, q_norm, weights.eps[0])
        _rotate(s.k, s.k.shape[1] // size, s.cos, s.sin, k_norm, weights.eps[0])
        _store(s.k, s.keys[layer], text, size)
        _store(s.v, s.values[layer], text, size)
    elif phase == ATTENTION:
        combine(text.lengths, s, s.mixed)
    elif phase != GATE:
        for r in range(rows):
            for i in range(hidden):
                s.x[r, i] += s.y[r, i]
        if phase == OUTPUT:
            norm = vector(at[22], hidden, weights.norm)
        elif layer + 1 < len(weights.places):
            norm = vector(weights.places[layer + 1, 21], hidden, weights.norm)
        else:
            for i in range(len(s.asked)):
                _norm(s.x[s.asked[i]], weights.norm, weights.eps[0], s.h[i])
            return
        for r in range(rows):
            _norm(s.x[r], norm, weights.eps[0], s.h[r])


@inner()
def _fetched(weights: Any, text: Any, s: Any, item: Any, layer: int) -> tuple[int, int]:
    """Address and size of the weights that an item reads first."""
    phase, linear = item[0], item[1]
    if phase == ATTENTION:
        size = s.cos.shape[1]
        kv_heads = s.k.shape[1] // size
        b, kv = item[1] // kv_heads, item[1] % kv_heads
        keys = _head(s.keys[layer], text, b, kv, kv_heads, size)
        chunk_bytes = CHUNK * size * 4
        return locate(keys) + item[2] * chunk_bytes, chunk_bytes
    address = weights.head[0] if linear == HEAD else weights.places[layer, linear]
    row_bytes = weights.shapes[linear, 1] * weights.products[2]
    return address + item[2] * row_bytes, min(_FETCH_BYTES, (item[3] - item[2]) * row_bytes)


def _work(place: int, size: int, counters: int, worker: int) -> None:
    """Take items until none is left, as each thread of a team does.

    One pass from the embedded rows to the logits of the rows asked for; `place` and `size` are for
    `state.unpack`, `counters` is the address of the team's.
    """
    team = carray(pointer(counters, np.empty(0, np.int64)), (TEAM_SIZE,))
    weights, text, s, (items, ends, heads) = unpack(place, size)
    layers, per_layer = len(weights.places), len(items)
    total = layers * per_layer + len(heads)
    ticket: int = count(team, TAKEN)
    while ticket < total:
        layer = min(layers, ticket // per_layer)
        index = ticket - layer * per_layer
        item = items[index] if layer < layers else heads[index]
        phase = item[0] if layer < layers else 0
        address, num_bytes = _fetched(weights, text, s, item, layer)
        wait(team, layer * PHASES + phase, address, num_bytes)
        _do(weights, text, s, item, layer, worker)
        if layer < layers and count(team, FINISHED) + 1 == layer * per_layer + ends[phase]:
            _end(weights, text, s, phase, layer)
            publish(team, READY, layer * PHASES + phase + 1)
        ticket = count(team, TAKEN)


WORK = Routine(_work)


@compiled()
def begin(place: int, size: int) -> None:
    """The norm before the first layer; before any thread works."""
    weights, _, s, _ = unpack(place, size)
    norm = vector(weights.places[0, 21], s.x.shape[1], weights.norm)
    for r in range(len(s.x)):
        _norm(s.x[r], norm, weights.eps[0], s.h[r])
