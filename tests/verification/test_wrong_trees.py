"""Negative controls for trees: faults of rules and of pruning that enumeration must see."""

from __future__ import annotations

import pytest
import torch

from draftproof.checks.exact import emitted_law, joint_law, total_variation
from draftproof.core import Draft, Proposal, Purpose, Verdict
from draftproof.models.toy import random_law
from draftproof.sampling.draw import residual
from draftproof.verification.traversal import Traversal, _Remaining
from draftproof.verification.tree import Tree, remainder
from tests.toys import EXACT, remembered, sibling_proposer

BIASED = 0.005
PAIRS = [tuple(remembered(random_law(3, 60 + 2 * i + j)) for j in (0, 1)) for i in range(5)]


def worst_deviation(rule, proposer, depth):
    """Largest error over all pairs; `proposer(draft law)` makes the draft."""
    return max(
        total_variation(
            emitted_law(rule, target, proposer(draft), depth + 1), joint_law(target, depth + 1)
        )
        for target, draft in PAIRS
    )


def with_replacement(draft):
    return sibling_proposer(draft, 1, Proposal.SAMPLED, width=3)


def distinct(draft):
    return sibling_proposer(draft, 2, Proposal.DISTINCT)


class OneLevel:
    """Recursive rejection written out for trees of depth 1."""

    name = "tree"
    accepts = frozenset({Proposal.SAMPLED, Proposal.DISTINCT})
    greedy = False
    keyed = False
    trees = True

    def verify(self, draft, p, position, noise):
        left, seen = p[0], set()
        for i, token in enumerate(draft.tokens):
            if self.skips(token, seen):
                continue
            seen.add(token)
            if noise.accepts(float(left[token]), float(draft.q[i][token]), position, i):
                y = noise.draw(p[i + 1], position, Purpose.CORRECTION)
                return Verdict((i,), y, all_accepted=True)
            left = self.after_rejection(left, draft.q[i])
        return Verdict((), noise.draw(left, position, Purpose.CORRECTION), all_accepted=False)

    def skips(self, token, seen):  # noqa: ARG002
        return False

    def after_rejection(self, left, q):
        return remainder(left, q)


class SkipsDuplicates(OneLevel):
    """An equal sibling is sure to be rejected, but q has to be taken from p once more."""

    def skips(self, token, seen):
        return token in seen


class NotNormalised(OneLevel):
    def after_rejection(self, left, q):
        rest = residual(left, q)
        return rest if rest.sum() > 0 else left


class IgnoresTheRejection(OneLevel):
    def after_rejection(self, left, q):  # noqa: ARG002
        return left


class OtherParent(Traversal):
    """After a rejection a(parent) = min(1, m / what is left of q), as one system has it."""

    def verify(self, draft, p, position, noise):
        class Wrong(_Remaining):
            def delete(self, leaf):
                parent = self._draft.parents[leaf]
                chance, before = self.chance(parent), self.law(parent)
                q, token = self._draft.q[leaf], self._draft.tokens[leaf]
                super().delete(leaf)
                mass = float(residual(before, q, chance).sum())
                kept = 1.0 - float(q[token])
                if parent >= 0:
                    self._reached[parent] = min(1.0, mass / kept) if kept > 0 else 0.0

        return _traverse(Wrong(draft, p), draft, position, noise)


class SameCode(Traversal):
    def verify(self, draft, p, position, noise):
        return _traverse(_Remaining(draft, p), draft, position, noise)


def _traverse(state, draft, position, noise):
    while True:
        node = state.first_leaf()
        if node < 0 or noise.accepts(state.chance(node), 1.0, position, node + 1):
            y = noise.draw(state.law(node), position, Purpose.CORRECTION)
            return Verdict(tuple(draft.path(node)), y, node not in draft.parents)
        state.delete(node)


def pruned(draft):
    """Draws two siblings and submits the likelier one: fixed trees may do that, drawn ones not."""
    drawing = sibling_proposer(draft, 1, Proposal.SAMPLED)

    def propose(prefix, most, noise):
        drawn = drawing(prefix, most, noise)
        if not drawn.tokens:
            return drawn
        best = max(range(2), key=lambda i: float(drawn.q[i][drawn.tokens[i]]))
        return Draft.chain([drawn.tokens[best]], Proposal.SAMPLED, drawn.q[best : best + 1])

    return propose


def reordered(draft):
    """Draws two siblings without replacement and hands them over likeliest first."""
    drawing = sibling_proposer(draft, 1, Proposal.DISTINCT)

    def propose(prefix, most, noise):
        drawn = drawing(prefix, most, noise)
        if len(drawn.tokens) < 2:
            return drawn
        whole = torch.tensor(draft(prefix), dtype=torch.float64)
        first, second = sorted(drawn.tokens, key=lambda v: -float(whole[v]))
        rest = whole.clone()
        rest[first] = 0.0
        q = torch.stack([whole / whole.sum(), rest / rest.sum()])
        return Draft((first, second), (-1, -1), q, Proposal.DISTINCT)

    return propose


WRONG = {
    "equal siblings skipped": (SkipsDuplicates(), with_replacement, 1),
    "residual not normalised": (NotNormalised(), with_replacement, 1),
    "second sibling judged against all of p": (IgnoresTheRejection(), with_replacement, 1),
    "traversal with another a of the parent": (OtherParent(), distinct, 2),
    "drawn siblings pruned, tree": (Tree(), pruned, 1),
    "drawn siblings pruned, traversal": (Traversal(), pruned, 1),
    "drawn siblings sorted, tree": (Tree(), reordered, 1),
    "drawn siblings sorted, traversal": (Traversal(), reordered, 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tree_is_detected(name):
    assert worst_deviation(*WRONG[name]) > BIASED


@pytest.mark.parametrize(
    ("rule", "proposer", "depth"),
    [(OneLevel(), with_replacement, 1), (SameCode(), distinct, 2)],
)
def test_same_code_without_the_fault_passes(rule, proposer, depth):
    assert worst_deviation(rule, proposer, depth) < EXACT
