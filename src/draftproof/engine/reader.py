"""Which prompt is read next, how much of it, and by whom: the target, and the drafter with it."""

from __future__ import annotations

from collections.abc import Sequence as Many

from draftproof.drafters.base import Drafting
from draftproof.engine.entry import Entry
from draftproof.engine.prefixes import Prefixes
from draftproof.engine.rows import Rows
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache
from draftproof.stats.timing import Stopwatch

_FEW = 64
"""Generated tokens that are read again together: a pass of the kind that they were decoded in."""
_MOST_PASSES = 8
"""The shortest rest of a prompt is read first, but the oldest is passed over so often at most."""
_FAR = 2048
"""Tokens behind which a part takes twice as long to read as in front, for all that it looks back
on; such parts are half as long where that changes no bits, so that nobody waits longer for one."""

Troubles = list[tuple[Entry, Exception]]
"""Whose, and what was raised."""


class Reader:
    def __init__(
        self,
        target: TargetModel,
        cache: KVCache,
        drafting: Drafting,
        rows: Rows,
        prefixes: Prefixes,
        chunk: int,
        budget: int | None,
    ) -> None:
        """Prompts are read `chunk` tokens at a time, about `budget` in a turn, or all."""
        self._target = target
        self._cache = cache
        self._drafting = drafting
        self._rows = rows
        self._prefixes = prefixes
        self._chunk = chunk
        self._budget = budget
        self._passes = 0

    def read(self, failures: Troubles, faults: Troubles) -> None:
        """Read until the budget is used up.

        Entries that could not be read are added to `failures`, those whose drafter raised to
        `faults`: they go on plainly.
        """
        read = 0
        while entry := self._next([failed for failed, _ in failures]):
            end, chunk = self._part(entry)
            weight = max(1, self._chunk // chunk)  # far parts are shorter and take as long
            read += weight * max(1, end - entry.read, min(self._chunk, entry.drafter_reads))
            if self._budget is not None and read > max(self._budget, weight * chunk):
                break
            self._count_pass(entry)
            try:
                fault = self._read_some(entry, end, chunk)
            except Exception as error:
                failures.append((entry, error))
                continue
            if fault is not None:
                entry.go_on_plainly()
                faults.append((entry, fault))
            if entry.to_read == entry.drafter_reads == 0:
                self._rows.activate(entry)
                if entry.controller is None:
                    entry.controller = entry.make_controller()

    def _next(self, without: Many[Entry]) -> Entry | None:
        readers = [entry for entry in self._rows.reading if entry not in without]
        for entry in readers:
            leader = entry.leader
            if leader is not None and (
                leader.read >= entry.leader_reads or leader not in self._rows.entries
            ):
                self._prefixes.share(entry, self._rows.entries)
        readers = [entry for entry in readers if entry.leader is None]
        if not readers:
            return None
        oldest = min(readers, key=lambda entry: entry.order)
        if self._budget is None or self._passes >= _MOST_PASSES:
            return oldest
        return min(readers, key=lambda entry: (entry.to_read, entry.order))

    def _count_pass(self, entry: Entry) -> None:
        """Note who was read, the oldest or another."""
        older = any(one.order < entry.order for one in self._rows.reading)
        self._passes = self._passes + 1 if older else 0

    def _part(self, entry: Entry) -> tuple[int, int]:
        """Where the next part of a text ends, and the chunk it is read in; all without a budget."""
        end, chunk = entry.prompt_reads, self._chunk
        if entry.read >= end:  # what had been generated before it was preempted
            end, chunk = len(entry.sequence.tokens) - 1, _FEW
        elif entry.read >= _FAR and self._budget is not None and not self._target.pads:
            chunk = max(1, chunk // 2)
        return (end if self._budget is None else min(end, entry.read + chunk)), chunk

    def _read_some(self, entry: Entry, end: int, chunk: int) -> Exception | None:
        """Read an entry's text up to `end`; what its drafter raised."""
        watch = Stopwatch(self._target.device)
        sequence, start, fault = entry.sequence, entry.read, None
        if end > start:
            self._target.prefill(sequence.tokens[start:end], self._cache, sequence.row, chunk)
        entry.read, entry.drafter_reads = end, 0
        most = end if self._budget is None else self._chunk
        try:
            entry.drafter_reads = self._drafting.read(sequence.context, end, most)
        except Exception as error:
            fault = error
        watch.lap("prefill")
        sequence.stats.prefill_s += watch.seconds["prefill"]
        return fault
