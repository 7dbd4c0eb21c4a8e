"""Several drafters at work in one loop, each for the sequences that were given to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from draftproof.core import Context, Draft, Plan, Step
from draftproof.drafters.base import Drafter, Drafting, DraftingFailed
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
        self._rows: dict[int, str] = {}
        """Row -> the drafter of the sequence in it."""

    def assign(self, seq_id: int, name: str) -> None:
        """Let the drafter `name` draft for a sequence."""
        self._names[seq_id] = name

    def unassign(self, seq_id: int) -> None:
        """The sequence will come up no more."""
        self._names.pop(seq_id, None)

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        names = [self._name(context) for context in contexts]
        drafts: list[Draft | None] = [None] * len(contexts)
        for name in dict.fromkeys(names):
            mine = [
                plan if own == name else replace(plan, depth=0)
                for plan, own in zip(plans, names, strict=True)
            ]
            try:
                made = self._draftings[name].propose(contexts, mine)
            except Exception as error:
                struck = (
                    context.row for context, own in zip(contexts, names, strict=True) if own == name
                )
                raise DraftingFailed(frozenset(struck)) from error
            drafts = [
                draft if own == name else other
                for draft, other, own in zip(made, drafts, names, strict=True)
            ]
        return [draft for draft in drafts if draft is not None]

    def observe(self, context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:
        self._draftings[self._name(context)].observe(context, draft, step, logits)

    def read(self, context: Context, length: int, most: int) -> int:
        return self._draftings[self._name(context)].read(context, length, most)

    def release(self, row: int) -> None:
        """The others have seen the row as well, and may keep nothing of it."""
        own = self._rows.pop(row, None)
        self._tell(lambda name, it: it.release(row) if name == own else it.forget(row))

    def forget(self, row: int) -> None:
        self._rows.pop(row, None)
        self._tell(lambda _, drafting: drafting.forget(row))

    def move(self, source: int, target: int) -> None:
        if source in self._rows:
            self._rows[target] = self._rows.pop(source)
        self._tell(lambda _, drafting: drafting.move(source, target))

    def _name(self, context: Context) -> str:
        name = self._rows[context.row] = self._names[context.seq_id]
        return name

    def _tell(self, tell: Callable[[str, Drafting], None]) -> None:
        """All drafters; one that raises has lost track of the rows, and is asked no more."""
        for name, drafting in self._draftings.items():
            try:
                tell(name, drafting)
            except Exception as error:
                _log.error("the drafter %s failed for good: %s", name, kind_and_place(error))
                self._draftings[name] = NoDrafter()
