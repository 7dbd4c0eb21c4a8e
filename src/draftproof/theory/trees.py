"""The best tree of so many nodes, grown by the probability that the target accepts each path.

A child's probability is its parent's times the chance that the drafter's first, second, ... choice
is the one that is accepted: OPT-Tree (arXiv 2406.17276) with the chances of Sequoia's ranks
(arXiv 2402.12374). Where a place is rather lost than won by a better choice, that is where no
choice of a node is likelier than the ones before it, the nodes come out in an order in which every
first part is the best tree of its size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush

from draftproof.config import MAX_NODES
from draftproof.static_tree import Place, StaticTree


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a tree that is grown."""

    chance: float
    """Probability that the whole path down to here is accepted."""
    parent: int
    """Index of the parent, -1 for the anchor."""
    level: int
    """Tokens down from the anchor, from 1."""
    rank: int
    """The drafter's choice among the children of a node, from 0."""


def best_nodes(
    rates: Sequence[float], ranks: Sequence[float], width: int, nodes: int
) -> Iterator[Node]:
    """Yield up to `nodes` nodes, the most probable of those at hand first; parents and elder
    siblings come before a node.

    `rates[i]` is the probability that the first choice at level i + 1 is accepted given that the
    path before was; there are no levels beyond. `ranks[j]` is that of choice j + 2 given that all
    before it were not. `width` limits the children of a node and the nodes of a level that get
    children. A width of 1 gives the chain.
    """
    if not rates or nodes < 1:
        return
    count = 0
    expanded: Counter[int] = Counter()
    # (-chance, order, parent, level, rank, chance of the parent, chance that no rank before hit)
    heap = [(-rates[0], 0, -1, 1, 0, 1.0, 1.0)]
    order = 1
    while heap and count < nodes:
        negative, _, parent, level, rank, above, missed = heappop(heap)
        chance = -negative
        yield Node(chance, parent, level, rank)
        own = rates[level - 1] if rank == 0 else ranks[rank - 1]
        if rank + 1 < width and rank < len(ranks):
            left = missed * (1 - own)
            sibling = above * left * ranks[rank]
            heappush(heap, (-sibling, order, parent, level, rank + 1, above, left))
            order += 1
        if level < len(rates) and expanded[level] < width:
            expanded[level] += 1
            child = chance * rates[level]
            heappush(heap, (-child, order, count, level + 1, 0, chance, 1.0))
            order += 1
        count += 1


def best_static_tree(rates: Sequence[float], ranks: Sequence[float], nodes: int) -> StaticTree:
    """The tree of at most `nodes` places of which the target accepts most tokens, in the mean.

    `rates` and `ranks` are as for `best_nodes`, in any order of size. The dynamic program of
    Sequoia (arXiv 2402.12374, section 4.1).
    """

    @cache
    def best(level: int, rank: int, size: int) -> tuple[float, int]:
        """Most tokens of `size` nodes, children of one node from `rank` on with all below them,
        given that the path before is accepted and no child before it; how many nodes the first
        child gets with its own."""
        if size == 0 or level == len(rates) or rank > len(ranks):
            return 0.0, 0
        chance = ranks[rank - 1] if rank else rates[level]
        return max(
            (
                chance * (1 + best(level + 1, 0, mine - 1)[0])
                + (1 - chance) * best(level, rank + 1, size - mine)[0],
                mine,
            )
            for mine in range(1, size + 1)
        )

    def places(parent: Place, rank: int, size: int) -> Iterator[Place]:
        _, mine = best(len(parent), rank, size)
        if mine:
            place = (*parent, rank)
            yield place
            yield from places(place, 0, mine - 1)
            yield from places(parent, rank + 1, size - mine)

    return StaticTree(tuple(places((), 0, min(nodes, MAX_NODES))))
