"""Traversal: judge a tree from its leaves to its root, so that a rejected leaf helps its parent.

    a(root) = 1,  a(x) = min(1, a(n) P_n(x) / q_x(x)) for a child x of n          (top down)
    take the first leaf in order of drawing, n:
        with probability a(n) accept the path to n and draw y ~ P_n
        else, with its parent r:  R = (a(r) P_r - q_n)+,  m = sum R,
             P_r = N(R),  a(r) = m / (m + 1 - a(r)),  delete n, and a(.) below r anew
    the root, once a leaf, is accepted

P_n starts as p after n. As in `tree`, q_n is the law that n itself was drawn from. On a chain this
is blockwise. Weng et al. 2025, arXiv 2505.12398.
"""

from __future__ import annotations

import torch

from draftproof.core import Draft, Proposal, Purpose, Verdict
from draftproof.sampling.draw import residual
from draftproof.sampling.noise import Noise
from draftproof.verification.base import drafted_law

ROOT = -1


class Traversal:
    name = "traversal"
    accepts = frozenset({Proposal.POINT, Proposal.SAMPLED, Proposal.DISTINCT})
    greedy = False
    keyed = False
    trees = True

    def verify(self, draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
        state = _Remaining(draft, p)
        while True:
            node = state.first_leaf()
            if node == ROOT or noise.accepts(state.chance(node), 1.0, position, node + 1):
                y = noise.draw(state.law(node), position, Purpose.CORRECTION)
                return Verdict(tuple(draft.path(node)), y, node not in draft.parents)
            state.delete(node)


class _Remaining:
    """What is left of a tree while its leaves fall."""

    def __init__(self, draft: Draft, p: torch.Tensor) -> None:
        self._draft = draft
        self._p = p
        self._left: dict[int, torch.Tensor] = {}
        """P of the nodes that have lost children."""
        self._reached: dict[int, float] = {ROOT: 1.0}
        """a of the nodes for which it has been computed and still holds."""
        self._children = {node: draft.children(node) for node in range(ROOT, len(draft.tokens))}

    def first_leaf(self) -> int:
        node = ROOT
        while self._children[node]:
            node = self._children[node][0]
        return node

    def law(self, node: int) -> torch.Tensor:
        """P f[V] after `node`."""
        return self._left.get(node, self._p[node + 1])

    def chance(self, node: int) -> float:
        """a of `node`; those above it that still hold are not computed again."""
        if node not in self._reached:
            parent, token = self._draft.parents[node], self._draft.tokens[node]
            q = float(drafted_law(self._draft, node, self._p)[token])
            above = self.chance(parent) * float(self.law(parent)[token])
            self._reached[node] = min(1.0, above / q) if q > 0 else 0.0
        return self._reached[node]

    def delete(self, leaf: int) -> None:
        parent = self._draft.parents[leaf]
        chance, before = self.chance(parent), self.law(parent)
        left = residual(before, drafted_law(self._draft, leaf, self._p), chance)
        mass = float(left.sum(dtype=torch.float64))
        if mass > 0:
            self._left[parent] = left / mass
            self._reached[parent] = mass / (mass + (1.0 - chance))
        elif chance < 1.0:
            # Nothing is left of the parent. Where chance is 1 only rounding can have come here.
            self._reached[parent] = 0.0
        self._children[parent] = self._children[parent][1:]
        for child in self._children[parent]:
            self._forget(child)

    def _forget(self, node: int) -> None:
        """Take back a of `node` and of what hangs below it."""
        self._reached.pop(node, None)
        for child in self._children[node]:
            self._forget(child)
