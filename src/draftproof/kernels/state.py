"""The arrays of one forward pass, and how compiled code finds them.

They travel as one table of addresses and shapes. numba would hand over each array, with counted
references, to every function, and compile all of them twice for it; lists of arrays need methods
that it compiles anew in every process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.np.numpy_support import carray

from draftproof.kernels.address import FLOATS, INTEGERS, address_of, pointer
from draftproof.kernels.team import inner

_TYPES = (*FLOATS, *INTEGERS)
CHUNK = 128
"""Tokens that attention takes together."""


class Weights(NamedTuple):
    """A decoder's numbers, most of them by address."""

    places: Any
    """i64[L, 25], 0 for none: weights, scales, biases of q, k, v, o, gate, up, down, then the norms
    before attention, before the MLP, of queries, of keys."""
    shapes: Any
    """i64[8, 2]: (outputs, inputs) of those seven and the head."""
    head: Any
    """i64[3]: weight, scale, bias."""
    norm: Any
    """f32[H]: the final norm."""
    eps: Any
    """f32[1]: of all norms."""
    products: Any
    """i64[3]: addresses of the routines that multiply with these weights and with float32, and the
    bytes of a weight. All else is float32."""


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
    """f32[L, T * kv_heads * D]: the cache; values likewise."""
    values: Any
    cos: Any
    """f32[R, D]; sin likewise."""
    sin: Any
    asked: Any
    """i64[A]: rows whose logits are wanted."""
    logits: Any
    """f32[A, V]"""


class Text(NamedTuple):
    """What the rows of a pass see. Those of cache row b are firsts[b] .. firsts[b + 1] - 1; they
    are its columns E, E + 1, ... behind the E columns of earlier passes."""

    earlier: Any
    """i64[1]: E"""
    firsts: Any
    """i64[B + 1]"""
    starts: Any
    """i64[B]: committed tokens of each cache row."""
    places: Any
    """i64[B, 2]: offset and size of its region, which is f32[kv_heads, size, D], in tokens."""
    columns: Any
    """i64[R, E + W]: the columns behind the committed tokens that a row sees, in order, first."""
    lengths: Any
    """i64[R]: how many tokens a row sees, committed ones included."""
    lows: Any
    """i64[R]: tokens before this place in a row's text lie outside its window."""


class Work(NamedTuple):
    """What there is to do."""

    items: Any
    """i64[N, 4]: those of one layer in the order of phases."""
    ends: Any
    """i64[phases]: how many items there are up to each phase's end."""
    heads: Any
    """i64[M, 4]: those of the head."""


def table(weights: Weights, text: Text, state: State, work: Work) -> Any:
    """Address and shape of each array, i64[N, 5]; the arrays have to outlive it."""
    rows = []
    for array in (*weights, *text, *state, *work):
        rows.append((address_of(array, _TYPES), *array.shape, *(0,) * (4 - array.ndim)))
    return np.array(rows, np.int64)


@inner()
def _one(block: Any, row: int, like: Any) -> Any:
    return carray(pointer(block[row, 0], like), (block[row, 1],))


@inner()
def _two(block: Any, row: int, like: Any) -> Any:
    return carray(pointer(block[row, 0], like), (block[row, 1], block[row, 2]))


@inner()
def _three(block: Any, row: int, like: Any) -> Any:
    return carray(pointer(block[row, 0], like), (block[row, 1], block[row, 2], block[row, 3]))


@inner()
def _four(block: Any, row: int, like: Any) -> Any:
    b = block[row]
    return carray(pointer(b[0], like), (b[1], b[2], b[3], b[4]))


# Where the arrays of each record begin in a table: in the order of their fields.
_TEXT = len(Weights._fields)
_STATE = _TEXT + len(Text._fields)
_WORK = _STATE + len(State._fields)


@inner()
def _state(block: Any, floats: Any) -> Any:
    return State(
        _two(block, _STATE, floats),
        _two(block, _STATE + 1, floats),
        _two(block, _STATE + 2, floats),
        _two(block, _STATE + 3, floats),
        _two(block, _STATE + 4, floats),
        _two(block, _STATE + 5, floats),
        _two(block, _STATE + 6, floats),
        _two(block, _STATE + 7, floats),
        _two(block, _STATE + 8, floats),
        _three(block, _STATE + 9, floats),
        _three(block, _STATE + 10, floats),
        _four(block, _STATE + 11, floats),
        _three(block, _STATE + 12, floats),
        _three(block, _STATE + 13, floats),
        _four(block, _STATE + 14, floats),
        _two(block, _STATE + 15, floats),
        _two(block, _STATE + 16, floats),
        _two(block, _STATE + 17, floats),
        _two(block, _STATE + 18, floats),
        _one(block, _STATE + 19, block),
        _two(block, _STATE + 20, floats),
    )


@inner()
def unpack(place: int, size: int) -> Any:
    """The records whose arrays the `table`, i64[size, 5], at the address `place` lists."""
    block = carray(pointer(place, np.empty(0, np.int64)), (size, 5))
    floats = np.empty(0, np.float32)
    weights = Weights(
        _two(block, 0, block),
        _two(block, 1, block),
        _one(block, 2, block),
        _one(block, 3, floats),
        _one(block, 4, floats),
        _one(block, 5, block),
    )
    text = Text(
        _one(block, _TEXT, block),
        _one(block, _TEXT + 1, block),
        _one(block, _TEXT + 2, block),
        _two(block, _TEXT + 3, block),
        _two(block, _TEXT + 4, block),
        _one(block, _TEXT + 5, block),
        _one(block, _TEXT + 6, block),
    )
    state = _state(block, floats)
    work = Work(
        _two(block, _WORK, block), _one(block, _WORK + 1, block), _two(block, _WORK + 2, block)
    )
    return weights, text, state, work
