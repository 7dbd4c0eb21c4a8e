"""What a round commits: ids, columns, counts, origins and text are cut at the same place."""

from __future__ import annotations

import pytest
import torch

from draftproof.core import Draft, Proposal, Verdict
from draftproof.decode.sequence import Sequence, kept_columns
from draftproof.decode.stop import StopRules
from draftproof.decode.text import TextStream
from draftproof.sampling.noise import KeyedNoise
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp
from draftproof.stats.counters import Stats
from draftproof.verification.base import Pairing
from draftproof.verification.registry import VERIFIERS
from tests.toys import Letters

V, END = 6, 5
PROMPT = [0, 1]


def make_sequence(max_tokens=20, **params):
    settings = SamplingParams(max_tokens=max_tokens, logprobs=2, **params)
    max_length = len(PROMPT) + max_tokens
    stream = TextStream(Letters("abcdef"), PROMPT)
    return Sequence(
        seq_id=0,
        tokens=list(PROMPT),
        prompt_length=len(PROMPT),
        params=settings,
        pairing=Pairing(VERIFIERS["greedy"], Proposal.POINT),
        warp=Warp(settings, prompt_length=len(PROMPT), num_tokens=V),
        noise=KeyedNoise(0),
        stop=StopRules(settings, frozenset({END}), stream, max_length),
        max_length=max_length,
        stats=Stats(),
    )


@pytest.mark.parametrize(
    ("accepted", "kept", "columns"),
    [
        ((), 1, [0]),
        ((0, 1), 3, [0, 1, 2]),
        ((0, 1), 2, [0, 1]),
        ((0, 1), 1, [0]),
        ((0, 2, 5), 4, [0, 1, 3, 6]),
        ((0, 2, 5), 3, [0, 1, 3]),
    ],
)
def test_columns_kept_are_the_anchor_and_all_committed_tokens_but_the_last(accepted, kept, columns):
    assert kept_columns(Verdict(accepted, 9, all_accepted=False), kept) == columns


@pytest.mark.parametrize("offset", range(4))
def test_everything_is_cut_at_the_end_token(offset):
    """Ids and log-probabilities past a stop are an old fault; so is counting drafts past it."""
    drafted = [1, 2, 3, 4]
    drafted[offset] = END
    draft = Draft.chain(drafted, Proposal.POINT)
    logits = torch.randn((5, V), generator=torch.Generator().manual_seed(0))
    sequence = make_sequence()
    step = sequence.commit(draft, Verdict((0, 1, 2, 3), 0, all_accepted=True), logits)
    assert step.tokens == tuple(drafted[: offset + 1])
    assert sequence.tokens == [*PROMPT, *step.tokens]
    assert step.origins == ("accepted",) * (offset + 1)
    assert (step.drafted, step.accepted) == (4, offset + 1)
    assert "".join(step.texts) == "bcde"[:offset]
    assert len(step.texts) == len(step.logprobs) == len(step.tokens)
    assert step.finish_reason == sequence.finish_reason == "stop"


@pytest.mark.parametrize(
    ("drafted", "accepted", "origins"),
    [
        ([], (), ("plain",)),
        ([1, 2], (), ("correction",)),
        ([1, 2], (0,), ("accepted", "correction")),
        ([1, 2], (0, 1), ("accepted", "accepted", "bonus")),
    ],
)
def test_every_token_knows_where_it_came_from(drafted, accepted, origins):
    draft = Draft.chain(drafted, Proposal.POINT)
    verdict = Verdict(accepted, 3, all_accepted=len(accepted) == len(drafted))
    step = make_sequence().commit(draft, verdict, torch.zeros((1 + len(drafted), V)))
    assert step.origins == origins
    assert step.accepted == len(accepted)


def test_logprobs_come_from_the_row_before_each_token_and_from_raw_logits():
    """Not from the warped law, and one entry for accepted and corrected tokens alike."""
    logits = torch.randn((3, V), generator=torch.Generator().manual_seed(1))
    sequence = make_sequence(temperature=0.3, top_k=1)
    draft = Draft.chain([2, 4], Proposal.POINT)
    step = sequence.commit(draft, Verdict((0,), 3, all_accepted=False), logits)
    wanted = torch.log_softmax(logits, -1)
    for row, (token, entry) in enumerate(zip((2, 3), step.logprobs, strict=True)):
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(wanted[row, token]), abs=1e-6)
        values, ids = wanted[row].topk(2)
        assert [i for i, _ in entry.top] == ids.tolist()
        assert [v for _, v in entry.top] == pytest.approx(values.tolist(), abs=1e-6)


@pytest.mark.parametrize(("max_tokens", "committed", "deepest"), [(1, 0, 0), (2, 0, 1), (9, 4, 4)])
def test_draft_is_never_deeper_than_what_can_be_kept(max_tokens, committed, deepest):
    sequence = make_sequence(max_tokens=max_tokens)
    sequence.tokens += [0] * committed
    assert sequence.max_depth == deepest
