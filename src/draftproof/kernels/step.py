"""A decoder's whole forward pass over a few rows, ready to be called with arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numba
import numpy as np

from draftproof.kernels.address import INTEGERS, address_of
from draftproof.kernels.decoder import (
    ATTENTION,
    DOWN,
    GATE,
    HEAD,
    OUTPUT,
    PHASES,
    QKV,
    WORK,
    begin,
)
from draftproof.kernels.matmul import MULTIPLY_ROWS, rows_per_take
from draftproof.kernels.routine import run
from draftproof.kernels.state import CHUNK, State, Text, Weights, Work, table


class Step:
    """Runs all layers and the head; the arrays behind the addresses are the caller's to keep."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        shapes = weights.shapes.tolist()
        self._before = _items_of(shapes, 0, 3, QKV)
        parts = [(3, OUTPUT), (4, GATE), (6, DOWN)]
        self._after = np.concatenate([_items_of(shapes, i, i + 1, phase) for i, phase in parts])
        self._heads = _items_of(shapes, HEAD, HEAD + 1, 0)
        self._items = lru_cache(maxsize=64)(self._all_items)

    def __call__(
        self, x: Any, text: Text, cached: Any, rotary: Any, asked: Any, threads: int
    ) -> Any:
        """Logits f32[A, V] of the rows `asked`, i64[A]; x f32[R, H], embedded, is used up.

        cached: keys and values f32[L, T * kv_heads * D], written behind each row's start;
        rotary: cos and sin f32[R, D]. `threads` is lowered to numba's own limit.
        """
        chunks = _chunks(text)
        kv_heads = int(self._weights.shapes[1, 0]) // rotary[0].shape[1]
        items, ends = self._items(len(text.starts) * kv_heads, chunks)
        state = self._state(x, text, cached, rotary, asked, threads)
        block = table(self._weights, text, state, Work(items, ends, self._heads))
        begin(address_of(block, INTEGERS), len(block))
        run(WORK, block, min(threads, numba.get_num_threads()))
        return state.logits

    def _all_items(self, heads: int, chunks: int) -> tuple[Any, Any]:
        """The items of one layer, with attention over `heads` key heads of all rows; their ends."""
        attention = [
            (ATTENTION, head, chunk, 0) for head in range(heads) for chunk in range(chunks)
        ]
        items = np.concatenate([self._before, np.array(attention, np.int64), self._after])
        return items, np.searchsorted(items[:, 0], np.arange(PHASES), side="right")

    def _state(
        self, x: Any, text: Text, cached: Any, rotary: Any, asked: Any, workers: int
    ) -> State:
        rows = len(x)
        outputs = self._weights.shapes[:, 0].tolist()
        keys, values = cached
        size = rotary[0].shape[1]
        heads, chunks = outputs[0] // size, _chunks(text)
        together = int(np.diff(text.firsts).max()) * outputs[0] // outputs[1]

        def empty(*shape: int) -> Any:
            return np.empty(shape, np.float32)

        return State(
            x=x,
            h=np.empty_like(x),
            y=np.empty_like(x),
            q=empty(rows, outputs[0]),
            k=empty(rows, outputs[1]),
            v=empty(rows, outputs[2]),
            mixed=empty(rows, outputs[0]),
            gate=empty(rows, outputs[4]),
            up=empty(rows, outputs[5]),
            peaks=empty(rows, heads, chunks),
            totals=empty(rows, heads, chunks),
            sums=empty(rows, heads, chunks, size),
            queries=empty(workers, together, size),
            scores=empty(workers, together, CHUNK),
            gathered=empty(workers, 2, CHUNK, size),
            keys=keys,
            values=values,
            cos=rotary[0],
            sin=rotary[1],
            asked=asked,
            logits=empty(len(asked), outputs[HEAD]),
        )


def products_with(weights: Any) -> Any:
    """`Weights.products` for weights of this NumPy dtype: i64[3]."""
    routines = MULTIPLY_ROWS[weights], MULTIPLY_ROWS[np.dtype(np.float32)]
    return np.array([*(routine.address for routine in routines), weights.itemsize], np.int64)


def _chunks(text: Text) -> int:
    """Chunks of attention that the longest row takes."""
    return -(-int(text.lengths.max()) // CHUNK)


def _items_of(shapes: Any, first: int, last: int, phase: int) -> Any:
    """Items (phase, linear, start, stop) of the linear layers first to last - 1: i64[N, 4]."""
    items = []
    for linear in range(first, last):
        outputs, inputs = shapes[linear]
        rows = rows_per_take(inputs)
        starts = range(0, outputs, rows)
        items += [(phase, linear, start, min(outputs, start + rows)) for start in starts]
    return np.array(items, np.int64).reshape(-1, 4)
