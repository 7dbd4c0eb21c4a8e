"""Plan for a drafter that is two: a look-up whose draft may be better, and one that runs a model.

The other drafter is planned as if it were alone. That gives a rate R of tokens a second, and what a
looked-up draft has to promise to be used instead: with s expected tokens in n columns it brings
1 + s tokens in T(1) + n c seconds, no model having run, which is more than R where

    s - n R c > R T(1) - 1,

and a node is worth its column where its chance of acceptance is above R c. So the look-up's limits
follow from what the model would bring: a plain round, with R T(1) = 1, gives way to any draft that
pays for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftproof.config import MAX_NODES
from draftproof.control.adaptive import AdaptiveControl
from draftproof.control.forecast import Costs
from draftproof.core import Draft, Plan, Step
from draftproof.theory.machine import RoundCost

LOOKUP_SIZES = (1, 2, 4, 8, 16, 32)
"""Nodes of a looked-up draft that are priced."""
_PRIOR = 1.0
"""Promised tokens that a look-up is taken to have kept, until more is known."""
_KEPT = 0.98
"""What a round leaves of the weight of those before it; a look-up that was wrong and is not asked
any more is trusted again by and by."""
_MARGIN = 1.1
"""How much more than its costs a looked-up node has to bring; promises are estimates."""


class HybridControl(AdaptiveControl):
    def __init__(
        self, costs: Costs, prior: float, nodes: int = MAX_NODES, trees: bool = True
    ) -> None:
        """`prior` and the costs of drafting are those of the other drafter."""
        super().__init__(costs, prior, nodes, trees)
        self._promised = self._kept = 0.0

    def plan(self, max_depth: int, context_length: int, batch_size: int) -> Plan:
        plan = super().plan(max_depth, context_length, batch_size)
        costs = [self.forecast.pass_seconds(1 + nodes) for nodes in (0, *LOOKUP_SIZES)]
        return self.beside(plan, max_depth, self.rate * costs[0] - 1, self.rate, costs)

    def beside(
        self, plan: Plan, max_depth: int, bar: float, rate: float, costs: Sequence[float]
    ) -> Plan:
        """`plan` with what the look-up may draft instead.

        It has to promise `bar` tokens beyond what its nodes cost at `rate` tokens a second, where
        `costs` are seconds of the round without it and with each of `LOOKUP_SIZES` nodes.
        """
        longest = costs[0] + (self.account.usual - 1) * self.forecast.pass_seconds(1)
        affordable = [n for n, cost in zip(LOOKUP_SIZES, costs[1:], strict=True) if cost <= longest]
        nodes = min(max(affordable, default=0), self._nodes)
        trust = (self._kept + _PRIOR) / (self._promised + _PRIOR)
        lookup = Plan(
            min(max_depth, nodes),
            nodes=max(1, nodes),
            floor=min(1.0, _MARGIN * price(rate, costs) / trust),
            bar=bar / trust,
        )
        return replace(plan, lookup=lookup)

    def observe(self, draft: Draft, step: Step, cost: RoundCost) -> None:
        self._promised *= _KEPT
        self._kept *= _KEPT
        super().observe(draft, step, cost)

    def _levels(self, draft: Draft, step: Step) -> int:
        return 0 if draft.promised is not None else super()._levels(draft, step)

    def _learn(self, draft: Draft, step: Step, loss: float) -> None:
        """What a look-up was right in tells of the look-up alone."""
        if draft.promised is None:
            super()._learn(draft, step, loss)
        else:
            self._promised += draft.promised
            self._kept += step.accepted


def price(rate: float, costs: Sequence[float]) -> float:
    """Tokens that a looked-up node has to bring, where they come at `rate` a second; `costs` as
    for `beside`."""
    return rate * max(0.0, costs[-1] - costs[0]) / LOOKUP_SIZES[-1]
