"""Keys and values of committed tokens, preallocated, with a length per row; no transformers here.

Row r holds the tokens before its anchor in slots 0 .. lengths[r]-1. A forward pass writes the
anchor and its draft behind them; `keep` then makes the accepted ones permanent:

    slot      0 1 2 3 4 | 5 6 7 8          lengths[r] = 5
              committed | anchor + draft   keep [0, 1, 3]: slots 5, 6, 8 become 5, 6, 7
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftproof.errors import LimitExceeded


@dataclass(frozen=True, slots=True)
class Slots:
    """Where one forward pass writes: W columns behind each row and what earlier passes left."""

    first_row: int
    starts: tuple[int, ...]
    """Committed tokens per row."""
    width: int
    earlier: int
    """Columns behind the committed tokens that this pass leaves in place: E."""

    @property
    def extent(self) -> int:
        """Slots that a reader has to see."""
        return max(self.starts) + self.earlier + self.width


class KVCache:
    """Keys and values of L layers, f[R, heads, capacity, head_dim] each, made on first use."""

    def __init__(
        self, rows: int, capacity: int, max_bytes: int | None = None, bytes_per_token: int = 0
    ) -> None:
        """`bytes_per_token` is what the model will store, all layers together, for one token.

        More than `max_bytes` for the whole cache is refused here, before anything is allocated.
        """
        needed = rows * capacity * bytes_per_token
        if max_bytes is not None and needed > max_bytes:
            raise LimitExceeded(
                f"the key/value cache for {rows} rows of {capacity} tokens takes "
                f"{_gib(needed)} and at most {_gib(max_bytes)} are allowed; lower max_tokens, the "
                "prompt's length or max_batch, or raise max_cache_bytes"
            )
        self.rows = rows
        self.capacity = capacity
        self.lengths = [0] * rows
        self.max_bytes = max_bytes
        self._stacked: tuple[torch.Tensor, torch.Tensor] | None = None
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}

    @property
    def bytes_per_token(self) -> int:
        """What one token of one row takes in the layers that were written so far."""
        stores = (*self._keys.values(), *self._values.values())
        return sum(store.shape[1] * store.shape[3] * store.element_size() for store in stores)

    def slots(self, first_row: int, rows: int, width: int, earlier: int = 0) -> Slots:
        """The slots behind `rows` rows from `first_row`; refuses to run past the end."""
        starts = tuple(self.lengths[first_row : first_row + rows])
        slots = Slots(first_row, starts, width, earlier)
        if slots.extent > self.capacity:
            raise LimitExceeded(
                f"{slots.extent} cache slots are needed and {self.capacity} were allocated; "
                "allocate the cache for prompt + max_tokens + depth"
            )
        return slots

    @torch.inference_mode()
    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: Slots
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store f[B, heads, W, head_dim]; returns views f[B, heads, extent, head_dim].

        Slots behind a row's own end hold stale numbers, never NaN: mask them.
        """
        if layer not in self._keys:
            self._keys[layer] = self._allocate(keys)
            self._values[layer] = self._allocate(values)
        rows = slice(slots.first_row, slots.first_row + len(slots.starts))
        views = []
        for store, new in ((self._keys[layer], keys), (self._values[layer], values)):
            for row, start in enumerate(slots.starts):
                first = start + slots.earlier
                store[slots.first_row + row, :, first : first + slots.width] = new[row]
            views.append(store[rows, :, : slots.extent])
        return views[0], views[1]

    @torch.inference_mode()
    def reserve(self, layers: int, heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all layers, one tensor each: f32[L, R, heads, capacity, head_dim]."""
        if self._stacked is None:
            assert not self._keys, "layers were written one by one before"
            shape = (layers, self.rows, heads, self.capacity, head_dim)
            # numpy asks for huge pages where torch does not: attention over 4096 tokens waits for
            # the memory a third less.
            self._stacked = (
                torch.from_numpy(np.zeros(shape, np.float32)),
                torch.from_numpy(np.zeros(shape, np.float32)),
            )
            self._keys = dict(enumerate(self._stacked[0]))
            self._values = dict(enumerate(self._stacked[1]))
        return self._stacked

    @torch.inference_mode()
    def keep(self, row: int, columns: Sequence[int]) -> None:
        """Commit `columns` (ascending, as fed behind `row`) and drop the others."""
        start = self.lengths[row]
        if list(columns) != list(range(len(columns))):
            source = torch.tensor([start + column for column in columns])
            for store in (*self._keys.values(), *self._values.values()):
                kept = store[row, :, source.to(store.device)]
                store[row, :, start : start + len(columns)] = kept
        self.lengths[row] = start + len(columns)

    def truncate(self, row: int, length: int) -> None:
        """Forget everything of `row` from slot `length` on."""
        assert 0 <= length <= self.lengths[row]
        self.lengths[row] = length

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int | None = None) -> None:
        """Make row `target` hold what row `source` holds, or its first `length` tokens."""
        length = self.lengths[source] if length is None else length
        for store in (*self._keys.values(), *self._values.values()):
            store[target, :, :length] = store[source, :, :length]
        self.lengths[target] = length

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        shape = (self.rows, like.shape[1], self.capacity, like.shape[3])
        # Zeros, not empty: a masked slot has weight 0, and 0 * NaN would still be NaN.
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
