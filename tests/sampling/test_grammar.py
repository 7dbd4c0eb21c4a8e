"""A grammar is checked where it is made, and what is said names what was given."""

from __future__ import annotations

import sys

import pytest

import draftproof as dp
from draftproof.errors import InvalidSetting, MissingExtra
from draftproof.sampling.grammar import Grammar
from draftproof.sampling.params import SamplingParams

pytest.importorskip("llguidance")

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_grammars_of_equal_content_are_equal():
    assert Grammar.json_schema(OBJECT) == Grammar.json_schema(
        '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    )
    assert hash(Grammar.choice(["a", "é"])) == hash(Grammar("choice", '["a", "é"]'))
    assert dp.Grammar is Grammar


@pytest.mark.parametrize(
    ("make", "given", "named"),
    [
        (Grammar.json_schema, "{", "no JSON"),
        (Grammar.json_schema, "[1]", r"JSON schema is \[1\]"),
        (Grammar.json_schema, 5, "JSON schema is 5"),
        (Grammar.json_schema, {"type": "strin"}, "Invalid type: strin"),
        (Grammar.json_schema, {"not": {"type": "string"}}, "not"),
        (Grammar.json_schema, {"minLength": 3, "maxLength": 1, "type": "string"}, "minLength"),
        (Grammar.json_schema, {"$ref": "#/$defs/gone"}, "gone"),
        (Grammar.json_schema, {"enum": [object()]}, "written as JSON"),
        (Grammar.json_schema, {"x-guidance": 5}, "x-guidance|JsonCompileOptions"),
        (Grammar.regex, "a(b", "unclosed group|regex"),
        (Grammar.regex, "a(?=b)", "look-around|regex"),
        (Grammar.regex, r"(a)\1", "backreferences|regex"),
        (Grammar.regex, 5, "source 5"),
        (Grammar.regex, "a\ud800", "half a character"),
        (Grammar.choice, ["a\ud800"], "half a character"),
        (Grammar.json_schema, '{"a":' * 200_000, "no JSON"),
        (Grammar.choice, [], "at least one"),
        (Grammar.choice, "yes", "choice is 'yes'"),
        (Grammar.choice, 5, "choice is 5"),
        (Grammar.choice, ["yes", ""], "holds ''"),
        (Grammar.choice, ["yes", 5], "holds 5"),
    ],
)
def test_what_cannot_be_used_is_refused_when_it_is_made(make, given, named):
    with pytest.raises(InvalidSetting, match=named) as raised:
        make(given)
    assert "\n" not in str(raised.value)


def test_unknown_kind_is_refused():
    with pytest.raises(InvalidSetting, match="kind 'yaml' is unknown; give json_schema"):
        Grammar("yaml", "x")  # type: ignore[arg-type]


def test_missing_package_is_told_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtra, match=r"draftproof\[grammar\]"):
        Grammar.regex("a")


@pytest.mark.parametrize("field", [{"min_tokens": 1}, {"ignore_eos": True}])
def test_what_would_move_the_end_of_a_complete_text_is_refused_beside_a_grammar(field):
    with pytest.raises(InvalidSetting, match=f"{next(iter(field))} and a grammar"):
        SamplingParams(grammar=Grammar.json_object(), **field)
