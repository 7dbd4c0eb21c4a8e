"""Plan the drafts of a whole batch at once, since one pass verifies them all.

What a round costs depends on all its drafts together, so a token that is likely to be accepted in
one sequence competes with those of every other: all offered nodes lie in one pool, the likeliest
are taken, and as many as bring the most expected tokens a second. A batch that grows leaves less
room for each, down to none. TurboSpec (arXiv 2406.14066) plans a batch's one depth that way, and
AdaServe (arXiv 2501.12162) picks nodes by their chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from draftproof.control.adaptive import AdaptiveControl
from draftproof.control.base import Controller
from draftproof.control.hybrid import LOOKUP_SIZES, HybridControl, price
from draftproof.core import Plan

_MOST_LEVELS = 8
_LEAST_GAIN = 1.05
"""Speed-up from which a batch drafts: many rows know their acceptance well, but the costs of wide
passes are known to some per cent only."""
_PATIENCE = 1.5
"""Rounds of plain decoding that a round may take while somebody in it has no draft: a sequence of
hopeless drafts waits no longer than that for those of others."""
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Nodes of all sequences together that are tried."""


@dataclass(slots=True)
class _Shape:
    """What all drafts of a round come to, while nodes are added."""

    nodes: int
    widest: int
    """Nodes of the largest draft."""
    levels: list[int]
    """Deepest draft of each drafter; a draft is a chain."""
    drafting: list[int]
    """Sequences that each drafter drafts for."""


@dataclass(frozen=True, slots=True)
class _Choice:
    counts: Mapping[int, int]
    """Controller -> nodes that it gets."""
    rate: float
    """Expected tokens a second, of all sequences."""


def plan_together(
    controllers: Sequence[Controller],
    rooms: Sequence[int],
    context_lengths: Sequence[int],
    padded: bool,
    apart: Container[int] = (),
) -> list[Plan]:
    """The next plan of each sequence.

    `rooms[b]` is the deepest draft that sequence b could keep. `padded`: the model computes every
    row as wide as the widest. `apart` are sequences whose drafts may not depend on what became of
    the others': they plan as if they were alone.
    """
    batch = len(controllers)
    pooled = {
        b: one
        for b, one in enumerate(controllers)
        if batch > 1 and b not in apart and isinstance(one, AdaptiveControl)
    }
    plans = {
        b: one.plan(rooms[b], context_lengths[b], 1 if b in apart else batch)
        for b, one in enumerate(controllers)
        if b not in pooled
    }
    if pooled:
        length = sum(context_lengths) // batch
        own_rooms, fixed = [rooms[b] for b in pooled], list(plans.values())
        pool = _Pool(list(pooled.values()), own_rooms, length, fixed, padded)
        plans |= zip(pooled, pool.plans(), strict=True)
    return [plans[b] for b in range(batch)]


class _Pool:
    """All nodes that a batch could draft, and the best of them for one round."""

    def __init__(
        self,
        controls: Sequence[AdaptiveControl],
        rooms: Sequence[int],
        context_length: int,
        fixed: Sequence[Plan],
        padded: bool,
    ) -> None:
        """`fixed` are the plans of sequences beside these."""
        self._controls = controls
        self._rooms = rooms
        self._fixed = [(_size(plan), plan.depth) for plan in fixed if plan.depth]
        self._batch = len(controls) + len(fixed)
        self._padded = padded
        # Controllers that plan with the same costs have the same drafter.
        costs = [control.forecast.costs for control in controls]
        self._group = [costs.index(one) for one in costs]
        self._groups = sorted({0, *self._group})
        mixed = len(self._groups) > 1
        self._offers = [
            control.offer(min(room, _MOST_LEVELS), context_length, self._batch, mixed)
            for control, room in zip(controls, rooms, strict=True)
        ]
        # Most of what is asked of them is asked many times over.
        self._pass_seconds = cache(controls[0].forecast.pass_seconds)
        self._draft_seconds = cache(
            lambda group, levels, drafting: controls[group].forecast.draft_seconds(
                levels, 1, drafting
            )
        )
        self._plain = self._seconds(self._empty())
        self._usual = sum(control.account.usual for control in controls) / len(controls)

    def plans(self) -> list[Plan]:
        best = self._best()
        if not best.counts:
            probe = self._should_probe()
            plans = [
                control.take(1, 1, True) if probe and room else control.take(0, 0)
                for control, room in zip(self._controls, self._rooms, strict=True)
            ]
        else:
            plans = self._shares(best)
        if any(isinstance(control, HybridControl) for control in self._controls):
            plans = self._with_lookups(plans, best)
        return plans

    def _shares(self, best: _Choice) -> list[Plan]:
        """What each sequence gets of the best choice."""
        counts = [best.counts.get(b, 0) for b in range(len(self._controls))]
        if self._padded:
            # The columns are paid for, and so are the levels of a drafter that goes so deep.
            paid: dict[int, int] = {}
            for group, count in zip(self._group, counts, strict=True):
                paid[group] = max(count, paid.get(group, 0))
            counts = [
                min(paid[group], len(chances))
                for group, chances in zip(self._group, self._offers, strict=True)
            ]
        return [
            control.take(1, 1, True)
            if not counts[b] and self._offers[b] and control.due
            else control.take(counts[b], counts[b])
            for b, control in enumerate(self._controls)
        ]

    def _with_lookups(self, plans: Sequence[Plan], best: _Choice) -> list[Plan]:
        """The plans with what a looked-up draft has to promise to be used instead."""
        shape = self._empty()
        for b, plan in enumerate(plans):
            for count in range(1, plan.depth + 1):
                self._add(shape, b, count)
        costs = [self._seconds(shape, more) for more in (0, *LOOKUP_SIZES)]
        node = price(best.rate, costs)
        return [
            control.beside(
                plan, room, sum(chances[: plan.depth]) - node * plan.depth, best.rate, costs
            )
            if isinstance(control, HybridControl)
            else plan
            for control, plan, room, chances in zip(
                self._controls, plans, self._rooms, self._offers, strict=True
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
        shape, right = self._empty(), 0.0
        affordable = 1 + sum(control.account.balance for control in self._controls) / count
        for depth in range(1, _MOST_LEVELS + 1):
            for b in range(count):
                self._add(shape, b, depth)
            seconds = self._seconds(shape)
            if depth == 1 and seconds > affordable * self._plain:
                return False
            right = max(right, (self._batch + count * depth) / (self._batch * seconds))
        return right * self._plain >= _LEAST_GAIN

    def _best(self) -> _Choice:
        """What brings the most tokens a second of what the accounts allow; nothing drafted is
        one. Where drafters differ, so may the best choice without the dearer ones."""
        best = _Choice({}, _LEAST_GAIN * self._batch / self._plain)
        by_price = sorted(self._groups, key=lambda group: self._draft_seconds(group, 1, 1))
        for count in range(1, len(by_price) + 1):
            drafting = by_price[:count]
            pool = sorted(
                (
                    (chance, b, level)
                    for b, chances in enumerate(self._offers)
                    for level, chance in enumerate(chances, start=1)
                    if self._group[b] in drafting
                ),
                key=lambda one: -one[0],
            )
            for depth in range(1, max((level for _, _, level in pool), default=0) + 1):
                best = self._better([one for one in pool if one[2] <= depth], best)
        return best

    def _better(self, nodes: Sequence[tuple[float, int, int]], best: _Choice) -> _Choice:
        """`best`, or so many of the first of `nodes` as are better."""
        shape, tokens, counts = self._empty(), float(self._batch), Counter[int]()
        for size, (chance, b, _) in enumerate(nodes, start=1):
            counts[b] += 1
            self._add(shape, b, counts[b])
            tokens += chance
            if size not in _SIZES and size < len(nodes):
                continue
            seconds = self._seconds(shape)
            limit = self._usual if len(counts) == self._batch else min(self._usual, _PATIENCE)
            if tokens / seconds > best.rate and seconds <= limit * self._plain:
                best = _Choice(dict(counts), tokens / seconds)
        return best

    def _empty(self) -> _Shape:
        """The drafts of those with a fixed plan alone, which count as the first one's drafter's."""
        sizes = [size for size, _ in self._fixed]
        levels, drafting = [0] * len(self._controls), [0] * len(self._controls)
        levels[0] = max((depth for _, depth in self._fixed), default=0)
        drafting[0] = len(sizes)
        return _Shape(sum(sizes), max(sizes, default=0), levels, drafting)

    def _add(self, shape: _Shape, b: int, count: int) -> None:
        """Give sequence b its `count`-th node."""
        group = self._group[b]
        shape.nodes += 1
        shape.widest = max(shape.widest, count)
        shape.levels[group] = max(shape.levels[group], count)
        shape.drafting[group] += count == 1

    def _seconds(self, shape: _Shape, looked_up: int = 0) -> float:
        """A round with these drafts and one of `looked_up` nodes more."""
        columns = 1.0 + (shape.nodes + looked_up) / self._batch
        if self._padded:
            columns = 1.0 + max(shape.widest, looked_up)
        seconds = self._pass_seconds(columns)
        for group in self._groups:
            if shape.levels[group]:
                seconds += self._draft_seconds(group, shape.levels[group], shape.drafting[group])
        return seconds


def _size(plan: Plan) -> int:
    """Nodes that a fixed plan may draft."""
    return min(plan.depth, plan.nodes) if plan.width == 1 else plan.nodes
