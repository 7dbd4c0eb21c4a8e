"""What tokens are called in log-probabilities."""

from __future__ import annotations

import threading

import pytest

from draftproof.server import words
from draftproof.server.words import Words
from tests.server.conftest import byte_tokenizer
from tests.tiny import word_tokenizer


@pytest.fixture(scope="module")
def bytes_of():
    """Token id by the byte that it stands for."""
    vocabulary = byte_tokenizer().get_vocab()
    return lambda letter: vocabulary[letter]


def test_bytes_and_markers(bytes_of):
    read = Words(byte_tokenizer(), 259).read
    assert read(bytes_of("a")) == ("a", b"a")
    assert read(bytes_of("Ġ")) == (" ", b" ")
    assert read(bytes_of("â")) == ("bytes:\\xe2", b"\xe2")
    assert read(2) == ("</s>", b"</s>")


def test_whole_words_are_their_text():
    assert Words(word_tokenizer(["?", "one", "two"]), 3).read(1) == ("one", b"one")


def test_without_a_tokenizer_a_token_is_its_number():
    assert Words(None, 100).read(42) == ("42", b"42")


def test_an_id_that_pads_the_embedding_has_a_name_as_well():
    text, data = Words(byte_tokenizer(), 259).read(300)
    assert text.encode() == data


def test_the_vocabulary_is_not_read_on_the_loop(make_client, monkeypatch):
    threads = []

    class Noted(words.Lexicon):
        def __init__(self, *arguments):
            threads.append(threading.current_thread().name)
            super().__init__(*arguments)

    monkeypatch.setattr(words, "Lexicon", Noted)
    client = make_client()
    client.complete(max_tokens=2)
    assert threads == []
    client.complete(max_tokens=2, logprobs=1)
    client.stream("/v1/completions", prompt="x", max_tokens=2, logprobs=1)
    (thread,) = threads
    assert thread.startswith("reader")
