"""Drafts are grown best first and stay within every limit of their plan."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core import Plan
from draftproof.drafters.lookup import grow
from tests.drafters.lookups import assert_within, paths

PLANS = st.builds(
    Plan,
    depth=st.integers(0, 4),
    width=st.integers(1, 4),
    nodes=st.integers(1, 12),
    floor=st.sampled_from([0.0, 0.05, 0.3]),
)


def successors_of(laws):
    def successors(state, most):
        law = laws[state]
        best = sorted(range(len(law)), key=lambda token: -law[token])[:most]
        return [(token, law[token], token) for token in best]

    return successors


LAWS = [[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.34, 0.33, 0.33]]


@settings(max_examples=200, deadline=None)
@given(plan=PLANS, root=st.integers(0, 2))
def test_a_grown_draft_keeps_to_its_plan(plan, root):
    guess = grow(root, successors_of(LAWS), plan)
    assert_within(guess.draft, plan)
    chances = []
    for path in paths(guess.draft):
        steps = itertools.pairwise([root, *path])
        chance = 1.0
        for state, token in steps:
            chance *= LAWS[state][token]
        chances.append(chance)
    assert all(chance >= plan.floor for chance in chances)
    assert guess.score == pytest.approx(sum(chances))


def test_the_likeliest_paths_are_taken_first():
    """Of all 3 + 9 + 27 paths the five likeliest, which an exhaustive search finds too."""
    chances = {}
    for depth in (1, 2, 3):
        for path in itertools.product(range(3), repeat=depth):
            chance = 1.0
            for state, token in itertools.pairwise([0, *path]):
                chance *= LAWS[state][token]
            chances[path] = chance
    best = sorted(chances, key=lambda path: -chances[path])[:5]
    guess = grow(0, successors_of(LAWS), Plan(depth=3, width=3, nodes=5))
    assert paths(guess.draft) == set(best)


def test_width_one_is_a_chain_of_the_likeliest():
    guess = grow(0, successors_of(LAWS), Plan(depth=3))
    assert guess.draft.is_chain
    assert guess.draft.tokens == (0, 0, 0)
