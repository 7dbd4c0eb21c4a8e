"""A tokenizer is read once, and one whose tokens are no bytes of text is refused."""

from __future__ import annotations

import pytest

from draftproof.api import Speculator
from draftproof.engine.grammars import Grammars
from draftproof.errors import InvalidSetting
from draftproof.models.toy import ToyModel
from draftproof.sampling.grammar import Grammar
from draftproof.sampling.params import SamplingParams
from tests.grammars import ABCD, V, tokenizer
from tests.tiny import word_tokenizer
from tests.toys import Scripted, constant_law

pytest.importorskip("llguidance")


def test_tokens_that_are_words_are_refused():
    words = word_tokenizer(["<unk>", "yes", "no"])
    with pytest.raises(InvalidSetting, match="tokens that stand for bytes of text"):
        Grammars(words, 3).matcher(Grammar.choice(["yes"]), frozenset())


def test_tokenizer_is_read_once_for_all_drafters():
    class Counted:
        def __init__(self):
            self.reads = 0

        def __getattr__(self, name):
            return getattr(tokenizer(), name)

        def get_vocab(self):
            self.reads += 1
            return tokenizer().get_vocab()

    words, silent = Counted(), Scripted(lambda _tokens: ())
    made = Speculator(ToyModel(constant_law(*[1 / V] * V), V), silent, tokenizer=words)
    before = words.reads
    params = SamplingParams(max_tokens=3, grammar=ABCD, n=2, temperature=1.0)
    made.generate([0], params)
    first = words.reads
    made.with_drafter(Scripted(lambda _tokens: ())).language.matcher(params)
    made.plain([0], params)
    assert first > before
    assert made.language.grammars is made.grammars
    # What `num_tokens` reads for every Speculator is all that is read again.
    assert words.reads == first + before
