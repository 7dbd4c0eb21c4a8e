"""Drafters that are the target itself, cheaper: they read the target's own committed cache.

`self-int8` computes with an int8 copy of the target's linear layers, `early-exit:N` stops after N
layers. Both write their keys and values behind the committed ones, where the target's
verification overwrites them, so they need neither a prefill nor memory of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.drafters.base import Drafting
from draftproof.drafters.rollout import roll_out
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache


class SharedCacheDrafter:
    proposals = frozenset(Proposal)
    stops_in_doubt = True
    takes_static_trees = True

    def __init__(self, name: str, model: TargetModel) -> None:
        self.name = name
        self._model = model

    @classmethod
    def int8(cls, target: TargetModel) -> SharedCacheDrafter:
        """The target with int8 linear layers (per-row scales, float activations)."""
        return cls("self-int8", target.int8_copy())

    @classmethod
    def early_exit(cls, target: TargetModel, num_layers: int) -> SharedCacheDrafter:
        """The target's first layers, its final norm and its head; Draft & Verify, LayerSkip."""
        return cls(f"early-exit:{num_layers}", target.first_layers(num_layers))

    def begin(self, target_cache: KVCache) -> SharedCacheDrafting:
        return SharedCacheDrafting(self._model, target_cache)


class SharedCacheDrafting(Drafting):
    def __init__(self, model: TargetModel, cache: KVCache) -> None:
        self._model = model
        self._cache = cache

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        committed = list(self._cache.lengths)
        try:
            size = self._model.vocab_size
            rolled = roll_out(self._model, self._cache, contexts, plans, size)
            return [one.draft for one in rolled]
        finally:
            for row in range(len(contexts)):
                self._cache.truncate(row, committed[row])
