"""What a drafter of another vocabulary reads is what was committed, and is read only once."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftproof.drafters.translate import TokenByToken, WholeText
from draftproof.models.lexicon import Lexicon
from draftproof.models.vocab import overlap
from tests.foreign import CORPUS, byte_level, lexicon, sentencepiece

BYTES, PIECES = lexicon(byte_level()), lexicon(sentencepiece())
DIRECTIONS = {"bytes to pieces": (BYTES, PIECES), "pieces to bytes": (PIECES, BYTES)}
EVERY_DIRECTION = pytest.mark.parametrize("direction", DIRECTIONS)
LONG = " ".join(CORPUS)
TEXTS = st.one_of(st.text(min_size=1, max_size=30), st.sampled_from(CORPUS))
V = 1000


def whole(target: Lexicon, drafter: Lexicon, rows: int = 1) -> WholeText:
    return WholeText(rows, target, drafter, overlap(target, drafter))


def one_by_one(target: Lexicon, drafter: Lexicon, rows: int = 1) -> TokenByToken:
    return TokenByToken(rows, target, drafter, overlap(target, drafter), V)


def own_ids(ids, pairs) -> list[int]:
    """Without the numbering above V that tells counterparts from others."""
    return [i - V if i >= V else pairs[i] for i in ids]


@EVERY_DIRECTION
@settings(deadline=None)
@given(TEXTS, st.lists(st.integers(1, 9), min_size=1, max_size=5))
@example(LONG, [3])
@example("日本語の文章😀", [1])
def test_the_text_is_kept_at_every_step_even_inside_a_character(direction, text, steps) -> None:
    target, drafter = DIRECTIONS[direction]
    ids, pairs = target.write(b"", text.encode()), overlap(target, drafter).shared
    texts, singles = whole(target, drafter), one_by_one(target, drafter)
    done = 0
    while done < len(ids):
        done += steps[done % len(steps)]
        committed = target.read(ids[:done])
        assert drafter.read(texts.of(0, ids[:done])) == committed
        assert drafter.read(own_ids(singles.of(0, ids[:done]), pairs)) == committed


@EVERY_DIRECTION
def test_whole_texts_are_cut_as_the_drafters_tokenizer_cuts_them(direction) -> None:
    target, drafter = DIRECTIONS[direction]
    ids = target.write(b"", LONG.encode())
    texts = whole(target, drafter)
    for done in range(1, len(ids)):
        translated = texts.of(0, ids[:done])
    expected = drafter.opening + drafter.write(b"", target.read(ids[:done]))
    assert len(expected) > 500
    assert translated == expected


@EVERY_DIRECTION
def test_a_long_text_is_read_once_and_then_only_its_end(direction, monkeypatch) -> None:
    target, drafter = DIRECTIONS[direction]
    ids = target.write(b"", LONG.encode())
    texts, read = whole(target, drafter), []
    write = Lexicon.write

    def spy(self, before, data):
        read.append(len(before) + len(data))
        return write(self, before, data)

    monkeypatch.setattr(Lexicon, "write", spy)
    half = len(ids) // 2
    texts.of(0, ids[:half])
    read.clear()
    for done in range(half, len(ids)):
        texts.of(0, ids[:done])
    assert max(read) < 300 < len(LONG) // 2


@EVERY_DIRECTION
def test_counterparts_keep_the_targets_ids_and_nothing_before_them_changes(direction) -> None:
    target, drafter = DIRECTIONS[direction]
    pairs = overlap(target, drafter).shared
    ids = target.write(b"", LONG.encode())
    singles, before = one_by_one(target, drafter), [V + i for i in drafter.opening]
    for done in range(1, len(ids)):
        translated = list(singles.of(0, ids[:done]))
        assert translated[: len(before)] == before
        if ids[done - 1] in pairs:
            assert translated == [*before, ids[done - 1]]
        else:
            assert min(translated[len(before) :]) >= V
        before = translated
    assert min(before) < V <= max(before)


@pytest.mark.parametrize("make", [whole, one_by_one])
def test_markers_are_translated_where_both_have_them_and_left_out_elsewhere(make) -> None:
    turn, end = BYTES.markers["<|turn|>"], BYTES.markers["<|end|>"]
    dog, fox = BYTES.write(b"", b"dog"), BYTES.write(b"", b" fox")
    ids = [*dog, turn, *fox, end, *dog]
    translated = make(BYTES, PIECES).of(0, ids)
    if make is one_by_one:
        translated = own_ids(translated, overlap(BYTES, PIECES).shared)
    place = translated.index(PIECES.markers["</s>"])
    assert PIECES.read(translated[:place]) == b"dog fox"
    assert PIECES.read(translated[place + 1 :]) == b"dog"
    assert PIECES.markers["<unk>"] not in translated


@pytest.mark.parametrize("make", [whole, one_by_one])
def test_the_drafter_reads_the_beginning_that_it_expects_once(make) -> None:
    start = PIECES.markers["<s>"]
    assert PIECES.opening == [start]
    assert BYTES.opening == []
    text = BYTES.write(b"", b"the dog")
    translated = make(BYTES, PIECES).of(0, text)
    assert translated[0] == (start if make is whole else V + start)
    assert translated.count(translated[0]) == 1
    begun = make(PIECES, PIECES).of(0, [start, *PIECES.write(b"", b"the dog")])
    assert begun[0] == start
    assert begun.count(start) == 1


@pytest.mark.parametrize("make", [whole, one_by_one])
def test_rows_are_kept_apart_move_and_begin_anew(make) -> None:
    texts = make(BYTES, PIECES, rows=2)
    a, b, c = (BYTES.write(b"", line.encode()) for line in CORPUS[:3])
    fresh = [list(make(BYTES, PIECES).of(0, ids)) for ids in (a, b, c)]
    assert [texts.of(0, a), texts.of(1, b)] == fresh[:2]
    texts.release(0)
    texts.move(1, 0)
    assert texts.of(0, b) == fresh[1]
    assert texts.of(1, c) == fresh[2]


def test_a_drafter_that_cannot_write_a_text_reads_the_rest_of_it() -> None:
    class Bare:
        """Letters a to c with spaces before them, and no bytes."""

        def get_vocab(self):
            return {"\u2581a": 0, "\u2581b": 1, "\u2581": 2, "a": 3, "b": 4, "?": 5}

        def encode(self, text, **_kwargs):
            return [self.get_vocab().get(letter.replace(" ", "\u2581"), 5) for letter in text]

    bare = Lexicon(Bare(), 6)
    texts = whole(BYTES, bare)
    ids = BYTES.write(b"", b"a b x" * 60)
    for done in range(1, len(ids), 5):
        assert set(bare.read(texts.of(0, ids[:done]))) <= set(b"ab ")
