"""Decoding under a grammar has the law of the masked target, whatever is drafted.

The masks follow every drafted branch: grammars here are small enough for the law to be written
down by hand, and a mask that stands still while a block is judged has to fail.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

import pytest
import torch

from draftproof.api import Speculator
from draftproof.checks.exact import enumerate_outcomes, total_variation
from draftproof.checks.statistics import goodness_of_fit
from draftproof.config import EngineSettings
from draftproof.core import Draft, Proposal, Purpose
from draftproof.drafters.model import ModelDrafter
from draftproof.errors import InvalidSetting
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.grammar import Grammar
from draftproof.sampling.params import MAX_SAMPLES, SamplingParams
from draftproof.sampling.warp import Warp
from draftproof.verification.registry import VERIFIERS
from tests.grammars import (
    AB,
    ABCD,
    BC,
    END,
    PIECES,
    SPACE,
    A,
    B,
    C,
    D,
    V,
    begins_abcd,
    grammars,
    masked,
    text_of,
    tokenizer,
)
from tests.toys import EXACT, Comb, Scripted, Varied, flattened, only, remembered, sibling_proposer

pytest.importorskip("llguidance")

PROMPT = (C, A)
LENGTH = 3
TARGET = remembered(flattened(random_law(V, seed=5, order=2)))
DRAFT = remembered(flattened(random_law(V, seed=6, order=1)))
CHAINS = [(AB, C, D), (A, A, B), (A, BC, A), (D, D, D), (A, D, B), (A, D, END), (SPACE,), ()]


def chain(tokens):
    return lambda *_given: Draft.chain(tokens, Proposal.POINT)


UNMASKED = only(DRAFT, {A, BC, END})


def drawn(prefix, most, noise):
    """A chain drawn from q, with no mask: many of its tokens are not allowed."""
    tokens, laws = [], []
    for offset in range(most):
        q = torch.tensor(UNMASKED((*prefix, *tokens)), dtype=torch.float64)
        tokens.append(noise.draw(q, len(prefix), Purpose.DRAFT, offset))
        laws.append(q)
    return Draft.chain(tokens, Proposal.SAMPLED, torch.stack(laws) if laws else None)


def branching(proposal):
    """A chain below the first of three siblings; anything goes."""
    grow = {"grows": lambda child, path: child == 0 and len(path) < 2}
    return sibling_proposer(UNMASKED, 2, proposal, width=2, **grow)


class Lenient:
    """Draws behind the end of a text, where no token is possible, are cut off again."""

    def __init__(self, noise):
        self._noise = noise
        self.accepts = noise.accepts

    def draw(self, weights, *key):
        return self._noise.draw(weights, *key) if weights.sum() > 0 else 0

    def race(self, weights, *key):
        return self._noise.race(weights, *key) if weights.sum() > 0 else 0


def emitted(verifier, propose, grammar=ABCD, end_ids=frozenset({END})):
    """Joint law of up to `LENGTH` tokens that rounds emit, each judged by the system's own warp."""
    params = SamplingParams(temperature=1.0, grammar=grammar)
    matcher = grammars().matcher(grammar, end_ids)

    def program(noise):
        warp = Warp(params, prompt_length=len(PROMPT), num_tokens=len(PIECES), matcher=matcher)
        text = ()
        while len(text) < LENGTH and END not in text and not matcher.after(text).is_over:
            tokens = [*PROMPT, *text]
            draft = propose(tuple(tokens), LENGTH - len(text) - 1, noise)
            paths = [
                [draft.tokens[i] for i in draft.path(node)] for node in range(-1, len(draft.tokens))
            ]
            logits = torch.tensor([TARGET((*tokens, *path)) for path in paths]).double().log()
            p = warp.target_law(logits, tokens, draft.parents, draft.tokens)
            verdict = VERIFIERS[verifier].verify(draft, p, len(tokens), Lenient(noise))
            for token in (*(draft.tokens[i] for i in verdict.accepted), verdict.next_token):
                if END not in text and not matcher.after(text).is_over:
                    text = (*text, token)
        return text[:LENGTH]

    return enumerate_outcomes(program)


def wanted(begins=begins_abcd, is_over=lambda text: text.endswith("d")):
    """The masked target's own law, drawn token by token until the text can go on no further."""
    law = masked(TARGET, begins, complete=lambda _text: False, prompt=PROMPT)
    joint, ended = {(): 1.0}, {}
    for _ in range(LENGTH):
        grown = {}
        for prefix, before in joint.items():
            for token, chance in enumerate(law(prefix)):
                if chance > 0:
                    text = (*prefix, token)
                    (ended if is_over(text_of(text)) else grown)[text] = before * chance
        joint = grown
    return joint | ended


@pytest.mark.parametrize("tokens", CHAINS, ids=text_of)
@pytest.mark.parametrize(
    "verifier", ["tokenwise", "blockwise", "traversal", "tree", "point", "coupled"]
)
def test_fixed_drafts_legal_and_illegal_keep_the_masked_law(verifier, tokens):
    law = emitted(verifier, chain(tokens))
    assert total_variation(law, wanted()) < EXACT
    assert all(begins_abcd(text_of(text)) for text in law)


@pytest.mark.parametrize("verifier", ["tokenwise", "blockwise", "traversal"])
def test_drawn_chains_keep_the_masked_law(verifier):
    assert total_variation(emitted(verifier, drawn), wanted()) < EXACT


@pytest.mark.parametrize(
    ("verifier", "proposal"),
    [("tree", Proposal.DISTINCT), ("traversal", Proposal.DISTINCT), ("point", Proposal.POINT)],
)
def test_trees_keep_the_masked_law(verifier, proposal):
    assert total_variation(emitted(verifier, branching(proposal)), wanted()) < EXACT


# A mask that stands still -------------------------------------------------------------------


def stand_still(monkeypatch):
    """Every row of a block gets the mask of its start."""

    def constrain(self, scores, tokens, paths):
        start = self._matcher.after(tuple(tokens[self._prompt_length :]))
        self._matcher.ban(scores, [start] * len(paths))

    monkeypatch.setattr(Warp, "_constrain", constrain)


NARROW = Grammar.regex("[ab][abc]*")
"""What is allowed at its start is allowed everywhere, and `c` is not."""


def narrow_law():
    begins = re.compile("([ab][abc]*)?").fullmatch
    return wanted(begins, is_over=lambda _text: False)


def test_mask_that_stands_still_breaks_the_law(monkeypatch):
    propose = chain((A, B))
    law = narrow_law()
    assert total_variation(emitted("tokenwise", propose, NARROW, frozenset()), law) < EXACT
    stand_still(monkeypatch)
    assert total_variation(emitted("tokenwise", propose, NARROW, frozenset()), law) > 0.05


def test_mask_that_stands_still_lets_a_text_through_that_does_not_parse(monkeypatch):
    stand_still(monkeypatch)
    with pytest.raises(InvalidSetting, match="no token is possible"):
        emitted("tokenwise", chain((A, A)))


# The whole system ---------------------------------------------------------------------------


def system(drafter=None, end_ids=frozenset({END}), depth=3, **settings):
    drafter = drafter or ModelDrafter(ToyModel(DRAFT, V), V, prefill_chunk=8)
    settings = EngineSettings(depth=depth, max_batch=MAX_SAMPLES, **settings)
    target = ToyModel(TARGET, V)
    return Speculator(target, drafter, tokenizer=tokenizer(), end_ids=end_ids, settings=settings)


ERROR_RATE = 1e-6
FEW = 4 * MAX_SAMPLES


def fits(made, law, verifier):
    made = Speculator(
        made.target, made.drafter, tokenizer=tokenizer(), verifier=verifier, settings=made.settings
    )
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH, n=MAX_SAMPLES, grammar=NARROW)
    counts = Counter()
    for seed in range(FEW // MAX_SAMPLES):
        output = made.generate(list(PROMPT), dataclasses.replace(params, seed=seed))
        counts.update(sample.token_ids for sample in output.samples)
    return goodness_of_fit(counts, law, ERROR_RATE).passed


@pytest.mark.parametrize("verifier", ["tokenwise", "coupled"])
def test_sampled_texts_have_the_masked_law(verifier):
    pytest.importorskip("scipy")
    assert fits(system(), narrow_law(), verifier)


def test_mask_that_stands_still_fails_in_the_same_pipeline(monkeypatch):
    pytest.importorskip("scipy")
    stand_still(monkeypatch)
    assert not fits(system(), narrow_law(), "tokenwise")


def drafters():
    return {
        "model": ModelDrafter(ToyModel(DRAFT, V), V, prefill_chunk=8),
        "itself": ModelDrafter(ToyModel(TARGET, V), V, prefill_chunk=8),
        "comb": Comb(DRAFT, width=3),
        "tree": Varied(
            ModelDrafter(ToyModel(DRAFT, V), V, prefill_chunk=8), [{"width": 3, "nodes": 9}]
        ),
    } | {f"says {text_of(one)}": Scripted(lambda _tokens, one=one: one) for one in CHAINS}


GRAMMARS = [
    ABCD,
    Grammar.regex("(ab|bc|d)*"),
    Grammar.regex("[abcd]{3}( [abcd]{1,3}){2}"),
    Grammar.choice(["abcd", "dcba", "a b c d"]),
]


@pytest.mark.parametrize("name", drafters())
@pytest.mark.parametrize("end_ids", [frozenset({END}), frozenset()], ids=["ends", "endless"])
def test_texts_are_those_of_plain_decoding_in_a_batch(name, end_ids):
    """Greedy and seeded; rows with different grammars and rows without any, side by side."""
    made = system(drafters()[name], end_ids)
    for temperature, seed in ((0.0, None), (1.0, 3)):
        params = [
            SamplingParams(max_tokens=12, temperature=temperature, seed=seed, grammar=grammar)
            for grammar in (GRAMMARS[0], None, *GRAMMARS[1:], None)
        ]
        keyed = {"verifier": "coupled"} if temperature else {}
        spec = Speculator(
            made.target,
            made.drafter,
            tokenizer=tokenizer(),
            end_ids=end_ids,
            settings=made.settings,
            **keyed,
        )
        prompts = [list(PROMPT)] * len(params)
        texts = spec.generate(prompts, params)
        for text, prompt, one in zip(texts, prompts, params, strict=True):
            plain = spec.plain(prompt, one)
            assert (text.token_ids, text.finish_reason) == (plain.token_ids, plain.finish_reason)
            if one.grammar is not None and text.finish_reason == "stop":
                assert fits_whole(one.grammar, text.text)


def fits_whole(grammar, text):
    if grammar.kind == "regex":
        return re.fullmatch(grammar.source, text) is not None
    return text in ["abcd", "dcba", "a b c d"]


# How a text ends ----------------------------------------------------------------------------


def ends_with(script, grammar, end_ids=frozenset({END}), **fields):
    """Where the target says `script` and then what is likeliest among all tokens: C."""

    def law(prefix):
        said = prefix[len(PROMPT) :]
        likeliest = script[len(said)] if tuple(said) == script[: len(said)] != script else C
        return [0.9 if v == likeliest else 0.1 / (V - 1) for v in range(V)]

    settings = EngineSettings(depth=4)
    drafter = Scripted(lambda tokens: (*script[len(tokens) - len(PROMPT) :], D, D))
    made = Speculator(
        ToyModel(law, V), drafter, tokenizer=tokenizer(), end_ids=end_ids, settings=settings
    )
    params = SamplingParams(**{"max_tokens": 9, "grammar": grammar} | fields)
    output, plain = made.generate(list(PROMPT), params), made.plain(list(PROMPT), params)
    assert (output.token_ids, output.text) == (plain.token_ids, plain.text)
    assert output.finish_reason == plain.finish_reason
    return output


def test_text_ends_where_it_cannot_go_on():
    for end_ids in (frozenset({END}), frozenset()):
        output = ends_with((AB, C, D), ABCD, end_ids)
        assert (output.text, output.finish_reason) == ("abcd", "stop")
        assert output.token_ids == (AB, C, D)


def test_end_token_comes_where_the_text_is_complete_and_could_go_on():
    output = ends_with((AB, C, END), Grammar.regex("ab(c|d)*"))
    assert (output.text, output.finish_reason, output.token_ids) == ("abc", "stop", (AB, C, END))


def test_end_token_is_impossible_before():
    output = ends_with((AB, END), ABCD, logit_bias={D: 3.0})
    assert output.token_ids[:1] == (AB,)
    assert END not in output.token_ids


def test_stop_id_ends_a_complete_text_and_no_other():
    """An id of the user's own, though the model has no end token."""
    stops = {"stop_token_ids": [SPACE]}
    output = ends_with((SPACE, SPACE), Grammar.regex("b(c|d)*"), frozenset(), **stops)
    assert output.token_ids[0] == B
    output = ends_with((B, SPACE), Grammar.regex("b(c|d| )*"), frozenset(), **stops)
    assert (output.token_ids, output.finish_reason) == ((B, SPACE), "stop")


def test_budget_cuts_a_text_short_and_says_so():
    output = ends_with((AB, C, C, D), ABCD, max_tokens=3)
    assert (output.text, output.finish_reason) == ("abcc", "length")


def test_stop_string_cuts_a_text_where_it_stands():
    output = ends_with((AB, C, C, D), ABCD, stop="cc")
    assert (output.text, output.finish_reason) == ("ab", "stop")


def test_text_that_may_only_be_empty_is_over_at_once():
    output = ends_with((), Grammar.regex(""))
    assert (output.token_ids, output.finish_reason) == ((), "stop")


def test_bans_that_leave_no_token_are_an_error_with_and_without_drafts():
    for depth in (0, 3):
        with pytest.raises(InvalidSetting, match="the grammar ban them all"):
            system(depth=depth).generate(
                list(PROMPT),
                SamplingParams(grammar=Grammar.choice(["d"]), logit_bias={D: -float("inf")}),
            )


def test_user_processors_cannot_allow_what_the_grammar_forbids():
    def favours_space(_ids, scores):
        return torch.where(torch.arange(scores.shape[-1]) == SPACE, 50.0, scores)

    params = SamplingParams(max_tokens=9, grammar=ABCD, logits_processors=[favours_space])
    made = system()
    output = made.generate(list(PROMPT), params)
    assert begins_abcd(output.text)
    assert output.token_ids == made.plain(list(PROMPT), params).token_ids


def test_every_sample_follows_the_grammar_on_its_own():
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=1, n=8, grammar=ABCD)
    texts = [sample.text for sample in system().generate(list(PROMPT), params).samples]
    assert len(set(texts)) > 1
    assert all(begins_abcd(text) for text in texts)


def test_grammar_without_a_tokenizer_is_refused_before_anything_is_decoded():
    made = Speculator(ToyModel(TARGET, V), Scripted(lambda _tokens: ()))
    with pytest.raises(InvalidSetting, match="a grammar needs a tokenizer"):
        made.generate(list(PROMPT), SamplingParams(grammar=ABCD))


def test_law_of_a_draft_is_masked_as_the_targets_is():
    matcher = grammars().matcher(ABCD, {END})
    params = SamplingParams(temperature=1.0, grammar=ABCD)
    warp = Warp(params, prompt_length=1, num_tokens=len(PIECES), matcher=matcher)
    for path in ([], [A]):
        q = warp.draft_law(torch.zeros(V), [C, *path])
        p = warp.target_law(torch.zeros((1, V)), [C, *path], [], [])[0]
        assert torch.equal(p, q)
    assert q.nonzero()[:, 0].tolist() == [B, C, D, BC]
    assert warp.belief(torch.zeros(V), [C, A, D]).nonzero()[:, 0].tolist() == [END]
