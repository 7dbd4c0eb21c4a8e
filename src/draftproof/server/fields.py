"""Fields that both kinds of request share; a field is honoured or refused, never passed over."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from typing_extensions import Self

from draftproof.config import MAX_DEPTH, Speculation
from draftproof.sampling.grammar import is_whole
from draftproof.sampling.params import MAX_SAMPLES
from draftproof.service.intake import PLAIN

ASKS_FOR_NOTHING: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
    # Of a message, as a client sends back what it got.
    "annotations": ([],),
    "name": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}
"""Fields of OpenAI's that are not supported -> values that ask for nothing; null always does."""
MAX_BIASES = 1024
MAX_METADATA = 16
MAX_LISTED = 2048
"""Prompts, or messages with their parts: each of them takes a while to be read. All three are
OpenAI's, and hold whatever a server allows."""

T = TypeVar("T")
Listed = Annotated[list[T], Field(fail_fast=True)]
"""A list that is refused at its first fault: one is told, and a body may hold a million."""


class Strict(BaseModel):
    """Nothing unknown and no conversions: what is sent is what is meant."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_what_asks_for_nothing(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        names = {field.alias or name for name, field in cls.model_fields.items()}
        strange = [
            name
            for name, value in fields.items()
            if name not in names and not _asks_for_nothing(name, value)
        ]
        # One is enough to refuse a body, and it may hold a hundred thousand.
        return {name: fields[name] for name in fields if name in names or name in strange[:1]}


def _asks_for_nothing(name: str, value: Any) -> bool:
    if name not in ASKS_FOR_NOTHING:
        return False
    return value is None or value in ASKS_FOR_NOTHING[name]


def _check_characters(text: str) -> str:
    if not is_whole(text):
        raise ValueError("the text holds half a character; give whole ones")
    return text


def _check_all_characters(texts: list[str]) -> list[str]:
    _check_characters("".join(texts))  # halves stay halves beside each other
    return texts


def _few(name: str, limit: int) -> BeforeValidator:
    """At most so many entries of an object, which are counted before any is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict):
            check_count(name, len(value), limit)
        return value

    return BeforeValidator(check)


def check_count(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise ValueError(f"{name} has {count} entries, and at most {limit} are taken")


Text = Annotated[str, AfterValidator(_check_characters)]
"""What is read as tokens; JSON can write what is no text."""
Texts = Annotated[Listed[str], AfterValidator(_check_all_characters)]

Biases = Annotated[dict[str, float], Field(max_length=MAX_BIASES), _few("logit_bias", MAX_BIASES)]
Metadata = Annotated[dict[str, str], Field(max_length=MAX_METADATA), _few("metadata", MAX_METADATA)]


class StreamOptions(Strict):
    include_usage: bool | None = None
    """One more chunk at the end with the usage, and without choices."""
    include_obfuscation: Literal[False] | None = None


class SpeculationWish(Strict):
    """What the request wishes of drafting; the distribution of its text stays the same."""

    enabled: bool = True
    """False decodes plainly."""
    drafter: str | None = None
    """One of those that `/v1/models` names; the first is the default."""
    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH)] | Literal["auto"] | None = None
    """Tokens drafted per round."""
    stats: bool = False
    """Put what was drafted and accepted into the answer, as its field `speculation`."""

    @model_validator(mode="after")
    def _check_effect(self) -> Self:
        drafts = self.depth not in (None, 0)
        if not self.enabled and (drafts or self.drafter not in (None, PLAIN)):
            raise ValueError(
                "speculation.enabled is false, and drafter or depth ask for drafts; leave one out"
            )
        if self.drafter == PLAIN and drafts:
            raise ValueError("speculation.drafter is 'none', which has no depth; leave one out")
        return self

    def wish(self) -> Speculation:
        return Speculation(self.enabled, self.drafter, self.depth)


class TextFormat(Strict):
    type: Literal["text"]


class ObjectFormat(Strict):
    type: Literal["json_object"]


class NamedSchema(Strict):
    name: str
    """OpenAI asks for one; it changes nothing, as `description` does not."""
    description: str | None = None
    fits: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    """The answer fits the schema in any case."""


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: NamedSchema


Format = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]

Stop = Annotated[str, Field(min_length=1, max_length=256)]
"""Longer ones would take time after every token."""


class Request(Strict):
    """Fields of completions and chats alike; null, where it is allowed, is the default."""

    model: str | None = None
    """The model served, or left out."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """0 is greedy decoding; by default 1, the model's own distribution."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=1e3)] | None = None
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    logit_bias: Biases | None = None
    """Token id -> value added to its logit."""
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    """The same seed gives the same text, whatever is drafted and whoever else is served."""
    stop: Stop | Listed[Stop] | None = None
    stop_token_ids: Listed[int] | None = None
    ignore_eos: bool | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    response_format: Format | None = None
    """What the answer has to look like; so do `regex` and `choice`, and only one may be given."""
    regex: str | None = None
    choice: Annotated[Listed[str], Field(min_length=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: SpeculationWish = Field(default_factory=SpeculationWish)
    user: str | None = None
    """Taken as `metadata` is: it changes nothing about the answer, and nothing is stored."""
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        wanted = not isinstance(self.response_format, TextFormat | None)
        if wanted + (self.regex is not None) + (self.choice is not None) > 1:
            raise ValueError("response_format, regex and choice exclude each other; give one")
        return self

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams; set stream, or leave it out")
        return self

    @property
    def wants_usage(self) -> bool:
        """Whether a stream has to tell the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)
