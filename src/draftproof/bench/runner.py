"""The order in which cells run: warmed up, interleaved prompt by prompt, compared at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from draftproof.bench.decoders import Decoders, Group
from draftproof.bench.matrix import PLAIN, Cell, Matrix
from draftproof.bench.record import Record, judge
from draftproof.bench.workloads import Task
from draftproof.errors import InvalidSetting

WARM_UP_TOKENS = 8

Progress = Callable[[str, int, int], None]
"""Called with what runs, how many calls are done and how many there are."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is run how often."""

    matrix: Matrix
    tasks: tuple[Task, ...]
    max_tokens: int
    repeats: int
    seed: int

    def __post_init__(self) -> None:
        largest = max(self.matrix.batches)
        if largest > len(self.tasks):
            raise InvalidSetting(
                f"batch is {largest} and there are {len(self.tasks)} prompts; give more prompts or "
                "a smaller batch"
            )

    def turns(self) -> Iterator[tuple[Group, list[Cell]]]:
        """A group of prompts and the cells it is decoded by, in their order.

        The order moves on by one from turn to turn, so that no cell is always first. Settings
        take turns too, so that a machine that slows down slows all of them.
        """
        turn = 0
        for repeat in range(self.repeats):
            for number in range(len(self.tasks)):
                for temperature, batch in self.matrix.settings():
                    if number * batch >= len(self.tasks):
                        continue
                    cells = self._cells(temperature, batch)
                    first = turn % len(cells)
                    yield self.group(number, batch, repeat), cells[first:] + cells[:first]
                    turn += 1

    def warm_ups(self) -> Iterator[tuple[Group, Cell]]:
        """Every cell once."""
        for temperature, batch in self.matrix.settings():
            for cell in self._cells(temperature, batch):
                yield self.group(0, batch, 0), cell

    def group(self, number: int, batch: int, repeat: int) -> Group:
        """The prompts of one call; the last call is filled up from the first prompts."""
        count = len(self.tasks)
        places = [(number * batch + i) % count for i in range(batch)]
        tasks = tuple(self.tasks[place] for place in places)
        seeds = tuple((self.seed + place) % 2**64 for place in places)
        return Group(number, repeat, tasks, seeds)

    def _cells(self, temperature: float, batch: int) -> list[Cell]:
        cells = self.matrix.cells(temperature, batch)
        return [cell for cell in cells if cell.unsupported is None]


def run(
    decoders: Decoders, schedule: Schedule, write: Callable[[Record], None], progress: Progress
) -> list[Record]:
    """Run everything; each record goes to `write` as soon as its text has been compared."""
    warm_ups, turns = list(schedule.warm_ups()), list(schedule.turns())
    for done, (group, cell) in enumerate(warm_ups):
        progress(f"warm-up: {cell.label}", done, len(warm_ups))
        decoders.run(cell, group, min(WARM_UP_TOKENS, schedule.max_tokens))
    total = sum(len(cells) for _, cells in turns)
    records: list[Record] = []

    def keep(record: Record) -> None:
        write(record)
        records.append(record)

    done = 0
    for group, cells in turns:
        with _Turn(decoders, keep) as turn:
            for cell in cells:
                progress(cell.label, done, total)
                turn.add(cell, decoders.run(cell, group, schedule.max_tokens))
                done += 1
    progress("done", total, total)
    return records


class _Turn:
    """Compares with plain decoding as soon as that has run, which is first only in some turns."""

    def __init__(self, decoders: Decoders, keep: Callable[[Record], None]) -> None:
        self._decoders = decoders
        self._keep = keep
        self._plain: list[Record] = []
        self._waiting: list[Record] = []

    def __enter__(self) -> _Turn:
        return self

    def __exit__(self, *_: object) -> None:
        # Of a turn that was cut short, what nothing was there to compare with.
        for record in self._waiting:
            self._keep(record)

    def add(self, cell: Cell, made: list[Record]) -> None:
        """Take the records of one call, a row for each prompt of the group."""
        if cell.system == PLAIN:
            self._plain = made
        self._waiting += made
        if self._plain:
            ours = self._decoders.plain
            waiting, self._waiting = self._waiting, []
            for i, record in enumerate(waiting):
                reference = self._plain[i % len(self._plain)]
                self._keep(judge(record, reference, ours.target, ours.num_tokens))
