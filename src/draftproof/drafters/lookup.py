"""What look-up drafters share: drafts that cost no model, each with an estimate of its worth."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol, TypeVar

from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.drafters.base import Drafter, Drafting
from draftproof.models.cache import KVCache
from draftproof.static_tree import Place

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Guess:
    """A POINT draft and what its drafter expects of it."""

    draft: Draft
    score: float
    """Expected accepted tokens: the sum of the nodes' path probabilities."""


NO_GUESS = Guess(Draft.chain((), Proposal.POINT), 0.0)


class LookupDrafting(Drafting):
    """A drafting that looks its drafts up; only `guess` has to be written."""

    @abstractmethod
    def guess(self, context: Context, plan: Plan) -> Guess:
        """The draft for one sequence, within its plan; called once a round for each."""
        ...

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        return [
            self.guess(context, plan).draft for context, plan in zip(contexts, plans, strict=True)
        ]


class LookupDrafter(Drafter, Protocol):
    def begin(self, target_cache: KVCache) -> LookupDrafting: ...


def grow(
    root: State,
    successors: Callable[[State, int], Iterable[tuple[int, float, State]]],
    plan: Plan,
) -> Guess:
    """The draft of the likeliest paths within `plan`, by best-first search.

    `successors(state, most)` gives up to `most` tokens that may follow, likeliest first, each
    with its probability given the path and with the state behind it. A node's score is the
    product of the probabilities along its path, as in OPT-Tree, arXiv 2406.17276; children never
    outscore their parents, so the nodes that are taken first form a tree.
    """
    tokens: list[int] = []
    parents: list[int] = []
    score = 0.0
    fertile = [0] * plan.depth
    # (-path probability, age, place, parent, token, state): ages differ, states never compare.
    open_nodes: list[tuple[float, int, Place, int, int, State]] = []
    age = 0

    def expand(node: int, place: Place, chance: float, state: State) -> None:
        nonlocal age
        depth, most = len(place), plan.children(place)
        if most == 0 or depth == plan.depth or fertile[depth] == plan.fertile:
            return
        fertile[depth] += 1
        for rank, (token, share, behind) in enumerate(successors(state, most)):
            if chance * share >= plan.floor:
                heappush(open_nodes, (-chance * share, age, (*place, rank), node, token, behind))
                age += 1

    expand(-1, (), 1.0, root)
    while open_nodes and len(tokens) < plan.nodes:
        negative, _, place, parent, token, state = heappop(open_nodes)
        tokens.append(token)
        parents.append(parent)
        score -= negative
        expand(len(tokens) - 1, place, -negative, state)
    return Guess(Draft(tuple(tokens), tuple(parents), None, Proposal.POINT), score)
