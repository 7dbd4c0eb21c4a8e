"""A sequence on its way through a loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from draftproof.control.base import Controller, ControllerFactory
from draftproof.control.fixed import FixedPlan
from draftproof.decode.sequence import Sequence


@dataclass(slots=True, eq=False)
class Entry:
    """What the loop knows of one sequence."""

    sequence: Sequence
    make_controller: Callable[[], Controller]
    """A fresh one; called when the sequence starts to decode for the first time."""
    order: int
    """Number of arrival; the earlier one goes first."""
    controller: Controller | None = None
    read: int = 0
    """Tokens whose keys and values the cache holds, while the prompt is read."""
    shared: int = 0
    """Of those, how many were copied from another prompt's."""
    drafter_reads: int = 0
    """Tokens of what was read that its drafter has still to read."""
    leader: Entry | None = None
    """Another entry that reads the same beginning, which is worth waiting for ..."""
    leader_reads: int = 0
    """... until it has read so many tokens."""
    preemptions: int = 0
    started: float | None = None
    """When it was first given a row, on the clock of `time.monotonic`."""

    @classmethod
    def of(cls, sequence: Sequence, make: ControllerFactory, order: int) -> Entry:
        """A sequence for which `make` makes the controller, as its rule allows."""
        return cls(sequence, partial(make, sequence.pairing.verifier.trees), order)

    def go_on_plainly(self) -> None:
        """No more drafts: its drafter has raised."""
        self.controller = FixedPlan(0)

    @property
    def to_read(self) -> int:
        """Tokens in front of the anchor that the cache does not hold yet."""
        return len(self.sequence.tokens) - 1 - self.read

    @property
    def prompt_reads(self) -> int:
        """Tokens of the prompt that are read before it decodes: all but the anchor."""
        return self.sequence.prompt_length - 1
