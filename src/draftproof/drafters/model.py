"""A smaller model of the same vocabulary as drafter, with a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.drafters.base import Drafting
from draftproof.drafters.rollout import roll_out
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache


class ModelDrafter:
    proposals = frozenset({Proposal.POINT, Proposal.SAMPLED, Proposal.COUPLED})

    def __init__(self, model: TargetModel, vocab_size: int, prefill_chunk: int) -> None:
        """`vocab_size` is the target's V; padded vocabularies may differ from the drafter's."""
        self.name = f"model:{model.name}"
        self._model = model
        self._vocab_size = vocab_size
        self._prefill_chunk = prefill_chunk

    def begin(self, target_cache: KVCache) -> ModelDrafting:
        cache = KVCache(
            target_cache.rows,
            target_cache.capacity,
            target_cache.max_bytes,
            self._model.cache_bytes_per_token,
        )
        return ModelDrafting(self._model, cache, self._vocab_size, self._prefill_chunk)


class ModelDrafting(Drafting):
    """Keeps, per row, the ids its cache holds; what the target rejected falls off lazily."""

    def __init__(self, model: TargetModel, cache: KVCache, vocab_size: int, chunk: int) -> None:
        self._model = model
        self._cache = cache
        self._vocab_size = vocab_size
        self._chunk = chunk
        self._limit = model.max_positions or cache.capacity
        self._held: list[list[int]] = [[] for _ in range(cache.rows)]

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        plans = [self._within_reach(c, p) for c, p in zip(contexts, plans, strict=True)]
        for b, (context, plan) in enumerate(zip(contexts, plans, strict=True)):
            if plan.depth > 0:
                self._catch_up(b, context.tokens)
        drafts = roll_out(self._model, self._cache, contexts, plans, self._vocab_size)
        for b, draft in enumerate(drafts):
            if draft.tokens:
                fed = [*contexts[b].tokens, *draft.tokens]
                self._held[b] = fed[: self._cache.lengths[b]]
        return drafts

    def move(self, source: int, target: int) -> None:
        self._cache.copy(source, target)
        self._held[target] = self._held[source]
        self._drop(source, 0)

    def _within_reach(self, context: Context, plan: Plan) -> Plan:
        """No deeper than the drafter's own positions and embedding allow."""
        room = self._limit - len(context.tokens) + 1
        if self._vocab_size > self._model.vocab_size:
            known = max(context.tokens) < self._model.vocab_size
            room = room if known else 0
        return Plan(max(0, min(plan.depth, room)))

    def _catch_up(self, row: int, tokens: Sequence[int]) -> None:
        """Hold a true prefix of `tokens`, short by the one or two ids that the next pass feeds."""
        held = self._held[row]
        same = 0
        while same < min(len(held), len(tokens) - 1) and held[same] == tokens[same]:
            same += 1
        self._drop(row, same)
        behind = len(tokens) - 2 - same
        if behind > 0:
            self._model.prefill(tokens[same : same + behind], self._cache, row, self._chunk)
            self._held[row] = list(tokens[: same + behind])

    def _drop(self, row: int, length: int) -> None:
        self._cache.truncate(row, length)
        self._held[row] = self._held[row][:length]
