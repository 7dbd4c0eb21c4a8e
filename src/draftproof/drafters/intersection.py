"""What lets a model of another vocabulary draft in the target's ids, token by token: its logits
over what both know, and the warp and noise of the committed text behind a translated one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from draftproof.core import Purpose, TargetOutput, TreeBatch
from draftproof.errors import UnsupportedModel
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache
from draftproof.sampling.noise import Noise
from draftproof.sampling.warp import Warp


class Intersection:
    """A drafter's model that speaks the target's ids, and only those that it knows itself.

    An id below V is the target's; V + d is the drafter's own id d, for text between them.
    """

    def __init__(self, model: TargetModel, shared: dict[int, int], vocab_size: int) -> None:
        self.name = model.name
        self.vocab_size = vocab_size
        self.max_positions = model.max_positions
        self.device = model.device
        self.cache_bytes_per_token = model.cache_bytes_per_token
        self._model = model
        self.pads = model.pads
        pairs = torch.tensor(sorted(shared.items()), dtype=torch.long, device=model.device)
        self._target_ids, self._drafter_ids = pairs.unbind(1)
        own = torch.arange(model.vocab_size, device=model.device)
        self._feeds = torch.cat([own.new_zeros(vocab_size), own])
        self._feeds[self._target_ids] = self._drafter_ids

    def forward(
        self, batch: TreeBatch, cache: KVCache, columns: Sequence[int] | None = None
    ) -> TargetOutput:
        fed = replace(batch, tokens=self._feeds[batch.tokens])
        logits = self._model.forward(fed, cache, columns).logits
        wide = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        wide[..., self._target_ids] = logits[..., self._drafter_ids]
        return TargetOutput(wide)

    def prefill(self, tokens: Sequence[int], cache: KVCache, row: int, chunk: int) -> None:
        ids = torch.tensor(tokens, dtype=torch.long, device=self.device)
        self._model.prefill(self._feeds[ids].tolist(), cache, row, chunk)

    def int8_copy(self) -> TargetModel:
        raise UnsupportedModel(f"{self.name} drafts in another vocabulary; copy the model itself")

    def first_layers(self, num_layers: int) -> TargetModel:
        raise UnsupportedModel(
            f"{self.name} drafts in another vocabulary; take {num_layers} layers of the model"
        )


class CommittedWarp:
    """A sequence's warp behind a translated context: it counts the committed ids themselves."""

    def __init__(self, warp: Warp, committed: Sequence[int], length: int) -> None:
        self._warp = warp
        self._committed = committed
        self._length = length

    def draft_law(self, logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        return self._warp.draft_law(logits, self._own(tokens))

    def belief(self, logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        return self._warp.belief(logits, self._own(tokens))

    def _own(self, tokens: Sequence[int]) -> list[int]:
        return [*self._committed, *tokens[self._length :]]


class ShiftedNoise:
    """A sequence's noise, by positions that are `shift` too low.

    With the right keys a COUPLED draft runs the target's own race, and others share no number.
    """

    def __init__(self, noise: Noise, shift: int) -> None:
        self._noise = noise
        self._shift = shift

    def accepts(self, p: float, q: float, position: int, offset: int) -> bool:
        return self._noise.accepts(p, q, position + self._shift, offset)

    def draw(self, weights: torch.Tensor, position: int, purpose: Purpose, offset: int = 0) -> int:
        return self._noise.draw(weights, position + self._shift, purpose, offset)

    def race(self, weights: torch.Tensor, position: int) -> int:
        return self._noise.race(weights, position + self._shift)
