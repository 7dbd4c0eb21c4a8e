"""Where a sequence ends: the same place however its tokens are cut into rounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.decode.stop import StopRules
from draftproof.decode.text import TextStream
from draftproof.sampling.params import SamplingParams
from tests.toys import Letters

END = 99


def rules(pieces, max_length=1000, end_ids=frozenset({END}), **params):
    stream = TextStream(Letters(pieces), ())
    return StopRules(SamplingParams(**params), end_ids, stream, max_length)


def run(stop, blocks, prompt=()):
    """(committed tokens, pieces of text, finish reason) after feeding `blocks` until the end."""
    ids, texts = list(prompt), []
    for block in blocks:
        cut = stop.cut(ids, len(prompt), block)
        assert len(cut.texts) == cut.kept
        ids += block[: cut.kept]
        texts += cut.texts
        if cut.finish_reason is not None:
            return ids[len(prompt) :], texts, cut.finish_reason
        assert cut.kept == len(block)
    return ids[len(prompt) :], texts, None


def blocks_of(tokens, sizes):
    """`tokens` in rounds of the given sizes, repeated."""
    blocks, start, turn = [], 0, 0
    while start < len(tokens):
        size = sizes[turn % len(sizes)]
        blocks.append(tokens[start : start + size])
        start, turn = start + size, turn + 1
    return blocks


@pytest.mark.parametrize("offset", range(5))
def test_end_token_ends_the_sequence_at_every_offset_of_a_round(offset):
    """Text after the end token is an old fault: not only the last committed token may be it."""
    block = [0, 1, 0, 1, 0]
    block[offset] = END
    tokens, texts, reason = run(rules(["a", "b"]), [[0, 1], block, [0]])
    assert tokens == [0, 1, *block[: offset + 1]]
    assert "".join(texts) == "ab" + "ababa"[:offset]
    assert reason == "stop"


def test_end_token_without_end_ids_is_a_token_like_any():
    tokens, texts, reason = run(rules(["a", "b"], end_ids=frozenset()), [[0, 1, 0]])
    assert (tokens, "".join(texts), reason) == ([0, 1, 0], "aba", None)


@pytest.mark.parametrize("sizes", [[1], [2], [3], [4], [8], [1, 3]])
def test_stop_string_over_tokens_and_rounds_is_cut_out_of_the_text(sizes):
    """Ids are kept up to the token that completes it; the text ends before it."""
    pieces = ["one ", "E", "N", "D of", " two"]
    tokens, texts, reason = run(rules(pieces, stop="END"), blocks_of([0, 1, 2, 3, 4, 0], sizes))
    assert tokens == [0, 1, 2, 3]
    assert texts == ["one ", "", "", ""]
    assert reason == "stop"


def test_text_that_only_begins_like_a_stop_string_is_held_back_and_then_shown():
    pieces = ["x E", "N", "T", "E"]
    tokens, texts, reason = run(rules(pieces, stop=["END"]), [[0, 1], [2, 3]])
    assert texts == ["x ", "", "ENT", ""]
    assert (tokens, reason) == ([0, 1, 2, 3], None)


@pytest.mark.parametrize("ending", ["length", "end token", "rule"])
def test_text_held_back_is_shown_when_the_sequence_ends_otherwise(ending):
    limit = 2 if ending == "length" else 1000
    rule = (lambda ids: len(ids) == 2) if ending == "rule" else None
    tokens = [0, 1, END] if ending == "end token" else [0, 1, 0]
    stop = rules(["x E", "N"], stop=["END"], max_length=limit, stop_rule=rule)
    found, texts, reason = run(stop, [tokens])
    assert "".join(texts) == "x EN"
    assert reason == ("length" if ending == "length" else "stop")
    assert found == ([0, 1, END] if ending == "end token" else [0, 1])


def test_unfinished_character_is_shown_broken_at_the_end():
    emoji = "😀".encode()
    _, texts, reason = run(rules(["a", emoji[:2], emoji[2:]], max_length=2), [[0, 1, 2]])
    assert (texts, reason) == (["a", "�"], "length")


def test_first_of_several_stop_strings_wins_and_is_left_out():
    _, texts, _ = run(rules(["a b c d"], stop=["c d", "b c"]), [[0]])
    assert "".join(texts) == "a "


@pytest.mark.parametrize(
    ("min_tokens", "kept"), [(0, 2), (1, 2), (2, 2), (3, 4), (4, 4), (5, None)]
)
def test_stop_string_before_min_tokens_is_text(min_tokens, kept):
    stop = rules(["E", "ND", "-"], stop=["END"], min_tokens=min_tokens)
    tokens, texts, reason = run(stop, [[0, 1, 0, 1, 2]])
    if kept is None:
        assert (len(tokens), "".join(texts), reason) == (5, "ENDEND-", None)
    else:
        assert (len(tokens), "".join(texts), reason) == (kept, "END" * (kept // 2 - 1), "stop")


@pytest.mark.parametrize("limit", range(1, 7))
@pytest.mark.parametrize("sizes", [[1], [2], [4], [7]])
def test_length_limit_is_exact_inside_any_round(limit, sizes):
    prompt = [1, 1]
    tokens, texts, reason = run(
        rules(["a", "b"], max_length=2 + limit), blocks_of([0] * 9, sizes), prompt
    )
    assert (len(tokens), "".join(texts), reason) == (limit, "a" * limit, "length")


def test_users_rule_sees_every_prefix_once_and_ends_where_it_says():
    seen = []

    def rule(ids):
        seen.append(list(ids))
        return len(ids) == 5

    tokens, texts, reason = run(rules(["a", "b"], stop_rule=rule), [[0, 1], [1, 1, 1]], [0])
    assert (tokens, "".join(texts), reason) == ([0, 1, 1, 1], "abbb", "stop")
    assert seen == [[0, 0, 1, 1, 1][:length] for length in range(2, 6)]


words = st.text("ab", max_size=3)


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(words, min_size=1, max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_stop_strings_are_found_where_the_whole_text_has_them(pieces, stops, sizes):
    """Against a search in the full text after each token; nothing shown is ever taken back."""
    found = run(rules(pieces, stop=stops), blocks_of(list(range(len(pieces))), sizes))
    for kept in range(1, len(pieces) + 1):
        text = "".join(pieces[:kept])
        places = [place for place in map(text.find, stops) if place >= 0]
        if places:
            wanted = (list(range(kept)), text[: min(places)], "stop")
            assert (found[0], "".join(found[1]), found[2]) == wanted
            return
    assert found[0] == list(range(len(pieces)))
    assert found[2] is None
    shown, text = "".join(found[1]), "".join(pieces)
    assert text.startswith(shown)
    held = text[len(shown) :]
    assert held == "" or any(stop.startswith(held) for stop in stops)


def test_stop_string_complete_before_min_tokens_stays_unread():
    stop = rules(["ab", "x", "y"], stop=["ab", "abc"], min_tokens=2)
    assert run(stop, [[0, 1, 2]]) == ([0, 1, 2], ["", "abx", "y"], None)
