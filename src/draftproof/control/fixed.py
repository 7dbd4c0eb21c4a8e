"""The same depth in every round, as far as the budget of a sequence reaches."""

from __future__ import annotations

from draftproof.core import Plan


class FixedDepth:
    def __init__(self, depth: int) -> None:
        self._depth = depth

    def plan(self, max_depth: int) -> Plan:
        """`max_depth` is the deepest draft that the sequence could keep."""
        return Plan(min(self._depth, max_depth))
