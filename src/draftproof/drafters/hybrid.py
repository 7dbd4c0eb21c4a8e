"""Two drafters in one: a look-up where it is confident, another drafter everywhere else.

The look-up costs no forward pass, so every sequence asks it first in every round. Its draft is
POINT whatever was agreed for the other drafter, which every rule here can judge: a POINT token
is a draw from its own point mass. SuffixDecoding, arXiv 2411.04975, section on hybrids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from draftproof.core import Context, Draft, Plan, Step
from draftproof.drafters.base import (
    Drafter,
    Drafting,
    cache_bytes_per_token,
    dearest,
    fresh,
    remembers,
    stops_in_doubt,
    takes_static_trees,
)
from draftproof.drafters.lookup import Guess, LookupDrafter, LookupDrafting
from draftproof.models.cache import KVCache

_CONFIDENT = 0.5
"""A look-up is used when it expects this share of the planned depth to be accepted, unless the
plan says what it has to promise."""


class HybridDrafter:
    def __init__(self, lookup: LookupDrafter, other: Drafter) -> None:
        self.name = f"hybrid:{lookup.name},{other.name}"
        self.proposals = other.proposals
        self.remembers = remembers(lookup) or remembers(other)
        self.stops_in_doubt = stops_in_doubt(other)
        self.takes_static_trees = takes_static_trees(lookup) and takes_static_trees(other)
        self.dearest = dearest(other)
        self.cache_bytes_per_token = cache_bytes_per_token(other)
        self._lookup = lookup
        self._other = other

    def fresh(self) -> HybridDrafter:
        """The same pair without what either has learnt from requests."""
        return HybridDrafter(fresh(self._lookup), fresh(self._other))

    def begin(self, target_cache: KVCache) -> HybridDrafting:
        return HybridDrafting(self._lookup.begin(target_cache), self._other.begin(target_cache))


class HybridDrafting(Drafting):
    def __init__(self, lookup: LookupDrafting, other: Drafting) -> None:
        self._lookup = lookup
        self._other = other

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        guesses = [
            self._lookup.guess(context, plan.lookup or plan)
            for context, plan in zip(contexts, plans, strict=True)
        ]
        sure = [_is_sure(guess, plan) for guess, plan in zip(guesses, plans, strict=True)]
        left = [Plan(0) if skip else plan for skip, plan in zip(sure, plans, strict=True)]
        drafts = self._other.propose(contexts, left)
        return [
            replace(guess.draft, promised=guess.score) if use else draft
            for guess, use, draft in zip(guesses, sure, drafts, strict=True)
        ]

    def observe(self, context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:
        """Both see every round, whoever drafted in it."""
        self._lookup.observe(context, draft, step, logits)
        self._other.observe(context, draft, step, logits)

    def read(self, context: Context, length: int, most: int) -> int:
        left = self._lookup.read(context, length, most)
        return max(left, self._other.read(context, length, most))

    def release(self, row: int) -> None:
        self._lookup.release(row)
        self._other.release(row)

    def forget(self, row: int) -> None:
        self._lookup.forget(row)
        self._other.forget(row)

    def move(self, source: int, target: int) -> None:
        self._lookup.move(source, target)
        self._other.move(source, target)


def _is_sure(guess: Guess, plan: Plan) -> bool:
    """Whether a look-up's draft is used in place of the other drafter's."""
    size = len(guess.draft.tokens)
    if plan.lookup is None:
        return size > 0 and guess.score >= _CONFIDENT * plan.depth
    return size > 0 and guess.score - plan.lookup.floor * size > plan.lookup.bar
