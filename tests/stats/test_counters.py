"""Counters against a count by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.core import Step
from draftproof.models.toy import ToyModel
from draftproof.sampling.params import SamplingParams
from draftproof.stats.counters import Stats
from tests.toys import Scripted

SECONDS = {"draft": 1.0, "verify": 2.0, "rest": 0.5}


def step(accepted, drafted):
    tokens = tuple(range(accepted + 1))
    return Step(
        seq_id=0,
        tokens=tokens,
        origins=(*["accepted"] * accepted, "bonus" if accepted == drafted else "correction"),
        drafted=drafted,
        depth=drafted,
        accepted=accepted,
        finish_reason=None,
        logprobs=None,
        texts=("",) * len(tokens),
    )


@pytest.fixture
def stats():
    """Rounds that accept 3 of 4, 0 of 4, 2 of 2, and one without a draft."""
    counted = Stats(prompt_tokens=5, prefill_s=4.0)
    for accepted, drafted in ((3, 4), (0, 4), (2, 2), (0, 0)):
        counted.add_step(step(accepted, drafted), SECONDS)
    return counted


def test_counts(stats):
    assert (stats.generated, stats.target_calls) == (4 + 1 + 3 + 1, 4)
    assert (stats.drafted, stats.accepted, stats.undrafted_calls) == (10, 5, 1)
    assert stats.calls_saved == 5


def test_rates(stats):
    assert stats.acceptance_rate == 5 / 10
    assert stats.accepted_per_call == 5 / 4
    assert stats.tokens_per_call == 9 / 4
    assert stats.seconds == 4 * 3.5 + 4
    assert stats.tokens_per_second == 9 / 14


def test_positions(stats):
    report = stats.as_dict()
    assert report["drafted_per_position"] == [3, 3, 2, 2]
    assert report["accepted_per_position"] == [2, 2, 1, 0]
    assert sum(report["drafted_per_position"]) == stats.drafted
    assert sum(report["accepted_per_position"]) == stats.accepted


def test_rates_of_nothing_are_none_and_not_a_division_by_zero():
    empty = Stats()
    assert empty.acceptance_rate is None
    assert empty.accepted_per_call is None
    assert empty.tokens_per_call is None
    assert empty.tokens_per_second is None
    assert empty.calls_saved == 0
    report = json.loads(json.dumps(empty.as_dict(), allow_nan=False))
    assert report["drafted_per_position"] == []


def test_plain_rounds_have_no_acceptance_rate():
    plain = Stats()
    plain.add_step(step(0, 0), SECONDS)
    assert plain.acceptance_rate is None
    assert plain.tokens_per_call == 1
    assert plain.calls_saved == 0


def test_a_real_run_counts_what_the_script_drafted():
    """The target counts up; the draft is right for two tokens and wrong at the third."""
    vocab = 50

    def law(prefix):
        return [float(token == (prefix[-1] + 1) % vocab) or 1e-9 for token in range(vocab)]

    def draft(tokens):
        last = tokens[-1]
        return [(last + 1) % vocab, (last + 2) % vocab, 0, 0]

    target = ToyModel(law, vocab)
    made = Speculator(target, Scripted(draft), settings=EngineSettings(depth=4))
    output = made.generate([1], SamplingParams(max_tokens=10))
    assert output.token_ids == tuple(range(2, 12))
    stats = output.stats
    # Rounds of 3, 3, 3 and then one token: the last has room for itself and no draft.
    assert (stats.prompt_tokens, stats.generated, stats.target_calls) == (1, 10, 4)
    assert (stats.drafted, stats.accepted, stats.undrafted_calls) == (4 + 4 + 3, 6, 1)
    assert stats.as_dict()["accepted_per_position"] == [3, 3, 0, 0]
    assert stats.as_dict()["planned_depths"] == [1, 0, 0, 1, 2]
    assert stats.as_dict()["plain_rounds"] == {"planned": 0, "no_room": 1, "no_draft": 0}
    assert output.samples[0].origins.count("accepted") == 6
    assert output.samples[0].origins.count("correction") == 3
    assert output.samples[0].origins[-1] == "plain"


def test_a_tree_counts_its_nodes_as_drafted_and_its_depth_by_position():
    counted = Stats()
    counted.add_step(replace(step(2, 6), depth=2), SECONDS)
    assert counted.drafted == 6
    assert counted.acceptance_rate == 2 / 6
    assert counted.as_dict()["drafted_per_position"] == [1, 1]


def test_generated_is_accepted_and_one_more_a_round_at_most(stats):
    assert stats.generated <= stats.accepted + stats.target_calls
