"""Keys and values of committed tokens, preallocated, with a length per row; no transformers here.

Row r holds the tokens before its anchor in slots 0 .. lengths[r]-1. A forward pass writes the
anchor and its draft behind them; `keep` then makes the accepted ones permanent:

    slot      0 1 2 3 4 | 5 6 7 8          lengths[r] = 5
              committed | anchor + draft   keep [0, 1, 3]: slots 5, 6, 8 become 5, 6, 7

Each row owns a region of one store, which is as long as the tokens of all regions together. A
cache has either rows of one size from the start, or a pool of tokens from which rows are opened
and closed, so that short and long sequences share the memory:

    store     [ row 2: 300 tokens | free | row 0: 90 | row 1: 1200 | free ]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftproof.config import MAX_NODES
from draftproof.errors import LimitExceeded
from draftproof.models.regions import Region, Regions

SCRATCH = MAX_NODES + 2
"""Slots behind a text for one draft and the pass that catches up."""


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
    """Keys and values of L layers for `rows` rows, made on first use.

    Of each layer f[T * heads * head_dim], T tokens in all; a region of n tokens in it is
    f[heads, n, head_dim].
    """

    def __init__(
        self,
        rows: int,
        capacity: int,
        max_bytes: int | None = None,
        bytes_per_token: int = 0,
        pool: bool = False,
    ) -> None:
        """`capacity` tokens for each row; with `pool`, for all rows that will be opened together.

        `bytes_per_token` is what the model will store, all layers together, for one token. More
        than `max_bytes` for the whole cache is refused here, before anything is allocated.
        """
        tokens = capacity if pool else rows * capacity
        needed = tokens * bytes_per_token
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
        self.pool = pool
        self._regions = Regions(tokens)
        self._places = [Region(0, 0)] * rows
        if not pool:
            self._places = [self._regions.take(capacity) or Region(0, 0) for _ in range(rows)]
        self._stacked: tuple[Tensor, Tensor] | None = None
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._key_shapes: dict[int, tuple[int, int]] = {}
        self._value_shapes: dict[int, tuple[int, int]] = {}
        """Layer -> heads, head_dim; some models' keys are wider than their values."""

    @property
    def bytes_per_token(self) -> int:
        """What one token of one row takes in the layers that were written so far."""
        return sum(
            heads * size * stores[layer].element_size()
            for stores in (self._keys, self._values)
            for layer, (heads, size) in self._shapes(stores).items()
        )

    @property
    def num_free(self) -> int:
        """Tokens of the pool that no open row owns."""
        return self._regions.num_free

    def size(self, row: int) -> int:
        """Tokens that an open row has room for; 0 for a closed one."""
        return self._places[row].size

    def places(self, first_row: int, rows: int) -> list[tuple[int, int]]:
        """Offset and size of the regions of `rows` rows, in tokens."""
        regions = self._places[first_row : first_row + rows]
        return [(region.offset, region.size) for region in regions]

    def slots(self, first_row: int, rows: int, width: int, earlier: int = 0) -> Slots:
        """The slots behind `rows` rows from `first_row`; refuses to run past the end."""
        starts = tuple(self.lengths[first_row : first_row + rows])
        for row, start in enumerate(starts, start=first_row):
            needed, size = start + earlier + width, self._places[row].size
            if needed > size:
                raise LimitExceeded(
                    f"{needed} cache slots are needed and {size} were allocated; "
                    "allocate the cache for prompt + max_tokens + depth"
                )
        return Slots(first_row, starts, width, earlier)

    def open(self, row: int, size: int) -> bool:
        """Give a closed row a region for `size` tokens; False where the pool has too few.

        Rows of one size have theirs from the start.
        """
        if not self.pool:
            return True
        assert self._places[row].size == 0, "the row is open"
        region = self._take(size)
        if region is not None:
            self._places[row] = region
        return region is not None

    @torch.inference_mode()
    def grow(self, row: int, size: int) -> bool:
        """Give an open row another, larger region with what it holds; False where there is none."""
        region = self._take(size)
        if region is None:
            return False
        before, length = self._places[row], self.lengths[row]
        for stores in (self._keys, self._values):
            for layer in stores:
                held = self._region(stores, layer, before)[:, :length]
                self._region(stores, layer, region)[:, :length] = held
        self._places[row] = region
        self._regions.give_back(before)
        return True

    def close(self, row: int) -> None:
        """Forget everything of a row; that of a pool gives its region back."""
        if self.pool:
            self._regions.give_back(self._places[row])
            self._places[row] = Region(0, 0)
        self.lengths[row] = 0

    def move(self, source: int, target: int) -> None:
        """Let row `target` be what row `source` was, which is then empty; `target` was done with.

        In a pool, only the regions change hands.
        """
        if self.pool:
            self.close(target)
            places, lengths = self._places, self.lengths
            places[source], places[target] = places[target], places[source]
            lengths[source], lengths[target] = 0, lengths[source]
        else:
            self.copy(source, target)
            self.close(source)

    @torch.inference_mode()
    def write(
        self, layer: int, keys: Tensor, values: Tensor, slots: Slots
    ) -> tuple[Tensor, Tensor]:
        """Store f[B, heads, W, head_dim]; returns f[B, heads, extent, head_dim].

        Slots behind a row's own end hold stale numbers, never NaN: mask them.
        """
        if layer not in self._keys:
            self._key_shapes[layer] = (keys.shape[1], keys.shape[3])
            self._value_shapes[layer] = (values.shape[1], values.shape[3])
            self._keys[layer] = self._allocate(keys)
            self._values[layer] = self._allocate(values)
        for row, start in enumerate(slots.starts):
            span = slice(start + slots.earlier, start + slots.earlier + slots.width)
            for store, new in ((self._keys, keys), (self._values, values)):
                self._row(store, layer, slots.first_row + row)[:, span] = new[row]
        return self._read(self._keys, layer, slots), self._read(self._values, layer, slots)

    @torch.inference_mode()
    def reserve(self, layers: int, heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """Keys and values of all layers, one tensor each: f32[L, T * heads * head_dim]."""
        if self._stacked is None:
            assert not self._keys, "layers were written one by one before"
            shape = (layers, self._regions.num_tokens * heads * head_dim)
            # numpy asks for huge pages where torch does not: attention over 4096 tokens waits for
            # the memory a third less.
            self._stacked = (
                torch.from_numpy(np.zeros(shape, np.float32)),
                torch.from_numpy(np.zeros(shape, np.float32)),
            )
            self._keys = dict(enumerate(self._stacked[0]))
            self._values = dict(enumerate(self._stacked[1]))
            self._key_shapes = dict.fromkeys(range(layers), (heads, head_dim))
            self._value_shapes = self._key_shapes
        return self._stacked

    @torch.inference_mode()
    def keep(self, row: int, columns: Sequence[int]) -> None:
        """Commit `columns` (ascending, as fed behind `row`) and drop the others."""
        start = self.lengths[row]
        if list(columns) != list(range(len(columns))):
            source = torch.tensor([start + column for column in columns])
            for stores in (self._keys, self._values):
                for layer in stores:
                    held = self._row(stores, layer, row)
                    held[:, start : start + len(columns)] = held[:, source.to(held.device)]
        self.lengths[row] = start + len(columns)

    def truncate(self, row: int, length: int) -> None:
        """Forget everything of `row` from slot `length` on."""
        assert 0 <= length <= self.lengths[row]
        self.lengths[row] = length

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int | None = None) -> None:
        """Make row `target` hold what row `source` holds, or its first `length` tokens."""
        length = self.lengths[source] if length is None else length
        for stores in (self._keys, self._values):
            for layer in stores:
                held = self._row(stores, layer, source)[:, :length]
                self._row(stores, layer, target)[:, :length] = held
        self.lengths[target] = length

    def _shapes(self, stores: dict[int, Tensor]) -> dict[int, tuple[int, int]]:
        return self._key_shapes if stores is self._keys else self._value_shapes

    def _row(self, stores: dict[int, Tensor], layer: int, row: int) -> Tensor:
        """f[heads, n, head_dim] of one row of one layer."""
        return self._region(stores, layer, self._places[row])

    def _region(self, stores: dict[int, Tensor], layer: int, region: Region) -> Tensor:
        heads, width = self._shapes(stores)[layer]
        return self._flat(stores, layer, region).view(heads, region.size, width)

    def _flat(self, stores: dict[int, Tensor], layer: int, region: Region) -> Tensor:
        heads, width = self._shapes(stores)[layer]
        numbers = heads * width
        return stores[layer][region.offset * numbers : (region.offset + region.size) * numbers]

    def _read(self, stores: dict[int, Tensor], layer: int, slots: Slots) -> Tensor:
        """f[B, heads, extent, head_dim]: a view where the rows' regions lie side by side."""
        rows = range(slots.first_row, slots.first_row + len(slots.starts))
        heads, width = self._shapes(stores)[layer]
        if not self.pool:
            store = stores[layer].view(self.rows, heads, self.capacity, width)
            return store[rows.start : rows.stop, :, : slots.extent]
        if len(rows) == 1:
            return self._row(stores, layer, rows.start)[None, :, : slots.extent]
        whole = stores[layer].new_zeros((len(rows), heads, slots.extent, width))
        for b, row in enumerate(rows):
            end = slots.starts[b] + slots.earlier + slots.width
            whole[b, :, :end] = self._row(stores, layer, row)[:, :end]
        return whole

    def _allocate(self, like: Tensor) -> Tensor:
        # Zeros, not empty: a masked slot has weight 0, and 0 * NaN would still be NaN.
        numbers = self._regions.num_tokens * like.shape[1] * like.shape[3]
        return torch.zeros(numbers, dtype=like.dtype, device=like.device)

    def _take(self, size: int) -> Region | None:
        region = self._regions.take(size)
        if region is None and size <= self.num_free:
            self._close_gaps()
            region = self._regions.take(size)
        return region

    @torch.inference_mode()
    def _close_gaps(self) -> None:
        """Move the open rows' regions together, so that what is free lies in one piece."""
        moves = dict(self._regions.close_gaps())
        for before in sorted(region for region in self._places if region.size):
            for stores in (self._keys, self._values):
                for layer in stores:
                    # A region may overlap with where it goes.
                    held = self._flat(stores, layer, before).clone()
                    self._flat(stores, layer, moves[before]).copy_(held)
        self._places = [moves.get(region, region) for region in self._places]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
