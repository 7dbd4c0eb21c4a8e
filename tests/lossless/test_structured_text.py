"""Whatever a model says, what it says under a schema is JSON that fits the schema.

Random weights are the worst case: nothing but the mask makes their text look like anything.
"""

from __future__ import annotations

import functools
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftproof.api import Speculator
from draftproof.sampling.grammar import Grammar
from draftproof.sampling.params import SamplingParams
from tests.test_api import tokenizer
from tests.tiny import speculator, tiny_model

pytest.importorskip("llguidance")

COMPACT = {"x-guidance": {"whitespace_flexible": False}}
"""Without optional spaces a text under one of these schemas is short."""


@functools.cache
def system(drafter="early-exit:1", verifier=None, **others) -> Speculator:
    from draftproof.models.hf import HFModel

    target = HFModel(tiny_model("llama", max_position_embeddings=1024), "tiny")
    made = speculator(target, drafter, **others)
    return Speculator(
        target,
        made.drafter,
        tokenizer=tokenizer(),
        end_ids=frozenset({2}),
        verifier=verifier,
        settings=made.settings,
    )


def schemas():
    """Schemas of bounded texts: numbers, strings, choices, arrays, objects and alternatives."""
    bounds = st.integers(-30, 30)
    leaves = st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(
            lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
            bounds,
            st.integers(0, 50),
        ),
        st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 4)),
        st.just({"type": "string", "pattern": "^[a-c]{1,3}-[0-9]$"}),
        st.builds(
            lambda values: {"enum": values},
            st.lists(st.sampled_from([1, -7, "x", "xy", "é", None, True]), min_size=1, max_size=3),
        ),
    )

    def grown(inner):
        return st.one_of(
            st.builds(
                lambda items, least, more: {
                    "type": "array",
                    "items": items,
                    "minItems": least,
                    "maxItems": least + more,
                },
                inner,
                st.integers(0, 1),
                st.integers(0, 1),
            ),
            st.builds(
                lambda fields, wanted: {
                    "type": "object",
                    "properties": fields,
                    "required": sorted(fields)[:wanted],
                    "additionalProperties": False,
                },
                st.dictionaries(st.sampled_from(["a", "b", "name"]), inner, max_size=2),
                st.integers(0, 2),
            ),
            st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
        )

    return st.recursive(leaves, grown, max_leaves=4)


def fits(value, schema) -> bool:
    """A validator for what `schemas` makes."""
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(one) and value == one for one in schema["enum"])
    kind = schema["type"]
    if kind in ("boolean", "null"):
        return isinstance(value, bool) if kind == "boolean" else value is None
    if kind == "integer":
        whole = isinstance(value, (int, float)) and not isinstance(value, bool)
        return whole and value == int(value) and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        return (
            isinstance(value, str)
            and len(value) <= schema.get("maxLength", 99)
            and re.search(schema.get("pattern", ""), value) is not None
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and schema["minItems"] <= len(value) <= schema["maxItems"]
            and all(fits(one, schema["items"]) for one in value)
        )
    fields = schema["properties"]
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= set(value) <= set(fields)
        and all(fits(one, fields[name]) for name, one in value.items())
    )


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(schema=schemas(), seed=st.integers(0, 99), greedy=st.booleans())
def test_text_fits_its_schema_and_is_that_of_plain_decoding(schema, seed, greedy):
    params = SamplingParams(
        max_tokens=400,
        temperature=0.0 if greedy else 2.0,
        seed=seed,
        grammar=Grammar.json_schema({**schema, **COMPACT}),
    )
    made = system() if greedy else system(verifier="coupled")
    output = made.generate("hello", params)
    assert output.finish_reason == "stop"
    assert fits(json.loads(output.text), schema), output.text
    assert output.token_ids == made.plain("hello", params).token_ids


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "recycling", "close-model", "self-int8"])
def test_every_kind_of_drafter_keeps_to_the_schema(drafter):
    made = system(drafter, depth=5)
    schema = {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 4}
    grammar = Grammar.json_schema({**schema, "maxItems": 4, **COMPACT})
    params = [SamplingParams(max_tokens=200, grammar=grammar), SamplingParams(max_tokens=60)]
    text, free = made.generate(["hello", "hello"], params)
    assert [len(part) <= 6 for part in json.loads(text.text)] == [True] * 4
    for output, one in ((text, params[0]), (free, params[1])):
        assert output.token_ids == made.plain("hello", one).token_ids


def test_trees_keep_to_the_schema():
    made = system("close-model", depth=3, width=3)
    params = SamplingParams(max_tokens=80, grammar=Grammar.json_schema({"type": "integer"}))
    digits = made.generate("hello", params)
    assert re.fullmatch(r"-?(0|[1-9]\d*)", digits.text)
    assert digits.token_ids == made.plain("hello", params).token_ids


def test_spaces_between_the_parts_of_an_object_have_an_end():
    """A model that would write spaces for ever has to go on at last."""
    space = tokenizer().encode(" ")[0]
    params = SamplingParams(max_tokens=60, grammar=Grammar.json_object(), logit_bias={space: 1e4})
    text = system().generate("hello", params).text
    assert re.match(r'\{ {1,40}["}]', text), text


def test_text_cut_by_its_budget_says_so():
    params = SamplingParams(max_tokens=3, grammar=Grammar.json_schema({"const": "abcdef"}))
    output = system().generate("hello", params)
    assert (output.text, output.finish_reason) == ('"ab', "length")
