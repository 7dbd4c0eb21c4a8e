"""Every field of a request is checked, and what is said names it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from draftproof.errors import InvalidSetting
from draftproof.sampling.grammar import Grammar
from draftproof.sampling.params import MAX_LOGPROBS, MAX_SAMPLES, SamplingParams

pytest.importorskip("llguidance")

NAN, INF = math.nan, math.inf
WRONG = {
    "max_tokens": [-1, 1.5, "3", None, True],
    "min_tokens": [-1, 0.5, None, 257],
    "temperature": [-0.1, NAN, INF, 101, "warm", None, True],
    "top_k": [0, -1, 2.5, "5"],
    "top_p": [0, 0.0, -0.1, 1.1, NAN, None],
    "min_p": [-0.1, 1.1, NAN, None],
    "repetition_penalty": [0, -1, NAN, INF, None],
    "presence_penalty": [NAN, INF, -101, None],
    "frequency_penalty": [NAN, INF, 101, None],
    "logit_bias": [{-1: 1.0}, {1.5: 1.0}, {"1": 1.0}, {1: NAN}, {1: INF}, {1: "x"}, 5, None],
    "seed": [-1, 2**64, 1.5, "7", True],
    "stop": ["", [""], [3], ["a", ""], 5, None],
    "stop_token_ids": [[-1], [1.5], ["1"], "12", 5, None],
    "stop_rule": [5, "never"],
    "n": [0, -1, 1.5, MAX_SAMPLES + 1, None],
    "logprobs": [-1, MAX_LOGPROBS + 1, 1.5, True],
    "logits_processors": [[3], ["f"], 5, None],
    "ignore_eos": ["no", 1, None],
    "grammar": ["a+", {"type": "object"}, 5, False],
}
RIGHT = {
    "max_tokens": [0, 1, 10**6],
    "min_tokens": [0, 256],
    "temperature": [0, 0.0, 1e-40, 1, 100],
    "top_k": [None, 1, 10**6],
    "top_p": [1e-9, 0.5, 1, 1.0],
    "min_p": [0, 0.5, 1],
    "repetition_penalty": [0.5, 1, 2.0],
    "presence_penalty": [-2, 0, 2.0],
    "frequency_penalty": [-2, 0, 2.0],
    "logit_bias": [{}, {0: -INF}, {5: 3}],
    "seed": [None, 0, 2**64 - 1],
    "stop": ["end", ["a", "b"], ()],
    "stop_token_ids": [(), [0, 5]],
    "stop_rule": [None, lambda ids: False],  # noqa: ARG005
    "n": [1, MAX_SAMPLES],
    "logprobs": [None, 0, MAX_LOGPROBS],
    "logits_processors": [(), [lambda ids, scores: scores]],  # noqa: ARG005
    "ignore_eos": [True, False],
    "grammar": [None, Grammar.regex("a+"), Grammar.json_object()],
}


def test_every_field_is_in_the_tables():
    """A field that is added has to be checked as well."""
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(WRONG) == set(RIGHT) == fields


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_wrong_value_is_refused_by_name(field, value):
    with pytest.raises(InvalidSetting, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in RIGHT.items() for value in values]
)
def test_value_at_the_edge_is_taken(field, value):
    SamplingParams(**{field: value})


def test_unknown_field_is_an_error():
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=3)


def test_lists_are_taken_as_they_were_when_given():
    stop, ids, bias = ["a"], [1], {1: 2.0}
    params = SamplingParams(stop=stop, stop_token_ids=ids, logit_bias=bias)
    stop.append("b")
    ids.append(2)
    bias[3] = 1.0
    assert (params.stop_strings, params.stop_token_ids, params.logit_bias) == (
        ("a",),
        (1,),
        {1: 2.0},
    )
    assert SamplingParams(stop="ab").stop_strings == ("ab",)
