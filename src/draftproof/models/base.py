"""What Draftproof needs of a model, whatever made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from draftproof.core import TargetOutput, TreeBatch
from draftproof.models.cache import KVCache


class TargetModel(Protocol):
    """A decoder that scores token trees against a `KVCache` it does not own."""

    name: str
    vocab_size: int
    """V, the width of the logits."""
    max_positions: int | None
    """Longest sequence the model can read, or None when it has no limit."""
    device: torch.device
    cache_bytes_per_token: int
    """What the keys and values of one token take, all layers together."""

    @property
    def pads(self) -> bool:
        """Every row of a batch costs as much as the widest."""
        ...

    def forward(
        self, batch: TreeBatch, cache: KVCache, columns: Sequence[int] | None = None
    ) -> TargetOutput:
        """Score every column of `batch`, whose row b continues cache row b.

        Given `columns`, the logits are those of column columns[b] of each row b only: f[B, 1, V].

        Writes keys and values behind each row's committed ones and leaves the lengths alone.
        """
        ...

    def prefill(self, tokens: Sequence[int], cache: KVCache, row: int, chunk: int) -> None:
        """Read `tokens` into cache row `row`, `chunk` at a time, and commit them."""
        ...

    def int8_copy(self) -> TargetModel:
        """The same model with its linear layers in int8; UnsupportedModel if that cannot be."""
        ...

    def first_layers(self, num_layers: int) -> TargetModel:
        """The first layers with the final norm and head; it reads the same cache."""
        ...
