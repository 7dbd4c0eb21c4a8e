"""Two and three siblings everywhere, two and three levels deep, zeros and equal siblings included.

Such trees can be drawn in a thousand ways, so each is made once: `one_round` enumerates the drafts
and then, for each of them, the rule. Trees that are fixed go through `emitted_law`, all rounds on
one noise.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from draftproof.checks.exact import emitted_law, enumerate_outcomes, joint_law, total_variation
from draftproof.core import Draft, Proposal, Purpose
from draftproof.models.toy import random_law
from draftproof.verification.registry import VERIFIERS
from draftproof.verification.traversal import Traversal
from draftproof.verification.tree import Tree
from tests.toys import EXACT, likeliest, only, remembered, rows_of, sibling_proposer
from tests.verification.test_wrong_trees import OtherParent

BIASED = 0.005
RULES = sorted(name for name, rule in VERIFIERS.items() if rule.trees)
ZEROS = (0.0, 0.4)


def target_of(rule, zeros):
    target = remembered(random_law(3, 20, zeros))
    return likeliest(target) if rule.greedy else target


# Drawn siblings -----------------------------------------------------------------------------


def one_round(rule, target, propose, depth):
    """The joint law of `depth` + 1 tokens: one round, and plain decoding behind it."""
    drafts, emitted, whole = {}, defaultdict(float), defaultdict(float)

    def drafting(noise):
        draft = propose((), depth, noise)
        drafts[draft.tokens, draft.parents] = draft
        return draft.tokens, draft.parents

    for made, chance in enumerate_outcomes(drafting).items():
        for tokens, share in judged(rule, target, drafts[made]).items():
            emitted[tokens] += chance * share
    assert len(drafts) > 20
    for tokens, chance in emitted.items():
        missing = depth + 1 - len(tokens)
        plain = joint_law(lambda more, tokens=tokens: target((*tokens, *more)), missing)
        for rest, share in plain.items():
            whole[(*tokens, *rest)] += chance * share
    return whole


def judged(rule, target, draft):
    """Law of the tokens that one round emits for a draft; no number that drew it is read again."""
    p = rows_of(target, draft)

    def program(noise):
        verdict = rule.verify(draft, p, 0, noise)
        assert all(purpose is not Purpose.DRAFT for _, purpose, _ in noise.touched)
        return (*(draft.tokens[node] for node in verdict.accepted), verdict.next_token)

    return enumerate_outcomes(program)


# What the drafter may say after each token; before the first one, after None.
ALL = {token: {0, 1, 2} for token in (None, 0, 1, 2)}
TWO = {None: {0, 2}, 0: {1, 2}, 1: {0, 2}, 2: {0, 1}}
FEW = {None: {0, 1, 2}, 0: {0, 2}, 1: {2}, 2: {1}}
# How siblings are drawn and from what, how many, how deep, which of them grow at which level.
SHAPES = {
    "distinct, two levels of three": (Proposal.DISTINCT, ALL, 3, 2, {}),
    "distinct, three levels of two": (Proposal.DISTINCT, TWO, 2, 3, {}),
    "distinct, three levels of three, one grows": (Proposal.DISTINCT, ALL, 3, 3, {1: 1, 2: 0}),
    "with replacement, two levels of three": (Proposal.SAMPLED, FEW, 3, 2, {}),
    "with replacement, three levels of two": (Proposal.SAMPLED, FEW, 2, 3, {}),
    "with replacement, three levels of three, one grows": (
        Proposal.SAMPLED,
        TWO,
        3,
        3,
        {1: 1, 2: 0},
    ),
}


def drawn(shape):
    """(depth, proposer) of a shape."""
    proposal, tokens, width, depth, growing = SHAPES[shape]
    whole = remembered(random_law(3, 21))
    law = remembered(lambda prefix: only(whole, tokens[prefix[-1] if prefix else None])(prefix))

    def grows(child, path):
        return child == growing.get(len(path), child)

    return depth, sibling_proposer(law, depth, proposal, width, grows)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("name", ["tree", "traversal"])
def test_full_tree_of_drawn_siblings_emits_the_joint_law_of_the_target(name, zeros, shape):
    rule = VERIFIERS[name]
    target, (depth, propose) = target_of(rule, zeros), drawn(shape)
    emitted = one_round(rule, target, propose, depth)
    assert total_variation(emitted, joint_law(target, depth + 1)) < EXACT


def without_equals(propose):
    """Drawn siblings that carry the token of an elder one are left out, with all below them."""

    def pruned(prefix, most, noise):
        draft = propose(prefix, most, noise)
        place = {-1: -1}
        for node, parent in enumerate(draft.parents):
            if parent in place and draft.child(parent, draft.tokens[node]) == node:
                place[node] = len(place) - 1
        kept = [node for node in place if node >= 0]
        tokens = tuple(draft.tokens[node] for node in kept)
        parents = tuple(place[draft.parents[node]] for node in kept)
        return Draft(tokens, parents, torch.stack([draft.q[i] for i in kept]), draft.proposal)

    return pruned


@pytest.mark.parametrize(
    ("rule", "shape", "change"),
    [
        (OtherParent(), "distinct, three levels of two", None),
        (Tree(), "with replacement, two levels of three", without_equals),
        (Traversal(), "with replacement, two levels of three", without_equals),
    ],
)
def test_wrong_rule_and_pruned_draft_are_detected_in_full_trees(rule, shape, change):
    target, (depth, propose) = target_of(rule, 0.0), drawn(shape)
    emitted = one_round(rule, target, change(propose) if change else propose, depth)
    assert total_variation(emitted, joint_law(target, depth + 1)) > BIASED


# Fixed siblings -----------------------------------------------------------------------------


def deviation(rule, target, propose, length):
    return total_variation(emitted_law(rule, target, propose, length), joint_law(target, length))


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("name", RULES)
def test_full_tree_of_fixed_siblings_emits_the_joint_law_of_the_target(name, zeros, depth, width):
    rule = VERIFIERS[name]
    propose = sibling_proposer(random_law(3, 21), depth, Proposal.POINT, width)
    assert deviation(rule, target_of(rule, zeros), propose, depth + 1) < EXACT


SIBLINGS = {
    "the same twice": [(0, 0, 1), (2, 1, 2), (1, 2, 2)],
    "the same three times": [(0, 0, 0), (1, 1, 1), (2, 2, 2)],
    "now and then": [(1, 1), (0, 2, 1), (), (2, 2, 0)],
    "where next to nothing is left": [(1, 1), (2, 0, 1), (), (0, 0, 2)],
}


def repeating(siblings, depth):
    """Fixed trees with equal siblings, below which stand different tokens."""

    def propose(prefix, most, _noise):
        tokens, parents, level, turn = [], [], [-1], len(prefix)
        for _ in range(min(depth, most)):
            first = len(tokens)
            for node in level:
                below = siblings[turn % len(siblings)]
                turn += 1
                tokens += below
                parents += [node] * len(below)
            level = range(first, len(tokens))
        return Draft(tuple(tokens), tuple(parents), None, Proposal.POINT)

    return propose


@pytest.mark.parametrize("siblings", SIBLINGS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("name", RULES)
def test_the_same_token_twice_below_one_node_is_harmless(name, zeros, depth, siblings):
    """As a drafter of the user's own may submit it, with another subtree below each."""
    rule = VERIFIERS[name]
    propose = repeating(SIBLINGS[siblings], depth)
    assert deviation(rule, target_of(rule, zeros), propose, depth + 1) < EXACT
