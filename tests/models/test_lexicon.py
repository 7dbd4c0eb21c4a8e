"""What ids stand for: text of any alphabet survives both makes of vocabulary, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from draftproof.models.lexicon import whole_characters
from tests.foreign import CORPUS, byte_level, lexicon, sentencepiece
from tests.tiny import word_tokenizer

MAKES = {"byte-level": byte_level(), "sentencepiece": sentencepiece()}
LEXICONS = {name: lexicon(tokenizer) for name, tokenizer in MAKES.items()}
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(CORPUS))
EVERY_MAKE = pytest.mark.parametrize("make", LEXICONS)


@EVERY_MAKE
@given(TEXTS)
@example("  two spaces")
@example("\n\nlines\n")
@example("日本 😀é\u0301")
def test_any_text_is_written_and_read_again(make: str, text: str) -> None:
    lexicon = LEXICONS[make]
    assert lexicon.read(lexicon.write(b"", text.encode())) == text.encode()


@EVERY_MAKE
@given(TEXTS, st.integers(0, 60))
def test_a_part_is_what_the_tokenizer_itself_would_have_written(make, text, place) -> None:
    lexicon, data = LEXICONS[make], text.encode()
    parts = lexicon.split(data[:place], data[place:])
    if parts is None:
        return
    assert lexicon.read(parts[1]) == data[place:]
    if make == "byte-level":
        assert parts[0] + parts[1] == MAKES[make].encode(text)


@EVERY_MAKE
@given(TEXTS, st.integers(0, 60))
def test_bytes_that_are_no_character_are_written_byte_by_byte(make, text, place) -> None:
    lexicon, data = LEXICONS[make], text.encode()
    before, after = data[:place], data[place:]
    assert lexicon.read(lexicon.write(b"", before)) == before
    assert lexicon.read(lexicon.write(before, after)) == after


@given(st.text(max_size=8), st.integers(0, 32))
def test_unfinished_characters_are_cut_off_and_nothing_else(text: str, length: int) -> None:
    data = text.encode()[:length]
    assert whole_characters(data) == data.decode(errors="ignore").encode()


def test_a_token_across_the_border_is_no_border() -> None:
    lexicon = LEXICONS["byte-level"]
    (whole,) = lexicon.write(b"", b" the")
    assert lexicon.texts[whole] == b" the"
    assert lexicon.split(b" t", b"he") is None
    assert lexicon.split(b"dog", b" the") is not None


def test_spaces_and_bytes_are_read_alike_and_letters_come_before_byte_tokens() -> None:
    byte, piece = LEXICONS["byte-level"], LEXICONS["sentencepiece"]
    vocabulary = MAKES["sentencepiece"].get_vocab()
    assert piece.texts[vocabulary["<0x0A>"]] == b"\n"
    assert piece.texts[vocabulary["\u2581the"]] == b" the" in byte.ids
    assert piece.ids[b"a"] == vocabulary["a"] != vocabulary["<0x61>"]


def test_text_before_a_place_begins_behind_a_marker_with_a_whole_character() -> None:
    lexicon = LEXICONS["byte-level"]
    turn = lexicon.markers["<|turn|>"]
    broken = [lexicon.ids[bytes([byte])] for byte in "é".encode()]
    ids = [turn, *lexicon.write(b"", b"dog"), turn, *broken, *lexicon.write(b"", b" the dog")]
    assert lexicon.text_before(ids, len(ids), 99) == "é the dog".encode()
    start = len(ids) - ids[::-1].index(turn) + 1
    assert lexicon.text_before(ids, len(ids), len(ids) - start) == b" the dog"
    assert lexicon.text_before([*ids, turn], len(ids) + 1, 9) == b""


def test_words_have_names_and_no_text() -> None:
    words = lexicon(word_tokenizer(["<unk>", "a", "b"]))
    assert not words.has_text
    assert not words.texts
    assert words.ids == {"a": 1, "b": 2}
    assert words.write(b"", b"a") == []
