"""What a verifier is: a rule that keeps a part of a draft and adds one token.

Every rule keeps the target's law: whatever q is, the tokens that come out are distributed as if
they had been drawn from p one by one. Each names the proposals for which that holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from draftproof.core import Draft, Proposal, Verdict
from draftproof.sampling.draw import point_mass
from draftproof.sampling.noise import Noise


class Verifier(Protocol):
    """One acceptance rule."""

    name: str
    accepts: frozenset[Proposal]
    """Proposals for which the rule is lossless."""
    greedy: bool
    """True: for temperature 0 only."""
    keyed: bool
    """True: emits the target's own keyed draw, so a seed fixes the text whatever the drafter."""
    trees: bool
    """False: judges chains only."""

    def verify(self, draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
        """Judge `draft`.

        p: f[N+1, V], row 0 is the target's law after the anchor, row i+1 after node i; not
        written to. `position` is that of the token after the anchor.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pairing:
    """A rule and the way of drafting it will judge."""

    verifier: Verifier
    proposal: Proposal


def follow(draft: Draft, choose: Callable[[int, int], int]) -> Verdict:
    """Let the target choose its own token and descend while a child carries it.

    `choose(row, depth)` gives the target's token after row `row` of p, `depth` tokens below the
    anchor. The token is the target's own wherever it comes from, so this is lossless for every
    draft that does not depend on the choice (algorithm 3.4b of the point rule; Gumbel coupling).
    """
    node = -1
    accepted: list[int] = []
    while True:
        token = choose(node + 1, len(accepted))
        child = draft.child(node, token)
        if child is None:
            return Verdict(tuple(accepted), token, node not in draft.parents)
        accepted.append(child)
        node = child


def drafted_law(draft: Draft, node: int, p: torch.Tensor) -> torch.Tensor:
    """q f[V] of one node; a token that was not drawn is its own point mass."""
    if draft.q is not None:
        return draft.q[node]
    return point_mass(draft.tokens[node], like=p[node])
