"""A smaller model of the same vocabulary as drafter, with a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from draftproof.core import Context, Draft, Plan, Proposal, Step
from draftproof.drafters.base import Drafting, num_shared
from draftproof.drafters.rollout import RolledOut, roll_out
from draftproof.models.base import TargetModel
from draftproof.models.cache import SCRATCH, KVCache

_AHEAD = 128
"""Tokens of a pool that a row gets beyond what it needs, so that it does not grow every round."""


class ModelDrafter:
    proposals = frozenset(Proposal)
    stops_in_doubt = True
    takes_static_trees = True

    def __init__(self, model: TargetModel, vocab_size: int, prefill_chunk: int) -> None:
        """`vocab_size` is the target's V; padded vocabularies may differ from the drafter's."""
        self.name = f"model:{model.name}"
        self._model = model
        self._vocab_size = vocab_size
        self._prefill_chunk = prefill_chunk
        self.cache_bytes_per_token = model.cache_bytes_per_token

    def begin(self, target_cache: KVCache) -> ModelDrafting:
        rows, capacity = target_cache.rows, target_cache.capacity
        if target_cache.pool:
            capacity += rows * (SCRATCH + _AHEAD)
        cache = KVCache(
            rows,
            capacity,
            target_cache.max_bytes,
            self._model.cache_bytes_per_token,
            target_cache.pool,
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
        self._rolled: list[RolledOut | None] = [None] * cache.rows

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        plans = [self._within_reach(c, p) for c, p in zip(contexts, plans, strict=True)]
        plans = self._with_room(contexts, plans)
        for b, (context, plan) in enumerate(zip(contexts, plans, strict=True)):
            if plan.depth > 0:
                self._catch_up(b, context.tokens)
        rolled = roll_out(self._model, self._cache, contexts, plans, self._vocab_size)
        for b, one in enumerate(rolled):
            self._rolled[b] = one
            if plans[b].depth > 0:
                self._held[b] = list(contexts[b].tokens)
        return [one.draft for one in rolled]

    def observe(self, context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:  # noqa: ARG002
        rolled = self._rolled[context.row]
        # Another drafter's draft may have been judged in this round.
        if rolled is not None and rolled.draft is draft:
            self.keep(context.row, step.tokens[: step.accepted])

    def keep(self, row: int, tokens: Sequence[int]) -> None:
        """Commit `tokens`, a path of the draft just proposed, as far as they were computed."""
        rolled, node, columns = self._rolled[row], -1, []
        for token in tokens:
            found = rolled.draft.child(node, token) if rolled is not None else None
            column = rolled.columns[found] if rolled is not None and found is not None else None
            if found is None or column is None:
                break
            columns.append(column)
            node = found
        self._cache.keep(row, columns)
        self._held[row] += tokens[: len(columns)]
        self._rolled[row] = None

    def read(self, context: Context, length: int, most: int) -> int:
        within = self._within_reach(context, Plan(1)).depth > 0
        room = within and length > 1 and self._make_room(context.row, len(context.tokens))
        if not room:
            return 0
        known = num_shared(self._held[context.row], context.tokens[:length])
        # A shared beginning is given to the target at once, and read by the drafter in parts.
        end = min(length, known + most + 2)  # short of which it stays by two
        self._catch_up(context.row, context.tokens[:end])
        return length - end

    def release(self, row: int) -> None:
        self._rolled[row] = None
        if self._cache.pool:  # else what a next text has in common need not be read again
            self._cache.close(row)
            self._held[row] = []

    def move(self, source: int, target: int) -> None:
        self._cache.move(source, target)
        self._held[target], self._held[source] = self._held[source], []

    def _with_room(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Plan]:
        """The plans of rows that the cache has room for; a pass touches the rows between, too."""
        lengths = self._cache.lengths
        room = [
            self._make_room(row, len(context.tokens) if plan.depth else lengths[row])
            for row, (context, plan) in enumerate(zip(contexts, plans, strict=True))
        ]
        return [plan if all(room) else replace(plan, depth=0) for plan in plans]

    def _make_room(self, row: int, length: int) -> bool:
        """Let the row of a pool hold `length` tokens and a draft; False where that cannot be."""
        cache, needed = self._cache, length + SCRATCH
        if not cache.pool or cache.size(row) >= needed:
            return True
        if cache.size(row) and cache.grow(row, needed + _AHEAD):
            return True
        # Both regions do not fit side by side: read the text again into the larger one.
        self.release(row)
        return cache.open(row, needed + _AHEAD)

    def _within_reach(self, context: Context, plan: Plan) -> Plan:
        """No deeper than the drafter's own positions and embedding allow."""
        room = self._limit - len(context.tokens) + 1
        if self._vocab_size > self._model.vocab_size:
            known = max(context.tokens) < self._model.vocab_size
            room = room if known else 0
        return replace(plan, depth=max(0, min(plan.depth, room)))

    def _catch_up(self, row: int, tokens: Sequence[int]) -> None:
        """Hold a true prefix of `tokens`, short by the one or two ids that the next pass feeds."""
        same = min(num_shared(self._held[row], tokens), len(tokens) - 1)
        self._drop(row, same)
        behind = len(tokens) - 2 - same
        if behind > 0:
            self._model.prefill(tokens[same : same + behind], self._cache, row, self._chunk)
            self._held[row] = list(tokens[: same + behind])

    def _drop(self, row: int, length: int) -> None:
        self._cache.truncate(row, length)
        self._held[row] = self._held[row][:length]
