"""Who lives in which row of the cache: those that decode first, behind them those that read.

row     0 1 2 | 3 4 | ... | spare | kept prefixes ...
        decode  read
"""

from __future__ import annotations

from draftproof.drafters.base import Drafting
from draftproof.engine.entry import Entry
from draftproof.models.cache import KVCache


class Rows:
    """Keeps both parts without gaps, and cache and drafter in step with it."""

    def __init__(self, cache: KVCache, drafting: Drafting, num_rows: int) -> None:
        self.entries: list[Entry] = []
        self.num_active = 0
        self._cache = cache
        self._drafting = drafting
        self._num_rows = num_rows

    @property
    def full(self) -> bool:
        return len(self.entries) >= self._num_rows

    @property
    def active(self) -> list[Entry]:
        return self.entries[: self.num_active]

    @property
    def reading(self) -> list[Entry]:
        return self.entries[self.num_active :]

    def add(self, entry: Entry) -> None:
        """Give an entry that will read its prompt the next row, whose region is open."""
        entry.sequence.row = len(self.entries)
        self.entries.append(entry)

    def activate(self, entry: Entry) -> None:
        """Its prompt is read: it decodes from now on."""
        row = entry.sequence.row
        if row != self.num_active:
            spare = self._num_rows
            self._move(row, spare)
            self._move(self.num_active, row)
            self._move(spare, self.num_active)
            self.entries[row] = self.entries[self.num_active]
            self.entries[self.num_active] = entry
            self._number(row, self.num_active)
        self.num_active += 1

    def remove(self, entry: Entry) -> None:
        """Free its row; the last of its part and the last of all move up."""
        gap = entry.sequence.row
        if entry.sequence.finish_reason is None:
            self._drafting.forget(gap)
        else:
            self._drafting.release(gap)
        entry.sequence.row = -1
        if gap < self.num_active:
            self.num_active -= 1
            gap = self._fill(gap, self.num_active)
        self._fill(gap, len(self.entries) - 1)
        row = len(self.entries) - 1
        self.entries.pop()
        self._cache.close(row)

    def _fill(self, gap: int, last: int) -> int:
        """Move row `last` into the gap; the row that is free then."""
        if gap != last:
            self._move(last, gap)
            self.entries[gap] = self.entries[last]
            self._number(gap)
        return last

    def _move(self, source: int, target: int) -> None:
        self._cache.move(source, target)
        self._drafting.move(source, target)

    def _number(self, *rows: int) -> None:
        for row in rows:
            self.entries[row].sequence.row = row
