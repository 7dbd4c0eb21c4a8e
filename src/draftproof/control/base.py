"""What a controller is: it plans the drafts of one sequence and hears what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from draftproof.core import Draft, Plan, Step
from draftproof.theory.machine import RoundCost


class Controller(Protocol):
    """Plans for one sequence; what it learns ends with that sequence."""

    def plan(self, max_depth: int, context_length: int, batch_size: int) -> Plan:
        """The next draft's limits.

        `max_depth` is the deepest draft that the sequence could keep, `context_length` its number
        of committed tokens, `batch_size` how many sequences the round will decode side by side.
        """
        ...

    def observe(self, draft: Draft, step: Step, cost: RoundCost) -> None:
        """How the round went that was planned last: `cost` is that of the whole batch."""
        ...


ControllerFactory = Callable[[bool], Controller]
"""Makes a fresh controller for a sequence; told whether its rule judges trees."""
