"""The decode loop: sequences join and leave at any time, and one cache and one pass serve all.

One turn: admit who fits, read some of the prompts, run one round of those whose prompt is read,
let the ended ones go.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import cast

from draftproof.control.joint import plan_together
from draftproof.core import Plan, Step
from draftproof.decode.round import Round, run_round
from draftproof.decode.sequence import Sequence
from draftproof.drafters.base import Drafting, DraftingFailed
from draftproof.drafters.none import NoDrafter
from draftproof.engine.entry import Entry
from draftproof.engine.prefixes import Prefixes
from draftproof.engine.queue import Queue
from draftproof.engine.reader import Reader, Troubles
from draftproof.engine.rows import Rows
from draftproof.models.base import TargetModel
from draftproof.models.cache import SCRATCH, KVCache
from draftproof.stats.counters import plain_reason
from draftproof.stats.timing import Stopwatch

_AHEAD = 256
"""Tokens that a row of a pool gets beyond its text, so that it does not grow every round."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn did; the fields are as long as `entries`."""

    entries: tuple[Entry, ...]
    """Those that took part in the round."""
    plans: tuple[Plan, ...]
    reasons: tuple[str | None, ...]
    """Why there was no draft, one of `stats.counters.PLAIN_REASONS`."""
    round: Round
    failures: tuple[tuple[Entry, Exception], ...]
    """Entries that a fault has ended, in the round or while their prompt was read."""
    read_s: float
    """Seconds of reading prompts."""
    faults: tuple[tuple[Entry, Exception], ...]
    """Entries whose drafter raised: they go on plainly."""


_Done = tuple[list[Entry], list[Plan], list[str | None], Round]
_NOTHING: _Done = [], [], [], Round([], [], {}, {}, None)


class Loop:
    """Decodes what is added; nothing here waits or starts a thread."""

    def __init__(
        self,
        target: TargetModel,
        cache: KVCache,
        drafting: Drafting,
        num_rows: int,
        chunk: int,
        budget: int | None = None,
        max_skips: int = 0,
        keep_prefixes: bool = False,
    ) -> None:
        """At most `num_rows` sequences at once; a pool has one row more, and further rows to keep
        prefixes. Prompts are read `chunk` tokens at a time, about `budget` in a turn, or all.
        """
        self._target = target
        self._cache = cache
        self._drafting = drafting
        self._queue = Queue(max_skips)
        self._rows = Rows(cache, drafting, num_rows)
        self._prefixes = Prefixes(cache, num_rows + 1 if keep_prefixes else cache.rows, chunk)
        self._reader = Reader(target, cache, drafting, self._rows, self._prefixes, chunk, budget)
        self._failures: Troubles = []
        self._faults: Troubles = []
        self.preemptions = 0

    @property
    def entries(self) -> Many[Entry]:
        """Those that have a row."""
        return self._rows.entries

    @property
    def busy(self) -> bool:
        return bool(self._queue) or bool(self._rows.entries)

    @property
    def num_kept(self) -> int:
        """Tokens of the cache that keep prefixes, and can be had at any time."""
        return self._prefixes.num_tokens

    def add(self, entry: Entry) -> None:
        self._queue.put(entry)

    def drop(self, entry: Entry) -> None:
        """Forget an entry, wherever it is; its row is free at once."""
        entry.leader = None
        if not self._queue.remove(entry) and entry in self._rows.entries:
            self._rows.remove(entry)

    def turn(self) -> Turn:
        """Go on by one round; call it while `busy`. What goes wrong is told, not raised."""
        self._failures, self._faults = [], []
        watch = Stopwatch(self._target.device)
        done = _NOTHING
        try:
            self._admit()
            self._reader.read(self._failures, self._faults)
            watch.lap("read")
            self._make_room()
            if active := self._rows.active:
                done = self._decode(active)
                for entry in active:
                    if entry.sequence.finish_reason is not None:
                        self._end(entry)
        except Exception as error:
            struck = self._rows.active or self._rows.entries or self._queue.entries
            self._failures += [(entry, error) for entry in struck]
        for entry, _ in self._failures:
            self.drop(entry)
        entries, plans, reasons, round_ = done
        return Turn(
            tuple(entries),
            tuple(plans),
            tuple(reasons),
            round_,
            tuple(self._failures),
            watch.seconds["read"],
            tuple(self._faults),
        )

    def _decode(self, active: list[Entry]) -> _Done:
        """One round of those whose prompt is read."""
        rooms = [entry.sequence.max_depth for entry in active]
        plans = self._plan(active, rooms)
        done = self._round(active, plans)
        reasons = [
            self._account(entry, b, plans[b], rooms[b], done) for b, entry in enumerate(active)
        ]
        self._failures += [(active[b], error) for b, error in done.failures.items()]
        self._faults += [(active[b], error) for b, error in done.faults.items()]
        for entry, _ in self._faults:
            entry.go_on_plainly()
        return active, plans, reasons, done

    def _round(self, active: Many[Entry], plans: list[Plan]) -> Round:
        sequences = [entry.sequence for entry in active]
        lengths = [len(sequence.tokens) for sequence in sequences]
        try:
            return run_round(self._target, self._cache, self._drafting, sequences, plans)
        except Exception as error:
            if lengths != [len(sequence.tokens) for sequence in sequences]:
                raise  # what was committed cannot be decoded a second time
            fault, struck = error, active
        if isinstance(fault, DraftingFailed):
            struck = [active[row] for row in sorted(fault.rows)]
            fault = cast("Exception", fault.__cause__)
        # If the target is at fault, this raises as well.
        plans[:] = [Plan(0)] * len(plans)
        done = run_round(self._target, self._cache, NoDrafter(), sequences, plans)
        self._faults += [(entry, fault) for entry in struck]
        return done

    def _plan(self, active: Many[Entry], rooms: Many[int]) -> list[Plan]:
        controllers = [entry.controller for entry in active if entry.controller is not None]
        lengths = [len(entry.sequence.tokens) for entry in active]
        apart = [b for b, entry in enumerate(active) if entry.sequence.reads_seed]
        return plan_together(controllers, rooms, lengths, self._target.pads, apart)

    def _account(self, entry: Entry, b: int, plan: Plan, room: int, done: Round) -> str | None:
        """Tell the controller and the counters; why there was no draft."""
        step = done.steps[b]
        if step is None:
            return None
        assert entry.controller is not None
        assert done.cost is not None
        entry.controller.observe(done.drafts[b], step, done.cost)
        reason = plain_reason(plan, room, step)
        entry.sequence.stats.add_plan(plan, reason)
        return reason

    def _end(self, entry: Entry) -> None:
        self._prefixes.keep(entry)
        self._rows.remove(entry)

    def _admit(self) -> None:
        """Fill free rows from the queue."""
        while self._queue and not self._rows.full:
            entry = self._queue.take(self._open)
            if entry is None:
                return
            self._rows.add(entry)
            entry.started = entry.started or time.monotonic()
            entry.read = 0
            try:
                self._prefixes.share(entry, self._rows.entries)
            except Exception as error:
                self._failures.append((entry, error))

    def _open(self, entry: Entry) -> bool:
        """Reserve cache for an entry, at the cost of what is only kept."""
        row, size = len(self._rows.entries), self._size(entry)
        if self._cache.pool and self._cache.num_free + self._prefixes.num_tokens < size:
            return False  # and nothing kept is given up in vain
        while not self._cache.open(row, size):
            if not self._prefixes.evict():
                return False
        return True

    def _size(self, entry: Entry) -> int:
        """What to reserve for an entry: its text, room to go on, and scratch."""
        sequence = entry.sequence
        return min(sequence.max_length, len(sequence.tokens) + _AHEAD) + SCRATCH

    def _make_room(self) -> None:
        """See to it that every active row can take the next round; the youngest yield."""
        for entry in sorted(self._rows.active, key=lambda entry: entry.order):
            while entry in self._rows.entries and not self._has_room(entry):
                if self._prefixes.evict():
                    continue
                self._preempt(max(self._rows.entries, key=lambda one: one.order))

    def _has_room(self, entry: Entry) -> bool:
        row = entry.sequence.row
        if self._cache.size(row) >= len(entry.sequence.tokens) + SCRATCH:
            return True
        return self._cache.grow(row, self._size(entry))

    def _preempt(self, entry: Entry) -> None:
        """Give up its row; it will read its text again, and go on as if nothing had happened."""
        self._rows.remove(entry)
        entry.preemptions += 1
        self.preemptions += 1
        self._queue.put(entry)


def steps(turn: Turn) -> list[tuple[Sequence, Step]]:
    """The steps of a turn with their sequences."""
    pairs = zip(turn.entries, turn.round.steps, strict=True)
    return [(entry.sequence, step) for entry, step in pairs if step is not None]
