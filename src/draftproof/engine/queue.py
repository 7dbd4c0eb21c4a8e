"""Who waits for a row: first come, first served, and how far smaller ones may jump the queue."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from draftproof.engine.entry import Entry

_LOOKAHEAD = 16
"""How far down the queue to look for one that fits."""


class Queue:
    """Entries in the order of their arrival."""

    def __init__(self, max_skips: int) -> None:
        """`max_skips`: how often the first may be passed by one that fits where it does not."""
        self._entries: list[Entry] = []
        self._max_skips = max_skips
        self._skips = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[Entry]:
        """Those that wait, the first one first."""
        return list(self._entries)

    def put(self, entry: Entry) -> None:
        insort(self._entries, entry, key=lambda one: one.order)

    def remove(self, entry: Entry) -> bool:
        """Whether it was there."""
        if entry not in self._entries:
            return False
        self._skips *= entry is not self._entries[0]
        self._entries.remove(entry)
        return True

    def take(self, fits: Callable[[Entry], bool]) -> Entry | None:
        """The first entry if it fits, else a later one while the first can still be passed."""
        for place, entry in enumerate(self._entries[:_LOOKAHEAD]):
            if place > 0 and self._skips >= self._max_skips:
                return None
            if fits(entry):
                self._skips = self._skips + 1 if place else 0
                return self._entries.pop(place)
        return None
