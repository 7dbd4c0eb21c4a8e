"""The index of suffixes says what a search through all texts says, whatever was forgotten."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core import Context, Proposal
from draftproof.drafters.index import RowTexts, SuffixIndex

TOKENS = st.lists(st.integers(0, 2), max_size=12)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TOKENS),
        st.tuples(st.just("extend"), TOKENS),
        st.tuples(st.just("retract"), st.integers(0, 12)),
        st.tuples(st.just("forget"), st.none()),
    ),
    max_size=25,
)


def changed(changes, max_match, max_tokens=None):
    """The index after all changes, and the texts that it should hold."""
    index, texts = SuffixIndex(max_match, max_tokens), []
    for change, what in changes:
        if change == "add":
            index.add(what)
            texts.append(list(what))
        elif texts and change == "extend":
            index.extend(what)
            texts[-1] += what
        elif texts and change == "retract":
            count = min(what, len(texts[-1]))
            index.retract(count)
            del texts[-1][len(texts[-1]) - count :]
        elif texts and change == "forget":
            index.forget()
            del texts[0]
        while max_tokens is not None and sum(map(len, texts)) > max_tokens:
            if len(texts) > 1:
                del texts[0]
            else:
                texts[0] = texts[0][-max_tokens:]
    return index, texts


def followed(texts, suffix):
    """The tokens behind every occurrence of `suffix`, oldest first."""
    length = len(suffix)
    return [
        text[i + length]
        for text in texts
        for i in range(len(text) - length)
        if text[i : i + length] == suffix
    ]


def longest(texts, context, max_match):
    """(length, the tokens that followed) of the longest suffix that any text continues."""
    for length in range(min(max_match, len(context)), 0, -1):
        if found := followed(texts, context[-length:]):
            return length, found
    return 0, []


def assert_says_the_same(index, texts, context, max_match):
    length, tokens = longest(texts, context, max_match)
    match = index.match(context)
    assert (match.length if match else 0) == length
    if match is None:
        return
    assert [index.continuation(int(place), 1) for place in match.places] == [[t] for t in tokens]
    followers = index.followers(match.places, 9)
    counts = Counter(tokens)
    newest = {token: i for i, token in enumerate(tokens)}
    wanted = sorted(counts, key=lambda token: (-counts[token], -newest[token]))
    assert [follower.token for follower in followers] == wanted
    for follower in followers:
        assert follower.share == counts[follower.token] / len(tokens)
        # One token on: the places behind are the occurrences of the longer string.
        suffix = [*context[len(context) - length :], follower.token]
        behind = [index.continuation(int(place), 1) for place in follower.places]
        assert [part[0] for part in behind if part] == followed(texts, suffix)
        assert len(behind) == counts[follower.token]
        deeper = Counter(part[0] for part in behind if part)
        shares = {f.token: f.share for f in index.followers(follower.places, 9)}
        assert shares == {token: deeper[token] / deeper.total() for token in deeper}
    assert [follower.token for follower in index.followers(match.places, 1)] == wanted[:1]


@settings(max_examples=300, deadline=None)
@given(changes=CHANGES, context=TOKENS, max_match=st.integers(1, 9))
def test_matches_and_counts_are_those_of_a_search_through_the_texts(changes, context, max_match):
    index, texts = changed(changes, max_match)
    assert index.num_tokens == sum(map(len, texts))
    assert_says_the_same(index, texts, context, max_match)
    if texts:
        assert_says_the_same(index, texts, texts[-1], max_match)


@settings(max_examples=200, deadline=None)
@given(changes=CHANGES, context=TOKENS, max_tokens=st.integers(1, 20))
def test_a_cap_is_kept_by_forgetting_the_oldest(changes, context, max_tokens):
    index, texts = changed(changes, 4, max_tokens)
    assert index.num_tokens == sum(map(len, texts)) <= max_tokens
    assert_says_the_same(index, texts, context, 4)


@settings(max_examples=100, deadline=None)
@given(before=st.lists(TOKENS, max_size=6), after=st.lists(TOKENS, min_size=1, max_size=6))
def test_what_was_forgotten_leaves_no_trace(before, after):
    index, fresh = SuffixIndex(5), SuffixIndex(5)
    for text in [*before, *after]:
        index.add(text)
    for _ in before:
        index.forget()
    for text in after:
        fresh.add(text)
    for context in [*before, *after]:
        match, other = index.match(context), fresh.match(context)
        assert (match is None) == (other is None)
        if match is not None and other is not None:
            assert match.length == other.length
            for place, twin in zip(match.places, other.places, strict=True):
                assert index.continuation(int(place), 50) == fresh.continuation(int(twin), 50)


def test_memory_stays_within_the_cap_however_much_passes_through():
    index = SuffixIndex(4, max_tokens=100)
    numbers = np.random.default_rng(0)
    for _ in range(1000):
        index.add(numbers.integers(0, 50, size=numbers.integers(1, 60)).tolist())
        assert index.num_tokens <= 100
        assert index._ids.size < 1000
        assert sum(map(len, index._places.values())) <= 300


def test_a_long_match_is_measured_to_the_token():
    text = list(range(100))
    for max_match in (1, 7, 32, 64):
        for length in (1, 2, 3, 31, 32, 33, 63, 64, 65):
            index = SuffixIndex(max_match)
            index.add(text)
            context = [999, *text[20 : 20 + length]]
            match = index.match(context)
            assert match is not None
            assert match.length == min(length, max_match)
            assert index.continuation(int(match.places[0]), 3) == text[20 + length : 23 + length]


# Rows of a decode loop ----------------------------------------------------------------------


def context(tokens, row=0) -> Context:
    return Context(row, row, tokens, warp=None, noise=None, proposal=Proposal.POINT)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(TOKENS, min_size=1, max_size=8))
def test_a_row_holds_its_context_however_that_changed(texts):
    """Grown, cut back, replaced by another sequence: the index is one of that text alone."""
    rows = RowTexts(5)
    for text in texts:
        index = rows.follow(context(text))
        assert index.num_tokens == len(text)
        for other in texts:
            assert_says_the_same(index, [text], other, 5)


def test_released_rows_are_forgotten_and_moved_ones_keep_their_text():
    rows = RowTexts(5)
    for row in range(3):
        rows.follow(context([row] * (row + 1), row))
    assert rows.release(0) == [0]
    rows.move(2, 0)
    assert rows.follow(context([2] * 3, 0)).match([2]) is not None
    assert rows.release(2) == []
    rows.move(2, 1)
    assert rows.follow(context([1, 1], 1)).num_tokens == 2
    assert rows.follow(context([7], 2)).match([2]) is None
