"""Plan the drafts of a whole batch at once, since one pass verifies them all.

What a round costs depends on all its drafts together, so a token that is likely to be accepted in
one sequence competes with those of every other: all offered nodes lie in one pool, the likeliest
are taken, and as many as bring the most expected tokens a second. A batch that grows leaves less
room for each, down to none. TurboSpec (arXiv 2406.14066) plans a batch's one depth that way, and
AdaServe (arXiv 2501.12162) picks nodes by their chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftproof.control.adaptive import LOOKUP_SIZES, AdaptiveControl
from draftproof.control.base import Controller
from draftproof.core import Plan
from draftproof.theory.trees import Node

_MOST_LEVELS = 8
_LEAST_GAIN = 1.05
"""Speed-up from which a batch drafts: many rows know their acceptance well, but the costs of wide
passes are known to some per cent only."""
_PATIENCE = 1.5
"""Rounds of plain decoding that a round may take while somebody in it has no draft: a sequence of
hopeless drafts waits no longer than that for those of others."""
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Nodes of all sequences together that are tried."""


@dataclass(frozen=True, slots=True)
class _Given:
    """What sequences with a fixed plan will draft."""

    nodes: int
    widest: int
    """Nodes of the largest draft."""
    levels: int
    drafting: int


@dataclass(frozen=True, slots=True)
class _Choice:
    nodes: Sequence[tuple[int, Node]]
    """(controller, node), the likeliest first."""
    rate: float
    """Expected tokens a second, of all sequences."""


def plan_together(
    controllers: Sequence[Controller],
    rooms: Sequence[int],
    context_lengths: Sequence[int],
    padded: bool,
) -> list[Plan]:
    """The next plan of each sequence.

    `rooms[b]` is the deepest draft that sequence b could keep. `padded`: the model computes every
    row as wide as the widest.
    """
    batch = len(controllers)
    planned = [b for b, one in enumerate(controllers) if isinstance(one, AdaptiveControl)]
    plans: list[Plan | None] = [None] * batch
    for b, one in enumerate(controllers):
        if batch == 1 or b not in planned:
            plans[b] = one.plan(rooms[b], context_lengths[b], batch)
    if batch > 1 and planned:
        pool = _Pool(
            [one for one in controllers if isinstance(one, AdaptiveControl)],
            [rooms[b] for b in planned],
            sum(context_lengths) // batch,
            _given([plan for plan in plans if plan is not None]),
            padded,
        )
        for b, plan in zip(planned, pool.plans(), strict=True):
            plans[b] = plan
    return [plan for plan in plans if plan is not None]


def _given(plans: Sequence[Plan]) -> tuple[_Given, int]:
    """Sums over fixed plans, and how many there are."""
    sizes = [min(plan.depth, plan.nodes) if plan.width == 1 else plan.nodes for plan in plans]
    sizes = [size if plan.depth else 0 for size, plan in zip(sizes, plans, strict=True)]
    levels = max((plan.depth for plan in plans), default=0)
    drafting = sum(size > 0 for size in sizes)
    return _Given(sum(sizes), max(sizes, default=0), levels, drafting), len(plans)


class _Pool:
    """All nodes that a batch could draft, and the best of them for one round."""

    def __init__(
        self,
        controls: Sequence[AdaptiveControl],
        rooms: Sequence[int],
        context_length: int,
        given: tuple[_Given, int],
        padded: bool,
    ) -> None:
        self._controls = controls
        self._rooms = rooms
        self._given, others = given
        self._batch = len(controls) + others
        self._padded = padded
        self._offers = [
            control.offer(min(room, _MOST_LEVELS), context_length, self._batch)
            for control, room in zip(controls, rooms, strict=True)
        ]
        self._plain = self._seconds(0, 0, 0, 0)

    def plans(self) -> list[Plan]:
        best = self._best()
        if not best.nodes:
            probe = self._should_probe()
            plans = [
                control.take(1, 1, True) if probe and room else control.take(0, 0)
                for control, room in zip(self._controls, self._rooms, strict=True)
            ]
        else:
            plans = self._shares(best)
        return self._with_lookups(plans, best)

    def _shares(self, best: _Choice) -> list[Plan]:
        """What each sequence gets of the best choice."""
        counts, levels = [0] * len(self._controls), [0] * len(self._controls)
        for b, node in best.nodes:
            counts[b] += 1
            levels[b] = max(levels[b], node.level)
        if self._padded:
            # The columns are paid for.
            deepest, widest = max(levels), max(counts)
            for b, nodes in enumerate(self._offers):
                counts[b] = min(widest, sum(node.level <= deepest for node in nodes))
                levels[b] = min(deepest, counts[b])
        return [
            control.take(1, 1, True)
            if not counts[b] and self._offers[b] and control.due
            else control.take(levels[b], counts[b])
            for b, control in enumerate(self._controls)
        ]

    def _with_lookups(self, plans: Sequence[Plan], best: _Choice) -> list[Plan]:
        """The plans with what a looked-up draft has to promise to be used instead."""
        drafting = sum(plan.depth > 0 for plan in plans)
        levels = max(plan.depth for plan in plans)
        sizes = [min(plan.nodes, plan.depth) for plan in plans]
        size, widest = sum(sizes), max(sizes)
        costs = [
            self._seconds(levels, size + more, max(widest, more), drafting)
            for more in (0, *LOOKUP_SIZES)
        ]
        column = best.rate * (costs[-1] - costs[0]) / LOOKUP_SIZES[-1]
        return [
            control.beside(
                plan, room, sum(node.chance - column for node in nodes[:n]), best.rate, costs
            )
            for control, plan, room, nodes, n in zip(
                self._controls, plans, self._rooms, self._offers, sizes, strict=True
            )
        ]

    def _should_probe(self) -> bool:
        """Whether all draft one token, to hear whether drafters have become better.

        A probe keeps the whole batch waiting, so sequences probe together, and only where drafts
        would pay if they were right.
        """
        count = len(self._controls)
        if 2 * sum(control.due for control in self._controls) < count:
            return False
        right = max(
            (self._batch + count * depth)
            / (self._batch * self._seconds(depth, count * depth, depth, count))
            for depth in range(1, _MOST_LEVELS + 1)
        )
        affordable = 1 + sum(control.account.balance for control in self._controls) / count
        probe = self._seconds(1, count, 1, count)
        return right * self._plain >= _LEAST_GAIN and probe <= affordable * self._plain

    def _best(self) -> _Choice:
        """What brings the most tokens a second of what the accounts allow; nothing drafted is
        one."""
        pool = sorted(
            ((b, node) for b, nodes in enumerate(self._offers) for node in nodes),
            key=lambda one: -one[1].chance,
        )
        best = _Choice((), _LEAST_GAIN * self._batch / self._plain)
        usual = sum(control.account.usual for control in self._controls) / len(self._controls)
        for depth in range(1, max((node.level for _, node in pool), default=0) + 1):
            nodes = [one for one in pool if one[1].level <= depth]
            for size, drafting, widest, tokens in _sizes(nodes):
                seconds = self._seconds(depth, size, widest, drafting)
                rate = (self._batch + tokens) / seconds
                limit = usual if drafting == self._batch else min(usual, _PATIENCE)
                if rate > best.rate and seconds <= limit * self._plain:
                    best = _Choice(nodes[:size], rate)
        return best

    def _seconds(self, levels: int, size: int, widest: int, drafting: int) -> float:
        """A round with `size` nodes beside those that are given, `widest` in one draft."""
        columns = 1.0 + (self._given.nodes + size) / self._batch
        if self._padded:
            columns = 1.0 + max(self._given.widest, widest)
        return self._controls[0].batch_seconds(
            max(self._given.levels, levels), columns, self._given.drafting + drafting
        )


def _sizes(nodes: Sequence[tuple[int, Node]]) -> Iterator[tuple[int, int, int, float]]:
    """Yield size, sequences that draft, nodes of the largest draft, tokens expected beyond one
    for each sequence."""
    counts: dict[int, int] = {}
    tokens = 0.0
    for size, (b, node) in enumerate(nodes, start=1):
        counts[b] = counts.get(b, 0) + 1
        tokens += node.chance
        if size in _SIZES or size == len(nodes):
            yield size, len(counts), max(counts.values()), tokens
