"""A vocabulary of a few pieces, and grammars over it whose laws can be written down by hand."""

from __future__ import annotations

import functools
import re

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftproof.engine.grammars import Grammars
from draftproof.sampling.grammar import Grammar

PIECES = ["a", "b", "c", "d", "ab", "bc", "</s>", "Ġ"]
"""Ids by place; the last is how a byte-level vocabulary writes a space."""
A, B, C, D, AB, BC, END, SPACE = range(len(PIECES))
V = len(PIECES) + 1
"""One id more than there are tokens: it pads the embedding."""
ABCD = Grammar.regex("a(b|c)*d")


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    words = {piece: i for i, piece in enumerate(PIECES)}
    raw = Tokenizer(models.BPE(words, [("a", "b"), ("b", "c")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")


@functools.cache
def grammars() -> Grammars:
    return Grammars(tokenizer(), len(PIECES))


def text_of(ids) -> str:
    return "".join(PIECES[i] for i in ids)


def begins_abcd(text: str) -> bool:
    """Whether a(b|c)*d has a text that begins so; written without the library."""
    return re.fullmatch("(a[bc]*d?)?", text) is not None


def masked(law, begins, complete, prompt=()):
    """The law behind `prompt` where only tokens are possible with which a text can begin.

    The end token is possible where the text is complete; past the end there is nothing.
    """

    def possible(text, v):
        return complete(text) if v == END else v < END and begins(text + PIECES[v])

    def allowed(prefix):
        text, chances = text_of(prefix), law((*prompt, *prefix))
        kept = [chance if possible(text, v) else 0.0 for v, chance in enumerate(chances)]
        return [chance / sum(kept) for chance in kept]

    return allowed
