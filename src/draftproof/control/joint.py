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

from draftproof.control.adaptive import AdaptiveControl
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
class _Choice:
    nodes: Sequence[tuple[int, Node]]
    """(sequence, node), the likeliest first."""
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
    adaptive = [one for one in controllers if isinstance(one, AdaptiveControl)]
    if batch == 1 or len(adaptive) < batch:
        return [
            controller.plan(room, length, batch)
            for controller, room, length in zip(controllers, rooms, context_lengths, strict=True)
        ]
    length = sum(context_lengths) // batch
    offers = [
        control.offer(min(room, _MOST_LEVELS), length, batch)
        for control, room in zip(adaptive, rooms, strict=True)
    ]
    best = _best(adaptive, offers, padded)
    if not best.nodes:
        probe = _should_probe(adaptive)
        return [
            control.take(1, 1, True) if probe and room else control.take(0, 0)
            for control, room in zip(adaptive, rooms, strict=True)
        ]
    counts, levels = [0] * batch, [0] * batch
    for b, node in best.nodes:
        counts[b] += 1
        levels[b] = max(levels[b], node.level)
    if padded:
        # The columns are paid for.
        deepest, widest = max(levels), max(counts)
        for b, nodes in enumerate(offers):
            counts[b] = min(widest, sum(node.level <= deepest for node in nodes))
            levels[b] = min(deepest, counts[b])
    return [
        control.take(1, 1, True)
        if not counts[b] and offers[b] and control.due
        else control.take(levels[b], counts[b])
        for b, control in enumerate(adaptive)
    ]


def _should_probe(controls: Sequence[AdaptiveControl]) -> bool:
    """Whether all draft one token, to hear whether drafters have become better.

    A probe keeps the whole batch waiting, so sequences probe together, and only where drafts would
    pay if they were right.
    """
    batch, first = len(controls), controls[0]
    if 2 * sum(control.due for control in controls) < batch:
        return False
    plain = first.batch_seconds(0, 1.0, 0)
    right = max(
        (1 + depth) * plain / first.batch_seconds(depth, 1.0 + depth, batch)
        for depth in range(1, _MOST_LEVELS + 1)
    )
    affordable = 1 + sum(control.balance for control in controls) / batch
    return right >= _LEAST_GAIN and first.batch_seconds(1, 2.0, batch) <= affordable * plain


def _best(
    controls: Sequence[AdaptiveControl], offers: Sequence[Sequence[Node]], padded: bool
) -> _Choice:
    """What brings the most tokens a second of what the accounts allow; nothing drafted is one."""
    batch = len(controls)
    pool = sorted(
        ((b, node) for b, nodes in enumerate(offers) for node in nodes),
        key=lambda one: -one[1].chance,
    )
    plain = controls[0].batch_seconds(0, 1.0, 0)
    best = _Choice((), _LEAST_GAIN * batch / plain)
    longest = plain * sum(control.stake for control in controls) / batch
    for depth in range(1, max((node.level for _, node in pool), default=0) + 1):
        nodes = [one for one in pool if one[1].level <= depth]
        for size, drafting, widest, tokens in _sizes(nodes, batch):
            columns = 1 + (widest if padded else size / batch)
            seconds = controls[0].batch_seconds(depth, columns, drafting)
            limit = longest if drafting == batch else min(longest, _PATIENCE * plain)
            if tokens / seconds > best.rate and seconds <= limit:
                best = _Choice(nodes[:size], tokens / seconds)
    return best


def _sizes(nodes: Sequence[tuple[int, Node]], batch: int) -> Iterator[tuple[int, int, int, float]]:
    """Yield size, sequences that draft, nodes of the largest draft, expected tokens."""
    counts: dict[int, int] = {}
    tokens = float(batch)
    for size, (b, node) in enumerate(nodes, start=1):
        counts[b] = counts.get(b, 0) + 1
        tokens += node.chance
        if size in _SIZES or size == len(nodes):
            yield size, len(counts), max(counts.values()), tokens
