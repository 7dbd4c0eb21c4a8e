"""Exact table models in float64: next-token laws given as numbers, run through the real cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from draftproof.core import Draft, Proposal, TargetOutput, TreeBatch
from draftproof.errors import UnsupportedModel
from draftproof.models.cache import KVCache
from draftproof.models.pack import pack

Law = Callable[[tuple[int, ...]], Sequence[float]]
"""Prefix -> probability of each next token."""


class ToyModel:
    """A model whose law of the next token is `law(prefix)`.

    It keeps token ids in the key/value cache as a decoder keeps keys, and rebuilds each prefix
    from there and the tree mask, so a wrong rollback or mask gives a wrong prefix.
    """

    def __init__(self, law: Law, vocab_size: int, max_positions: int | None = None) -> None:
        self.name = "toy"
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.device = torch.device("cpu")
        self.pads = True
        self.cache_bytes_per_token = 2 * torch.float64.itemsize
        self._law = law

    def forward(
        self, batch: TreeBatch, cache: KVCache, columns: Sequence[int] | None = None
    ) -> TargetOutput:
        logits = self._run(batch, cache, first_row=0)
        if columns is not None:
            logits = logits[torch.arange(len(columns)), list(columns)][:, None]
        return TargetOutput(logits)

    def prefill(self, tokens: Sequence[int], cache: KVCache, row: int, chunk: int) -> None:
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            chain = Draft.chain(part[1:], Proposal.POINT)
            self._run(pack(part[:1], [chain], [cache.lengths[row]], self.device), cache, row)
            cache.keep(row, range(len(part)))

    def int8_copy(self) -> ToyModel:
        raise UnsupportedModel("a toy model has no linear layers to copy; give it a toy drafter")

    def first_layers(self, num_layers: int) -> ToyModel:
        raise UnsupportedModel(f"a toy model has no layers, and {num_layers} were asked for")

    def _run(self, batch: TreeBatch, cache: KVCache, first_row: int) -> torch.Tensor:
        rows, width = batch.tokens.shape
        slots = cache.slots(first_row, rows, width, batch.earlier.shape[1])
        ids = batch.tokens.double()[:, None, :, None]
        held = cache.write(0, ids, ids, slots)[0][:, 0, :, 0].long().tolist()
        laws = []
        for start, tokens, masks in zip(slots.starts, held, batch.mask.tolist(), strict=True):
            for mask in masks:
                path = [tokens[start + column] for column, seen in enumerate(mask) if seen]
                laws.append(list(self._law((*tokens[:start], *path))))
        law = torch.tensor(laws, dtype=torch.float64)
        return law.view(rows, width, self.vocab_size).log()


def random_law(vocab_size: int, seed: int, zeros: float = 0.0, order: int = 2) -> Law:
    """Random laws that depend on the last `order` tokens; a share `zeros` of entries is 0."""

    def law(prefix: tuple[int, ...]) -> Sequence[float]:
        rng = np.random.default_rng([seed, *prefix[-order:]])
        weights = rng.exponential(size=vocab_size) ** 2
        weights[rng.random(vocab_size) < zeros] = 0.0
        if weights.sum() == 0:
            weights[rng.integers(vocab_size)] = 1.0
        return list(weights / weights.sum())

    return law
