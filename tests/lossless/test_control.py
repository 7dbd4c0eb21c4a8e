"""The controller may only change how fast a text comes, never the text."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.control.costs import CostBook
from draftproof.core import Plan
from draftproof.decode import round as round_module
from draftproof.engine import engine as engine_module
from draftproof.models.toy import ToyModel
from draftproof.sampling.params import SamplingParams
from tests.control.machines import MACHINES
from tests.lossless.test_equals_plain import (
    DRAFTERS,
    PROMPTS,
    TARGET,
    V,
    plain_tokens,
    requests,
    speculator,
    tokens,
)
from tests.tiny import prompt, shared_target
from tests.tiny import speculator as tiny_speculator


def automatic(drafter, machine, **others):
    """Depth "auto" with costs that are given, not measured."""
    return Speculator(
        ToyModel(TARGET, V),
        DRAFTERS[drafter](),
        settings=EngineSettings(prefill_chunk=3, **others),
        costs=CostBook(by_hand=MACHINES[machine]),
    )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_seeded_and_greedy_tokens_are_those_of_plain_decoding(drafter, machine):
    outputs = automatic(drafter, machine, max_batch=7).generate(*requests())
    assert tokens(outputs) == plain_tokens()
    if drafter != "none" and machine == "lookup":
        assert sum(output.stats.drafted for output in outputs) > 0


@pytest.mark.parametrize("drafter", ["self-int8", "early-exit:1", "close-model", "ngram"])
def test_a_real_architecture_with_measured_costs(drafter):
    made = tiny_speculator(shared_target("llama"), drafter, depth="auto")
    prompts = [prompt(6), prompt(1), prompt(11)]
    for params in (
        SamplingParams(max_tokens=24),
        SamplingParams(max_tokens=24, temperature=1.0, seed=3),
    ):
        assert tokens(made.generate(prompts, params)) == tokens(made.plain(prompts, params))


class AnyPlan:
    """A controller that plans whatever comes to its mind."""

    def __init__(self, rng):
        self._rng = rng

    def plan(self, max_depth, context_length, batch_size):
        assert context_length > 0
        assert batch_size > 0
        depth = self._rng.choice([0, 1, 2, 3, 5, 9, 17])
        width = self._rng.choice([1, 1, 2, 3])
        floor = self._rng.choice([0.0, 0.0, 0.1, 0.6])
        sure = self._rng.choice([0.0, 0.0, 0.4, 0.8])
        return Plan(min(depth, max_depth), width, self._rng.choice([1, 4, 11, 64]), floor, sure)

    def observe(self, draft, step, cost):
        assert step.depth == draft.depth
        assert cost.levels >= step.depth
        assert cost.columns > step.drafted


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), drafter=st.sampled_from(sorted(DRAFTERS)))
def test_whatever_is_planned_the_text_is_that_of_plain_decoding(seed, drafter):
    rng = random.Random(seed)
    with mock.patch.object(engine_module, "FixedPlan", return_value=AnyPlan(rng)):
        outputs = speculator(DRAFTERS[drafter](), 4, max_batch=5).generate(*requests())
    assert tokens(outputs) == plain_tokens()


@pytest.mark.parametrize("drafter", ["self-int8", "early-exit:1", "model", "ngram"])
def test_whatever_is_planned_with_a_real_architecture(drafter):
    made = tiny_speculator(shared_target("llama"), drafter)
    prompts, params = [prompt(6), prompt(1), prompt(11)], SamplingParams(max_tokens=24)
    rng = random.Random(1)
    with mock.patch.object(engine_module, "FixedPlan", return_value=AnyPlan(rng)):
        drafted = made.generate(prompts, params)
    assert tokens(drafted) == tokens(made.plain(prompts, params))


@pytest.fixture
def as_given(monkeypatch):
    """Rounds take the seconds that the curves say, not those of the clock."""

    def use(curves):
        measured = round_module._cost

        def cost(*arguments):
            told = measured(*arguments)
            draft, verify = curves.draft_seconds(told.levels), curves.verify_seconds(told.columns)
            return replace(told, draft_s=draft, verify_s=verify, rest_s=0.0)

        monkeypatch.setattr(round_module, "_cost", cost)

    return use


def test_an_adversary_is_left_and_asked_again_now_and_then(as_given):
    as_given(MACHINES["int8 on a CPU"])
    params = SamplingParams(max_tokens=400)
    stats = automatic("adversarial", "int8 on a CPU").generate(PROMPTS[0], params).stats
    drafts = stats.target_calls - stats.undrafted_calls
    assert 3 <= drafts <= 20
    assert stats.plain_rounds["planned"] >= 370
    assert sum(stats.planned_depths.values()) == stats.target_calls


def test_a_perfect_drafter_is_used_in_full(as_given):
    as_given(MACHINES["int8 on a CPU"])
    params = SamplingParams(max_tokens=200)
    stats = automatic("perfect", "int8 on a CPU").generate(PROMPTS[0], params).stats
    assert stats.tokens_per_call > 6
    assert stats.plain_rounds["planned"] == 0


def test_calls_share_no_state(as_given):
    as_given(MACHINES["lookup"])
    made = automatic("related", "lookup")
    params = SamplingParams(max_tokens=40, seed=1, temperature=1.0)
    first = made.generate(PROMPTS[1], params)
    made.generate(PROMPTS[2], SamplingParams(max_tokens=100))
    again = made.generate(PROMPTS[1], params)
    assert first.stats.planned_depths == again.stats.planned_depths
