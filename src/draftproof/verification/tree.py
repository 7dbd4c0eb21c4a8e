"""Recursive rejection down a tree: each child in turn against what its siblings left of p.

With P = p after a node, and its children x_1 .. x_k in the order they were drawn, child j from q_j:

    accept x_j with probability min(1, P(x_j) / q_j(x_j)) and descend, else P = N((P - q_j)+)
    none accepted: y ~ P

N normalises. With replacement every q_j is q (SpecInfer, Miao et al. 2023, arXiv 2305.09781);
without, q_j is q less the siblings before, normalised (Jeon et al. 2024, arXiv 2402.14160; Sequoia,
Chen et al. 2024, arXiv 2402.12374); a token fixed by rule has q_j = 1 at itself. `Draft.q` holds
q_j either way. All children of a node have to be judged in their order, equal ones included; on a
chain this is tokenwise.
"""

from __future__ import annotations

import torch

from draftproof.core import Draft, Proposal, Purpose, Verdict
from draftproof.sampling.draw import residual
from draftproof.sampling.noise import Noise
from draftproof.verification.base import drafted_law


class Tree:
    name = "tree"
    accepts = frozenset({Proposal.POINT, Proposal.SAMPLED, Proposal.DISTINCT})
    greedy = False
    keyed = False
    trees = True

    def verify(self, draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
        node = -1
        accepted: list[int] = []
        while True:
            child, left = _descend(draft, node, p, position, noise)
            if child is None:
                y = noise.draw(left, position, Purpose.CORRECTION)
                return Verdict(tuple(accepted), y, node not in draft.parents)
            accepted.append(child)
            node = child


def _descend(
    draft: Draft, node: int, p: torch.Tensor, position: int, noise: Noise
) -> tuple[int | None, torch.Tensor]:
    """The accepted child of `node`, or None, and what is left of its p: f[V]."""
    left = p[node + 1]
    for child in draft.children(node):
        token, q = draft.tokens[child], drafted_law(draft, child, p)
        if noise.accepts(float(left[token]), float(q[token]), position, child):
            return child, left
        left = remainder(left, q)
    return None, left


def remainder(p: torch.Tensor, q: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """N((scale * p - q)+) f[V]; p itself where only rounding can have rejected."""
    left = residual(p, q, scale)
    mass = left.sum(dtype=torch.float64)
    return left / mass.to(left.dtype) if mass > 0 else p
