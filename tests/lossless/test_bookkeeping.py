"""Counters, log-probabilities, cache and text of a whole run, against numbers made another way."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.core import Plan, Proposal
from draftproof.decode.round import run_round
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.engine.request import Drafts, Language, make_sequences
from draftproof.errors import InvalidPrompt, InvalidSetting
from draftproof.models.cache import KVCache
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from tests.tiny import committed
from tests.toys import Comb, Letters, Scripted, opposite, remembered, top, toy_speculator

V = 5
TARGET = remembered(random_law(V, seed=31))
RELATED = remembered(random_law(V, seed=31, order=1))


def saying(script, vocab_size=V):
    """A law that says `script` from position 1 on, whatever came before."""
    return lambda prefix: [
        float(v == script[(len(prefix) - 1) % len(script)]) for v in range(vocab_size)
    ]


# Counters -----------------------------------------------------------------------------------


def test_counters_equal_a_hand_count():
    """Target says 0 1 2 3 0 1 2 3 0 1; a skipped draft is no rejected one, nothing is off by one.

    round   drafted     kept         emitted
    1       0 1 2       0 1 2        0 1 2 3      all accepted, bonus
    2       (none)                   0            plain
    3       1 3         1            1 2          one accepted, correction
    4       0 0         (none)       3            correction
    5       0           0            0 1          all accepted, bonus
    """
    drafts = {1: [0, 1, 2], 5: [], 6: [1, 3], 8: [0, 0], 9: [0, 4, 4]}
    drafter = Scripted(lambda tokens: drafts[len(tokens)])
    system = Speculator(
        ToyModel(saying([0, 1, 2, 3]), V), drafter, settings=EngineSettings(depth=3)
    )
    output = system.generate([4], SamplingParams(max_tokens=10))
    assert output.token_ids == (0, 1, 2, 3, 0, 1, 2, 3, 0, 1)
    assert output.samples[0].origins == (
        *("accepted", "accepted", "accepted", "bonus"),
        "plain",
        *("accepted", "correction"),
        "correction",
        *("accepted", "bonus"),
    )
    stats = output.stats
    assert (stats.prompt_tokens, stats.generated, stats.target_calls) == (1, 10, 5)
    assert (stats.drafted, stats.accepted, stats.undrafted_calls) == (8, 5, 1)
    assert stats.as_dict()["drafted_per_position"] == [4, 3, 1]
    assert stats.as_dict()["accepted_per_position"] == [3, 1, 1]
    assert stats.acceptance_rate == 5 / 8
    assert stats.accepted_per_call == 1.0
    assert stats.tokens_per_call == 2.0
    assert stats.calls_saved == 5
    json.dumps(stats.as_dict())


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_rates_without_drafts_are_absent_instead_of_a_division_by_zero(max_tokens):
    stats = toy_speculator(TARGET, TARGET, V, depth=0).generate(
        [1], SamplingParams(max_tokens=max_tokens)
    ).stats  # fmt: skip
    assert (stats.drafted, stats.acceptance_rate) == (0, None)
    assert (stats.tokens_per_call is None) == (max_tokens == 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_counts_add_up_for_every_sample(temperature):
    params = SamplingParams(max_tokens=17, temperature=temperature, seed=1, n=5)
    for sample in toy_speculator(TARGET, RELATED, V, depth=4).generate([1, 2], params).samples:
        stats = sample.stats
        assert stats.generated == len(sample.token_ids) == len(sample.origins)
        assert stats.accepted == sample.origins.count("accepted")
        assert stats.generated - stats.accepted == stats.target_calls
        assert sum(stats.drafted_per_position.values()) == stats.drafted
        assert sum(stats.accepted_per_position.values()) == stats.accepted


def test_depth_is_the_one_that_was_set_and_two_calls_share_nothing():
    for depth in (1, 5):
        system = toy_speculator(TARGET, TARGET, V, depth=depth)
        for _ in range(2):
            stats = system.generate([1], SamplingParams(max_tokens=13)).stats
            assert max(stats.drafted_per_position) + 1 == depth
            assert stats.generated == 13


# Log-probabilities --------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("draft", [RELATED, TARGET, opposite(TARGET)])
def test_logprobs_are_the_models_own_for_accepted_corrected_and_bonus_tokens(temperature, draft):
    """Teacher forcing: the raw law after each emitted prefix; never 0 by default, never missing."""
    params = SamplingParams(max_tokens=14, temperature=temperature, seed=2, logprobs=3, top_k=3)
    system = toy_speculator(TARGET, draft, V, depth=3)
    output = system.generate([1, 2], params)
    assert len(output.logprobs) == len(output.token_ids)
    for i, (token, entry) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
        law = TARGET((1, 2, *output.token_ids[:i]))
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(math.log(law[token]), abs=1e-9)
        best = sorted(range(V), key=lambda v: -law[v])[:3]
        assert [v for v, _ in entry.top] == best
        assert [p for _, p in entry.top] == pytest.approx([math.log(law[v]) for v in best])
    assert output.logprobs == system.plain([1, 2], params).logprobs
    streamed = [piece.logprobs for piece in system.stream([1, 2], params)]
    assert tuple(streamed) == output.logprobs


def test_origins_of_the_logprob_test_are_all_there():
    params = SamplingParams(max_tokens=30, temperature=0.7, seed=2)
    origins = set()
    for draft in (RELATED, TARGET):
        origins |= set(
            toy_speculator(TARGET, draft, V, depth=3).generate([1, 2], params).samples[0].origins
        )
    assert {"accepted", "correction", "bonus"} <= origins


# Cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["related", "adversarial", "ngram", "trees"])
def test_cache_after_every_round_is_that_of_a_fresh_prefill(drafter, temperature):
    """Per row: all tokens but the anchor, in order; and so the next position is the anchor's."""
    target = ToyModel(TARGET, V)
    made = {
        "related": lambda: ModelDrafter(ToyModel(RELATED, V), V, 4),
        "adversarial": lambda: ModelDrafter(ToyModel(opposite(TARGET), V), V, 4),
        "ngram": NgramDrafter,
        "trees": lambda: Comb(RELATED),
    }[drafter]()
    params = SamplingParams(max_tokens=25, temperature=temperature, seed=6)
    sequences = [
        make_sequences(
            prompt, params, target, Language(None, V, frozenset()),
            Drafts(made.name, made.proposals, None), first_id=i,
        )[0]
        for i, prompt in enumerate([[1], [0, 1, 2, 3], [4, 4, 4, 4, 4, 4, 4]])
    ]  # fmt: skip
    cache = KVCache(3, 50)
    for row, sequence in enumerate(sequences):
        sequence.row = row
        target.prefill(sequence.tokens[:-1], cache, row, chunk=3)
    drafting = made.begin(cache)
    depths = [3, 1, 0, 4, 2]
    for number in range(8):
        plans = [
            Plan(min(depths[(number + b) % 5], sequence.max_depth))
            for b, sequence in enumerate(sequences)
        ]
        steps = run_round(target, cache, drafting, sequences, plans).steps
        for row, (sequence, step) in enumerate(zip(sequences, steps, strict=True)):
            assert sequence.tokens[-len(step.tokens) :] == list(step.tokens)
            assert cache.lengths[row] == len(sequence.tokens) - 1
            fresh = KVCache(1, 50)
            target.prefill(sequence.tokens[:-1], fresh, 0, chunk=100)
            for ours, theirs in zip(committed(cache, row), committed(fresh, 0), strict=True):
                assert torch.equal(ours[0], theirs[0])
                assert torch.equal(ours[1], theirs[1])


# Ends and text ------------------------------------------------------------------------------

LETTERS = Letters(["a", "b", "c", "d", ""])
END = 4


def text_system(script, draft=None, depth=4, end_ids=frozenset({END})):
    law = saying(script)
    return toy_speculator(law, draft or law, V, depth=depth, tokenizer=LETTERS, end_ids=end_ids)


@pytest.mark.parametrize("depth", [0, 1, 4, 6])
@pytest.mark.parametrize("place", range(8))
def test_end_token_stops_at_every_offset_of_a_block(place, depth):
    """Not only the last committed token is looked at."""
    script = [0, 1, 2, 3, 0, 1, 2, 3]
    script[place] = END
    output = text_system(script, depth=depth).generate([0], SamplingParams(max_tokens=20))
    assert output.token_ids == tuple(script[: place + 1])
    assert output.text == "abcdabcd"[:place]
    assert output.finish_reason == "stop"
    assert output.stats.generated == place + 1


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4, 6])
def test_stop_string_in_the_middle_of_a_block_cuts_everything_alike(depth):
    """Ids, log-probabilities, usage and text agree, streamed or not."""
    params = SamplingParams(max_tokens=20, stop="ca", logprobs=1)
    system = text_system([0, 1, 2, 0, 3], depth=depth)
    output = system.generate([0], params)
    assert output.token_ids == (0, 1, 2, 0)
    assert (output.text, output.finish_reason) == ("ab", "stop")
    assert len(output.logprobs) == output.stats.generated == 4
    stream = system.stream([0], params)
    pieces = list(stream)
    assert "".join(map(str, pieces)) == output.text
    assert tuple(piece.token_id for piece in pieces) == output.token_ids
    assert [piece.finish_reason for piece in pieces] == [None, None, None, "stop"]
    assert stream.output.token_ids == output.token_ids


@pytest.mark.parametrize("end_ids", [frozenset(), frozenset({END}), frozenset({2, END})])
@pytest.mark.parametrize("drafter", ["model", "ngram"])
def test_none_one_or_several_end_tokens(end_ids, drafter):
    law = saying([0, 1, 2, END])
    made = ModelDrafter(ToyModel(law, V), V, 4) if drafter == "model" else NgramDrafter()
    system = Speculator(ToyModel(law, V), made, tokenizer=LETTERS, end_ids=end_ids)
    output = system.generate([0, 1, 0, 1, 0], SamplingParams(max_tokens=6))
    plain = system.plain([0, 1, 0, 1, 0], SamplingParams(max_tokens=6))
    assert output.token_ids == plain.token_ids
    assert (output.finish_reason == "length") == (not end_ids)


def test_min_tokens_six_allows_the_end_right_behind_them():
    """Every drafted token counts as one, so the minimum is neither longer nor shorter."""
    greedy = SamplingParams(max_tokens=20, min_tokens=6)

    def ending(_prefix):
        return [0.1, 0.1, 0.1, 0.1, 0.6]

    for depth in (0, 1, 3, 6):
        system = toy_speculator(
            ending, ending, V, depth=depth, tokenizer=LETTERS, end_ids=frozenset({END})
        )
        assert system.generate([1], greedy).token_ids == (*[0] * 6, END)


def test_end_token_is_a_token_when_it_is_ignored():
    output = text_system([0, END, 1]).generate(
        [0], SamplingParams(max_tokens=6, ignore_eos=True)
    )  # fmt: skip
    assert output.token_ids == (0, END, 1, 0, END, 1)
    assert (output.text, output.finish_reason) == ("abab", "length")


def test_rows_that_finish_early_leave_the_others_as_they_were():
    """Ends at different places in one batch, each equal to its solo run."""
    law = remembered(random_law(V, seed=40))
    system = toy_speculator(law, RELATED, V, depth=3, tokenizer=LETTERS, end_ids=frozenset({END}))
    prompts = [[i % V, (2 * i) % V, 1] for i in range(12)]
    params = [
        SamplingParams(max_tokens=4 + 3 * (i % 5), temperature=1.0, seed=i) for i in range(12)
    ]
    outputs = system.generate(prompts, params)
    solo = [system.plain(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    assert [o.token_ids for o in outputs] == [o.token_ids for o in solo]
    assert [o.text for o in outputs] == [o.text for o in solo]
    assert {o.finish_reason for o in outputs} == {"stop", "length"}


# Requests -----------------------------------------------------------------------------------


def test_empty_prompt_is_refused_and_an_empty_list_of_prompts_gives_nothing():
    system = toy_speculator(TARGET, TARGET, V)
    with pytest.raises(InvalidPrompt, match="no tokens"):
        system.generate([[1], []])
    assert system.generate([]) == []


def test_prompt_that_fills_the_context_is_refused_before_anything_runs():
    system = toy_speculator(ToyModel(TARGET, V, max_positions=8), TARGET, V)
    with pytest.raises(InvalidPrompt, match="reads at most 8"):
        system.generate([1] * 8)
    assert len(system.generate([1] * 7).token_ids) == 1


def test_stop_string_without_a_tokenizer_is_refused():
    with pytest.raises(InvalidSetting, match="tokenizer"):
        toy_speculator(TARGET, TARGET, V).generate([1], SamplingParams(stop="x"))


def test_stream_that_is_left_early_disturbs_nothing():
    system = toy_speculator(TARGET, RELATED, V)
    params = SamplingParams(max_tokens=12)
    wanted = system.plain([1], params).token_ids
    stream = system.stream([1], params)
    first = next(iter(stream))
    assert first.token_id == wanted[0]
    assert stream.output.token_ids == wanted[: len(stream.output.token_ids)]
    assert system.generate([1], params).token_ids == wanted


class Watching:
    """A model drafter that shows every (context tokens, draft) to `look`."""

    def __init__(self, law, look):
        self._inner = ModelDrafter(ToyModel(law, V), V, 4)
        self.name, self.proposals = self._inner.name, self._inner.proposals
        self._look = look

    def begin(self, target_cache):
        drafting = self._inner.begin(target_cache)
        propose = drafting.propose

        def watched(contexts, plans):
            drafts = propose(contexts, plans)
            for context, draft in zip(contexts, drafts, strict=True):
                self._look(tuple(context.tokens), draft)
            return drafts

        drafting.propose = watched
        return drafting


def test_proposal_of_the_pairing_reaches_the_drafter():
    """What the drafter draws is what the rule was promised."""
    seen = set()
    drafter = Watching(RELATED, lambda _tokens, draft: seen.add(draft.proposal))
    for verifier, temperature, seed, proposal in (
        (None, 0.0, None, Proposal.POINT),
        (None, 1.0, None, Proposal.SAMPLED),
        (None, 1.0, 1, Proposal.COUPLED),
        ("tokenwise", 1.0, 1, Proposal.SAMPLED),
        ("point", 1.0, None, Proposal.POINT),
    ):
        seen.clear()
        params = SamplingParams(max_tokens=6, temperature=temperature, seed=seed)
        settings = EngineSettings(depth=4)
        made = Speculator(ToyModel(TARGET, V), drafter, verifier=verifier, settings=settings)
        made.generate([1], params)
        assert seen == {proposal}


@pytest.mark.parametrize("top_k", [None, 2])
def test_recorded_q_is_the_law_of_the_true_prefix_cut_as_the_request_asks(top_k):
    """After rejections and after moves between rows: q is never raw, stale or a neighbour's."""
    checked = []
    law = remembered(random_law(V, seed=33, order=6))

    def look(tokens, draft):
        for i, token in enumerate(draft.tokens):
            cut = top(law, top_k or V)((*tokens, *draft.tokens[:i]))
            assert draft.q[i].tolist() == pytest.approx(cut, abs=1e-12)
            assert draft.q[i, token] > 0
            checked.append(token)

    settings = EngineSettings(depth=3, max_batch=3)
    system = Speculator(ToyModel(TARGET, V), Watching(law, look), settings=settings)
    prompts = [[i % V, i // V, 1, 2] for i in range(9)]
    params = [SamplingParams(max_tokens=3 + 4 * (i % 4), temperature=1.0) for i in range(9)]
    outputs = system.generate(prompts, [replace(one, top_k=top_k) for one in params])
    assert len(checked) == sum(output.stats.drafted for output in outputs) > 50
    assert sum(output.stats.accepted for output in outputs) < len(checked)
