"""The n-gram drafter finds the longest, most recent earlier occurrence, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core import Context, Plan, Proposal
from draftproof.drafters.ngram import NgramDrafter
from draftproof.errors import InvalidSetting
from draftproof.models.cache import KVCache


def context(tokens, row=0) -> Context:
    return Context(row, row, tokens, warp=None, noise=None, proposal=Proposal.POINT)


def begin(max_match=5, min_match=1):
    return NgramDrafter(max_match, min_match).begin(KVCache(rows=2, capacity=1))


def brute_force(tokens: list[int], depth: int, max_match: int, min_match: int) -> list[int]:
    """Try every length from the longest and every place from the last."""
    for length in range(min(max_match, len(tokens) - 1), min_match - 1, -1):
        suffix = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == suffix:
                return tokens[start + length : start + length + depth]
    return []


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    depth=st.integers(0, 6),
    bounds=st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
def test_the_longest_and_then_most_recent_match_is_continued(tokens, depth, bounds) -> None:
    low, high = sorted(bounds)
    (draft,) = begin(high, low).propose([context(tokens)], [Plan(depth)])
    assert list(draft.tokens) == brute_force(tokens, depth, high, low)
    assert len(draft.tokens) <= depth
    assert draft.is_chain
    assert draft.q is None


def test_a_guess_is_worth_more_behind_a_longer_match_and_ends_where_it_is_worth_too_little() -> (
    None
):
    drafting = begin()
    short, long = context([7, 1, 2, 3, 9, 7]), context([7, 1, 2, 3, 9, 7, 1, 2], row=1)
    assert drafting.guess(short, Plan(3)).score == pytest.approx(2 / 3 + 2 / 4 + 2 / 5)
    assert drafting.guess(long, Plan(3)).score == pytest.approx(4 / 5 + 4 / 6 + 4 / 7)
    assert drafting.guess(long, Plan(3, floor=0.6)).draft.tokens == (3, 9)


@settings(max_examples=200, deadline=None)
@given(
    corpus=st.lists(st.lists(st.integers(0, 3), max_size=20), max_size=3),
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=20),
)
def test_a_corpus_is_asked_where_it_knows_a_longer_suffix(corpus, tokens) -> None:
    drafter = NgramDrafter(4, corpus=corpus)
    (draft,) = drafter.begin(KVCache(rows=2, capacity=1)).propose([context(tokens)], [Plan(3)])

    def longest(texts, own):
        found = [
            length
            for text in texts
            for length in range(1, min(4, len(tokens)) + 1)
            for start in range(len(text) - length)
            if text[start : start + length] == tokens[-length:]
            if not own or start + length < len(tokens)
        ]
        return max(found, default=0)

    here, there = longest([tokens], own=True), longest(corpus, own=False)
    expected = brute_force(tokens, 3, 4, 1) if here >= there else None
    if expected is not None:
        assert list(draft.tokens) == expected
    else:
        drafted = list(draft.tokens)
        wanted = [*tokens[-there:], *drafted]
        assert any(
            text[start : start + len(wanted)] == wanted
            for text in corpus
            for start in range(len(text))
        )
        assert drafted


def test_a_single_token_has_no_past_to_look_up() -> None:
    drafts = begin().propose([context([5]), context([5, 5], row=1)], [Plan(4), Plan(4)])
    assert [draft.tokens for draft in drafts] == [(), (5,)]


@pytest.mark.parametrize(("max_match", "min_match"), [(0, 0), (2, 3), (3, 0)])
def test_bounds_that_match_nothing_are_refused(max_match: int, min_match: int) -> None:
    with pytest.raises(InvalidSetting, match="give 1 <= min_match <= max_match"):
        NgramDrafter(max_match, min_match)
