"""Two vocabularies match exactly when every id means the same token."""

from __future__ import annotations

import pytest

from draftproof.errors import VocabularyMismatch
from draftproof.models.vocab import check_same_vocabulary, num_tokens


class Words:
    """A tokenizer that is only its vocabulary."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}


def test_equal_vocabularies_pass() -> None:
    check_same_vocabulary(Words("a", "b", "</s>"), Words("a", "b", "</s>"))


def test_first_differing_id_and_count_are_named() -> None:
    with pytest.raises(VocabularyMismatch) as caught:
        check_same_vocabulary(Words("a", "b", "c", "d"), Words("a", "c", "b", "d"))
    message = str(caught.value)
    assert "id 1 is 'b' to the target and 'c' to the drafter" in message
    assert "2 ids differ" in message
    assert "ngram" in message
    assert "self-int8" in message


@pytest.mark.parametrize("swap", [False, True])
def test_an_extra_added_token_is_a_difference(swap: bool) -> None:
    pair = Words("a", "b"), Words("a", "b", "<tool>")
    target, drafter = pair[::-1] if swap else pair
    with pytest.raises(VocabularyMismatch, match="no token") as caught:
        check_same_vocabulary(target, drafter)
    assert "id 2" in str(caught.value)
    assert "1 ids differ" in str(caught.value)


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
