"""Which ids of two vocabularies mean the same, and which are tokens at all."""

from __future__ import annotations

from draftproof.models.lexicon import Lexicon
from draftproof.models.vocab import num_tokens, overlap, same_vocabulary


class Words:
    """A tokenizer that is only its vocabulary."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}


class Made:
    """A hand-made tokenizer: its tokens, the special ones, and what those are for."""

    def __init__(self, tokens, special=(), **roles) -> None:
        self._ids = {token: i for i, token in enumerate(tokens)}
        self.all_special_ids = [self._ids[token] for token in special]
        for role, token in roles.items():
            setattr(self, f"{role}_token_id", self._ids[token])

    def encode(self, _text) -> list[int]:
        return []

    def get_vocab(self) -> dict[str, int]:
        return self._ids


def shared_names(target: Made, drafter: Made) -> dict[str, str]:
    """Target token to drafter token, by name."""
    names = [{i: token for token, i in made.get_vocab().items()} for made in (target, drafter)]
    pairs = overlap(Lexicon(target, 999), Lexicon(drafter, 999)).shared
    return {names[0][i]: names[1][j] for i, j in pairs.items()}


def test_vocabularies_are_the_same_when_every_id_means_the_same() -> None:
    assert same_vocabulary(Words("a", "b", "</s>"), Words("a", "b", "</s>"))
    assert not same_vocabulary(Words("a", "b", "c"), Words("a", "c", "b"))
    assert not same_vocabulary(Words("a", "b"), Words("a", "b", "<tool>"))


def test_space_markers_and_bytes_are_the_same_however_they_are_written() -> None:
    byte_level = Made(["\u0120dog", "dog", "\u010a", "\u0120", "\u00c3\u00a9", "\u00c3", "a"])
    pieces = Made(["\u2581dog", "dog", "<0x0A>", "\u2581", "\u00e9", "<0xC3>", "<0x61>", "a"])
    assert shared_names(byte_level, pieces) == {
        "\u0120dog": "\u2581dog",
        "dog": "dog",
        "\u010a": "<0x0A>",
        "\u0120": "\u2581",
        "\u00c3\u00a9": "\u00e9",
        "\u00c3": "<0xC3>",
        "a": "a",
    }
    assert shared_names(pieces, byte_level)["<0xC3>"] == "\u00c3"
    assert "<0x61>" not in shared_names(pieces, byte_level)


def test_words_and_pieces_of_text_are_never_the_same() -> None:
    """A word has a space on either side that nobody writes."""
    assert shared_names(Made(["a", "b", "c"]), Made(["c", "x", "a"])) == {"a": "a", "c": "c"}
    assert shared_names(Made(["a", "b"]), Made(["a", "b", "\u0120a"])) == {}


def test_a_special_token_is_not_the_ordinary_one_of_the_same_letters() -> None:
    target = Made(["\u0120a", "<s>", "<turn>"], special=["<turn>"])
    drafter = Made(["\u0120a", "<s>", "<turn>"], special=["<s>", "<turn>"])
    assert shared_names(target, drafter) == {"\u0120a": "\u0120a", "<turn>": "<turn>"}


def test_special_tokens_of_one_name_differ_when_only_one_of_them_ends_a_text() -> None:
    target = Made(["\u0120", "<x>", "<y>"], special=["<x>", "<y>"], eos="<x>")
    drafter = Made(["\u0120", "<x>", "<y>"], special=["<x>", "<y>"], eos="<y>")
    assert shared_names(target, drafter) == {"\u0120": "\u0120", "<x>": "<y>"}


def test_ends_and_beginnings_are_shared_whatever_their_names_but_nothing_that_says_nothing() -> (
    None
):
    special = ["<s>", "</s>", "<unk>", "<pad>"]
    target = Made(["\u0120", *special], special, bos="<s>", eos="</s>", unk="<unk>", pad="<pad>")
    other = ["<b>", "<e>", "<unk>", "<pad>"]
    drafter = Made(["\u0120", *other], other, bos="<b>", eos="<e>", unk="<unk>", pad="<pad>")
    assert shared_names(target, drafter) == {"\u0120": "\u0120", "<s>": "<b>", "</s>": "<e>"}


def test_a_token_has_one_counterpart_at_most() -> None:
    """ChatML models begin a text with what others only begin a turn with."""
    target = Made(["\u0120", "<b>", "<turn>"], ["<b>", "<turn>"], bos="<b>")
    drafter = Made(["\u0120", "<turn>"], ["<turn>"], bos="<turn>")
    assert shared_names(target, drafter) == {"\u0120": "\u0120", "<turn>": "<turn>"}
    assert shared_names(drafter, target) == {"\u0120": "\u0120", "<turn>": "<turn>"}


def test_padding_that_also_ends_a_text_is_an_end() -> None:
    target = Made(["\u0120", "<end>"], ["<end>"], eos="<end>", pad="<end>")
    drafter = Made(["\u0120", "</s>"], ["</s>"], eos="</s>")
    assert shared_names(target, drafter)["<end>"] == "</s>"


def test_the_measure_counts_what_can_be_said_and_names_both_sizes() -> None:
    target = Made(["\u0120", "a", "b", "c", "d", "e"])
    drafter = Made(["\u0120", "b", "x", "a"])
    found = overlap(Lexicon(target, 999), Lexicon(drafter, 999))
    assert found.share == 3 / 4
    assert str(found) == (
        "3 tokens in common, of 6 that the target has and 4 that the drafter has: "
        "75% of the smaller vocabulary"
    )
    assert overlap(Lexicon(target, 999), Lexicon(drafter, 3)).shared == {0: 0, 2: 1}


def test_padding_of_the_logits_is_no_token() -> None:
    words = Words("a", "b", "c")
    assert num_tokens(words, 128) == 3
    assert num_tokens(words, 3) == 3


def test_ids_beyond_the_logits_are_not_counted() -> None:
    assert num_tokens(Words("a", "b", "c"), 2) == 2


def test_without_a_tokenizer_every_logit_counts() -> None:
    assert num_tokens(None, 152064) == 152064


def test_gaps_in_the_numbering_count_up_to_the_highest_id() -> None:
    class Gappy:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0, "z": 9}

    assert num_tokens(Gappy(), 16) == 10
