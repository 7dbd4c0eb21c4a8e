"""The same plan in every round, as far as the budget of a sequence reaches."""

from __future__ import annotations

from dataclasses import replace

from draftproof.config import MAX_NODES
from draftproof.core import Draft, Plan, Step
from draftproof.static_tree import StaticTree
from draftproof.theory.machine import RoundCost


class FixedPlan:
    def __init__(
        self,
        depth: int,
        width: int = 1,
        nodes: int = MAX_NODES,
        min_confidence: float = 0.0,
        tree: StaticTree | None = None,
    ) -> None:
        self._plan = Plan(depth, width, nodes, min_confidence=min_confidence, tree=tree)

    def plan(self, max_depth: int, context_length: int, batch_size: int) -> Plan:  # noqa: ARG002
        return replace(self._plan, depth=min(self._plan.depth, max_depth))

    def observe(self, draft: Draft, step: Step, cost: RoundCost) -> None:
        """A fixed plan learns nothing."""
