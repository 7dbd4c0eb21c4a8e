"""What may follow a text is what the grammar says, whatever was asked before."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from draftproof.errors import InvalidSetting, LimitExceeded
from draftproof.sampling.grammar import Grammar
from draftproof.sampling.matcher import Matcher
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp
from tests.grammars import (
    AB,
    ABCD,
    BC,
    END,
    PIECES,
    SPACE,
    A,
    B,
    D,
    V,
    begins_abcd,
    grammars,
    text_of,
)

llguidance = pytest.importorskip("llguidance")

NUM_TOKENS = len(PIECES)
GRAMMARS = [
    ABCD,
    Grammar.regex("(ab|a)(bc|c)? ?"),
    Grammar.regex("[ab]{2,4}( [ab]{2,4})*"),
    Grammar.choice(["a", "ab", "abcd", "d d"]),
]


def allowed(matcher, text):
    bits = np.unpackbits(matcher.after(tuple(text)).allowed, bitorder="little")
    return {int(i) for i in np.nonzero(bits)[0]}


def test_tokens_are_allowed_as_the_definition_says():
    """Every token with which a text of a(b|c)*d can begin, whole or in the middle of one."""
    matcher = grammars().matcher(ABCD, {END})
    texts = [(), (A,), (AB,), (A, BC), (A, B), (AB, D), (A, D), (B,), (A, A), (AB, SPACE)]
    for text in texts:
        wanted = {v for v in range(END) if begins_abcd(text_of((*text, v)))}
        if text and text[-1] == D:
            wanted = {END}
        assert allowed(matcher, text) == wanted, text_of(text)
        assert matcher.after(text).is_over == (text in [(AB, D), (A, D)])


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
def test_answers_do_not_depend_on_what_was_asked_before(grammar):
    """Against a matcher that is asked for the first time: random texts, legal and not."""
    rng = random.Random(1)
    walker = grammars().matcher(grammar, {END})
    text: tuple[int, ...] = ()
    for _ in range(400):
        if rng.random() < 0.3:
            text = text[: rng.randint(0, len(text))]
        legal = sorted(allowed(walker, text) - {END})
        if legal and rng.random() < 0.8:
            text = (*text, rng.choice(legal))
        else:
            text = (*text, rng.randrange(V))
        fresh = grammars().matcher(grammar, {END})
        assert allowed(walker, text) == allowed(fresh, text)
        assert walker.after(text).is_over == fresh.after(text).is_over
        if not allowed(fresh, text):
            text = text[:-1]


def test_old_answers_are_forgotten_without_harm():
    matcher = grammars().matcher(ABCD, {END})
    for length in range(300):
        assert D in allowed(matcher, (A, *[B] * length))
    assert len(matcher._answers) < 300
    assert allowed(matcher, ()) == {A, AB}


def test_end_that_stands_for_text_comes_only_where_the_text_is_complete():
    matcher = grammars().matcher(Grammar.regex("[bd]*a[bd]*"), {D, END})
    assert allowed(matcher, ()) == {A, B, AB}
    assert allowed(matcher, (A,)) == {B, D, END}


def test_text_that_is_complete_and_can_go_on_is_not_over():
    matcher = grammars().matcher(Grammar.choice(["a", "ab"]), frozenset())
    assert not matcher.after((A,)).is_over
    assert allowed(matcher, (A,)) == {B}
    assert matcher.after((A, B)).is_over
    assert allowed(matcher, (A, B)) == set()


@pytest.mark.parametrize("beyond", [NUM_TOKENS, V, 10**6])
def test_ids_that_are_no_tokens_lead_nowhere(beyond):
    matcher = grammars().matcher(ABCD, {END})
    assert allowed(matcher, (AB, D, beyond)) == set()
    assert allowed(matcher, (beyond,)) == set()
    assert allowed(matcher, (A,)) == {B, D, BC, 2}


def test_ban_leaves_the_logits_of_allowed_tokens_as_they_were():
    matcher = grammars().matcher(ABCD, {END})
    scores = torch.arange(2 * V, dtype=torch.float32).view(2, V)
    before = scores.clone()
    matcher.ban(scores, [matcher.after(()), matcher.after((A, D))])
    assert scores[0].isfinite().nonzero()[:, 0].tolist() == [A, AB, V - 1], "padding is not ours"
    assert scores[1].isfinite().nonzero()[:, 0].tolist() == [END, V - 1]
    assert torch.equal(scores[scores.isfinite()], before[scores.isfinite()])


# Limits of the parser -----------------------------------------------------------------------


def test_limit_is_told_and_leaves_the_matcher_usable():
    pieces = grammars()._read_vocabulary()
    limits = llguidance.LLParserLimits(max_lexer_states=100)
    lark = Grammar.regex("(a|b)*a(a|b){9}").as_lark()

    def compile_():
        return llguidance.LLMatcher(pieces, lark, log_level=0, limits=limits)

    matcher, rng = Matcher(compile_, NUM_TOKENS, {END}), random.Random(0)
    with pytest.raises(LimitExceeded, match="more work for one token"):  # noqa: PT012
        for _ in range(50):
            matcher.after(tuple(rng.choices((A, B), k=20)))
    assert allowed(matcher, (A,)) == allowed(matcher, ()) == {A, B, AB}


def test_limit_behind_a_drafted_node_is_an_error_only_if_the_node_is_kept():
    class Limited(Matcher):
        def _look(self, text):
            if text == (A, B):
                raise LimitExceeded("too much")
            return super()._look(text)

    params = SamplingParams(grammar=ABCD)
    matcher = Limited(grammars().matcher(ABCD, {END})._compile, NUM_TOKENS, {END})
    warp = Warp(params, prompt_length=1, num_tokens=NUM_TOKENS, matcher=matcher)
    p = warp.target_law(torch.zeros((3, V)), [0], [-1, 0], [A, B])
    assert p.sum(-1).tolist() == [1.0, 1.0, 0.0]
    warp.require(0)
    with pytest.raises(LimitExceeded):
        warp.require(1)


def test_grammar_that_no_text_of_these_tokens_fits_is_refused():
    with pytest.raises(InvalidSetting, match="no text of this model's tokens fits the regex"):
        grammars().matcher(Grammar.regex("é"), {END})
    with pytest.raises(InvalidSetting, match="no text"):
        grammars().matcher(Grammar.regex(r"[^\s\S]"), {END})
