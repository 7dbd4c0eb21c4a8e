"""What a text may look like: a JSON schema, any JSON object, a regex or a choice of strings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from draftproof.errors import InvalidSetting, MissingExtra

Kind = Literal["json_schema", "json_object", "regex", "choice"]

_HEAD = '%llguidance { "no_forcing": true }\n'
"""Every token is allowed that the text can begin with, not only a tokenizer's favourite."""
_JSON_OPTIONS = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}
"""Without a limit a model that has nothing to say may write spaces until its budget is spent."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The texts that a request allows; made by one of the four functions below.

    Needs the extra `grammar`. What cannot be read as a schema or a regex, and what is not
    supported of them, is refused here.
    """

    kind: Kind
    source: str
    """The schema or the choice in JSON, or the regex."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidSetting(
                f"a grammar of kind {self.kind!r} is unknown; give {', '.join(get_args(Kind))}"
            )
        if not isinstance(self.source, str):
            raise InvalidSetting(f"a {self.kind} grammar has the source {self.source!r}; give text")
        if not is_whole(self.source):
            raise InvalidSetting(f"a {self.kind} grammar holds half a character; give whole text")
        llguidance = load_llguidance()
        # A warning, which says what a schema's keyword is read as, is no error.
        wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(self.as_lark())
        if wrong:
            raise InvalidSetting(f"{self} cannot be used: {_reason(messages[0])}")

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, Any]) -> Grammar:
        """JSON that fits a schema, given as a mapping or as JSON text."""
        if isinstance(schema, Mapping):
            return cls("json_schema", _dumped(dict(schema)))
        if not isinstance(schema, str):
            raise InvalidSetting(
                f"a JSON schema is {schema!r}; give a mapping, or JSON text of one"
            )
        return cls("json_schema", schema)

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls("json_object", "")

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Texts that match as a whole; Rust's syntax, without look-around and back references."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of `texts`."""
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise InvalidSetting(f"a choice is {texts!r}; give a list of strings")
        return cls("choice", _dumped(list(texts)))

    def as_lark(self) -> str:
        """The grammar as llguidance reads it."""
        return f"{_HEAD}start: {self._start()}\n"

    def _start(self) -> str:
        if self.kind == "json_schema":
            return _json(_parsed_schema(self.source))
        if self.kind == "json_object":
            return _json({"type": "object"})
        if self.kind == "regex":
            # \d and \w are ASCII, as in JavaScript: \d would else be digits of any script.
            return f"/{load_llguidance().regex_to_lark(self.source, 'dw')}/"
        return " | ".join(json.dumps(text) for text in _parsed_choice(self.source))

    def __str__(self) -> str:
        shown = self.source if len(self.source) <= 60 else f"{self.source[:60]}..."
        return f"the {self.kind} grammar {shown}" if shown else f"the {self.kind} grammar"


def load_llguidance() -> Any:
    """The package that compiles grammars."""
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtra("llguidance", "grammar", "a grammar") from error
    return llguidance


def _json(schema: Mapping[str, Any]) -> str:
    own = schema.get("x-guidance", {})
    options = {**_JSON_OPTIONS, **own} if isinstance(own, dict) else own
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def _parsed_schema(source: str) -> Mapping[str, Any]:
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidSetting(f"a JSON schema is no JSON ({error}); give an object") from error
    if not isinstance(schema, dict):
        raise InvalidSetting(f"a JSON schema is {source[:60]}; give an object, as {{...}}")
    return schema


def _parsed_choice(source: str) -> list[str]:
    try:
        texts = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidSetting(f"a choice is no JSON ({error}); give a list of strings") from error
    if not isinstance(texts, list) or not texts:
        raise InvalidSetting(f"a choice is {source}; give a list of at least one string")
    if wrong := [text for text in texts if not isinstance(text, str) or not text]:
        raise InvalidSetting(f"a choice holds {wrong[0]!r}; give non-empty strings")
    return cast("list[str]", texts)


def is_whole(text: str) -> bool:
    """False for text that no UTF-8 stands for, with one half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _dumped(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSetting(f"a grammar cannot be written as JSON: {error}") from error


def _reason(message: str) -> str:
    """The line that says what is wrong, without its place in a text the user never saw."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("error: ")), lines[0])
    return re.sub(r"^(error: |at \d+\(\d+\): (failed to compile JSON schema: )?)", "", line)
