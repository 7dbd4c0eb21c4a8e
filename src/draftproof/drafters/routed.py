"""Several drafters at work in one loop, each for the sequences that were given to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from draftproof.core import Context, Draft, Plan, Step
from draftproof.drafters.base import Drafter, Drafting
from draftproof.drafters.none import NoDrafter
from draftproof.errors import kind_and_place
from draftproof.models.cache import KVCache

_log = logging.getLogger("draftproof.drafters")


class RoutedDrafting(Drafting):
    """Every drafter is asked about all rows, with an empty plan for those of others."""

    def __init__(self, drafters: Mapping[str, Drafter], target_cache: KVCache) -> None:
        self._draftings: dict[str, Drafting] = {
            name: drafter.begin(target_cache) for name, drafter in drafters.items()
        }
        self._names: dict[int, str] = {}
        """Sequence -> its drafter."""

    def assign(self, seq_id: int, name: str) -> None:
        """Let the drafter `name` draft for a sequence."""
        self._names[seq_id] = name

    def forget(self, seq_id: int) -> None:
        """The sequence has ended."""
        self._names.pop(seq_id, None)

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        names = [self._names[context.seq_id] for context in contexts]
        drafts: list[Draft | None] = [None] * len(contexts)
        for name in dict.fromkeys(names):
            mine = [
                plan if own == name else replace(plan, depth=0)
                for plan, own in zip(plans, names, strict=True)
            ]
            made = self._draftings[name].propose(contexts, mine)
            drafts = [
                draft if own == name else other
                for draft, other, own in zip(made, drafts, names, strict=True)
            ]
        return [draft for draft in drafts if draft is not None]

    def observe(self, context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:
        self._draftings[self._names[context.seq_id]].observe(context, draft, step, logits)

    def read(self, context: Context, length: int) -> None:
        self._draftings[self._names[context.seq_id]].read(context, length)

    def release(self, row: int) -> None:
        self._tell(lambda drafting: drafting.release(row))

    def move(self, source: int, target: int) -> None:
        self._tell(lambda drafting: drafting.move(source, target))

    def _tell(self, tell: Callable[[Drafting], None]) -> None:
        """All drafters; one that raises has lost track of the rows, and is asked no more."""
        for name, drafting in self._draftings.items():
            try:
                tell(drafting)
            except Exception as error:
                _log.error("the drafter %s failed for good: %s", name, kind_and_place(error))
                self._draftings[name] = NoDrafter()
