"""What depth, width and nodes may be, and that a fixed plan is what was asked for."""

from __future__ import annotations

import pytest

from draftproof.config import EngineSettings
from draftproof.control.fixed import FixedPlan
from draftproof.core import Plan
from draftproof.errors import InvalidSetting
from draftproof.sampling.params import SamplingParams
from tests.tiny import prompt, shared_target, speculator


def test_auto_is_the_default_and_numbers_are_kept():
    assert EngineSettings().depth == "auto"
    settings = EngineSettings(depth=3, width=4, nodes=20)
    assert (settings.depth, settings.width, settings.nodes) == (3, 4, 20)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"depth": 65}, "64"),
        ({"depth": -1}, "plain decoding"),
        ({"depth": "deep"}, "'auto'"),
        ({"depth": 2.5}, "2.5"),
        ({"depth": 4, "width": 0}, "width is 0"),
        ({"depth": 4, "nodes": 65}, "nodes is 65"),
        ({"depth": "auto", "width": 2}, "chooses the width"),
        ({"depth": 4, "min_confidence": 1.1}, "min_confidence is 1.1"),
        ({"depth": 4, "min_confidence": float("nan")}, "0 to 1"),
        ({"min_confidence": 0.5}, "finds out by itself"),
    ],
)
def test_what_cannot_be_planned_is_refused(fields, said):
    with pytest.raises(InvalidSetting, match=said):
        EngineSettings(**fields)


def test_a_fixed_plan_is_cut_where_the_text_ends():
    control = FixedPlan(4, 3, 20)
    assert control.plan(9, 100, 1) == Plan(4, 3, 20)
    assert control.plan(2, 100, 1) == Plan(2, 3, 20)
    assert control.plan(0, 100, 1).depth == 0
    assert FixedPlan(4, min_confidence=0.4).plan(9, 100, 1) == Plan(4, min_confidence=0.4)


def test_fields_that_are_given_replace_those_of_settings():
    settings = EngineSettings(depth=3, nodes=5)
    assert settings.having(nodes=7, depth=None) == EngineSettings(depth=3, nodes=7)


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "recycling", "lookahead", "none"])
def test_a_threshold_that_nobody_heeds_is_refused(drafter):
    with pytest.raises(InvalidSetting, match="how sure"):
        speculator(shared_target("llama"), drafter, min_confidence=0.5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["early-exit:1", "model", "hybrid:recycling,early-exit:1"])
def test_a_model_that_is_never_sure_enough_drafts_one_token_a_round(drafter, temperature):
    made = speculator(shared_target("llama"), drafter, min_confidence=1.0)
    params = SamplingParams(max_tokens=12, temperature=temperature, seed=1)
    output = made.generate(prompt(6), params)
    assert output.token_ids == made.plain(prompt(6), params).token_ids
    depths = output.stats.as_dict()["drafted_per_position"]
    assert depths[0] > 0
    if not drafter.startswith("hybrid"):
        assert sum(depths[1:]) == 0
