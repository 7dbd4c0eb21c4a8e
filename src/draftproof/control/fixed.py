"""The same plan in every round, as far as the budget of a sequence reaches."""

from __future__ import annotations

from draftproof.config import MAX_NODES
from draftproof.core import Draft, Plan, Step
from draftproof.theory.machine import RoundCost


class FixedPlan:
    def __init__(self, depth: int, width: int = 1, nodes: int = MAX_NODES) -> None:
        self._depth = depth
        self._width = width
        self._nodes = nodes

    def plan(self, max_depth: int, context_length: int, batch_size: int) -> Plan:  # noqa: ARG002
        return Plan(min(self._depth, max_depth), self._width, self._nodes)

    def observe(self, draft: Draft, step: Step, cost: RoundCost) -> None:
        """A fixed plan learns nothing."""
