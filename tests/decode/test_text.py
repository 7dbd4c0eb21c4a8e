"""Text pieces of a token stream: no character is ever split, and nothing is lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.decode.text import TextStream
from tests.toys import Letters

BROKEN = "�"
EXAMPLES = [
    "plain",
    "é",
    "日本語の文章",
    "👩‍👩‍👧‍👦 family",
    "a😀b😀😀c",
    "naïve café — 北京",
    "🇫🇷🇯🇵",
    "\n\n  x",
]
characters = st.characters(exclude_categories=("Cs",), exclude_characters=(BROKEN,))
mixed = st.text(st.one_of(characters, st.sampled_from("😀日本é🇫ñ")), max_size=30)


def chunks(data, cuts):
    """The bytes cut at the given places, wherever those fall inside a character."""
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


def streamed(decoder, ids, prompt=()):
    stream = TextStream(decoder, prompt)
    pieces = [stream.push(token) for token in ids]
    return [*pieces, stream.flush()]


@settings(max_examples=150, deadline=None)
@given(text=mixed, before=mixed, cuts=st.lists(st.integers(0, 200), max_size=40))
def test_pieces_join_to_the_text_and_hold_whole_characters(text, before, cuts):
    """A byte-level tokenizer may end a token anywhere inside an emoji or a CJK character."""
    pieces = [*before, *chunks(text.encode(), cuts)]
    decoder = Letters(pieces)
    prompt, ids = range(len(before)), range(len(before), len(pieces))
    shown = streamed(decoder, ids, list(prompt))
    assert "".join(shown) == text
    assert not any(BROKEN in piece for piece in shown)


@pytest.mark.parametrize("text", EXAMPLES)
def test_one_byte_at_a_time_shows_each_character_when_it_is_whole(text):
    data = text.encode()
    decoder = Letters([bytes([byte]) for byte in range(256)])
    stream = TextStream(decoder, ())
    for end in range(1, len(data) + 1):
        shown = stream.push(data[end - 1])
        whole = data[:end].decode("utf-8", errors="ignore")
        before = data[: end - 1].decode("utf-8", errors="ignore")
        assert shown == whole[len(before) :]
    assert stream.flush() == ""


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 200), max_size=40))
def test_bytes_that_are_no_text_join_to_what_the_decoder_makes_of_them(data, cuts):
    pieces = chunks(data, cuts)
    decoder = Letters(pieces)
    ids = list(range(len(pieces)))
    assert "".join(streamed(decoder, ids)) == decoder.decode(ids)


def test_unfinished_character_is_shown_as_broken_at_the_end_only():
    decoder = Letters(["a", "😀".encode()[:2], "😀".encode()[2:3]])
    assert streamed(decoder, [0, 1, 2]) == ["a", "", "", BROKEN]


def test_space_that_a_decoder_only_writes_inside_a_text_is_kept():
    """Some tokenizers drop the space before the first word they decode."""

    class Stripping(Letters):
        def decode(self, ids, **kwargs):
            return super().decode(ids, **kwargs).removeprefix(" ")

    decoder = Stripping([" one", " two", " three"])
    assert streamed(decoder, [1, 2, 0] * 5, [0]) == [*[" two", " three", " one"] * 5, ""]


def test_without_a_tokenizer_there_is_no_text():
    assert streamed(None, [3, 4, 5], [1]) == ["", "", "", ""]
