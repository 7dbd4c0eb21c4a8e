"""A request of HTTP in the words of the library; every limit but the service's own is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jinja2 import TemplateError

from draftproof.api import Speculator
from draftproof.config import ServerSettings, Speculation
from draftproof.engine.prompt import Prompt
from draftproof.errors import InvalidPrompt
from draftproof.sampling.grammar import Grammar
from draftproof.sampling.params import SamplingParams
from draftproof.server.chat import ChatRequest
from draftproof.server.completions import CompletionRequest
from draftproof.server.errors import Refusal
from draftproof.server.fields import ObjectFormat, SchemaFormat

Body: TypeAlias = CompletionRequest | ChatRequest

_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "n",
)
"""Fields that mean the same here and in `SamplingParams`."""


@dataclass(frozen=True, slots=True)
class Order:
    """What one request asks of the service: its prompts, all with the same parameters."""

    prompts: list[list[int]]
    params: SamplingParams
    speculation: Speculation


def read_order(
    body: Body, speculator: Speculator, settings: ServerSettings, max_length: int
) -> Order:
    """`max_length`: most tokens of a prompt with its answer. Encodes, so it may take a while."""
    _check(body, settings)
    prompts = [_encode(prompt, speculator) for prompt in body.prompts]
    longest = max(len(prompt) for prompt in prompts)
    if settings.max_prompt_tokens is not None and longest > settings.max_prompt_tokens:
        raise _too_long(body, f"at most {settings.max_prompt_tokens} tokens", longest)
    room = max_length - longest
    if room < max(1, body.budget or 0):
        raise _too_long(body, f"at most {max_length} tokens with its answer", longest)
    budget = body.budget
    if budget is None:
        budget = min(room, settings.max_tokens_limit, body.default_budget or room)
    fields = {"temperature": 1.0} | body.model_dump(include=set(_SAME), exclude_none=True)
    params = SamplingParams(
        **fields,
        max_tokens=budget,
        logit_bias=_logit_bias(body),
        logprobs=body.num_logprobs,
        grammar=_grammar(body),
    )
    return Order(prompts, params, body.speculation.wish())


def _check(body: Body, settings: ServerSettings) -> None:
    """Limits that need no tokens to be counted."""
    stops = [] if body.stop is None else [body.stop] if isinstance(body.stop, str) else body.stop
    depth = body.speculation.depth
    fixed = depth if isinstance(depth, int) else 0
    for name, count, limit in (
        ("prompt", len(body.prompts), settings.max_prompts),
        ("max_tokens", body.budget or 0, settings.max_tokens_limit),
        ("stop", len(stops) + len(body.stop_token_ids or ()), settings.max_stops),
        ("speculation.depth", fixed, settings.max_depth),
    ):
        if count > limit:
            message = f"{name} asks for {count}, and this server allows {limit}"
            raise Refusal(400, message, "limit_exceeded", name)
    if not body.prompts:
        raise Refusal(400, "prompt is an empty list; give at least one", "invalid_value", "prompt")


def _encode(prompt: Prompt, speculator: Speculator) -> list[int]:
    try:
        return speculator.encode(prompt)
    except TemplateError as error:
        raise InvalidPrompt(f"the model's chat template refuses these messages: {error}") from error


def _too_long(body: Body, allowed: str, prompt_tokens: int) -> Refusal:
    answer = "" if body.budget is None else f", and {body.budget} are asked for as its answer"
    return Refusal(
        400,
        f"a prompt may have {allowed}; this one has {prompt_tokens}{answer}",
        "context_length_exceeded",
        "messages" if isinstance(body, ChatRequest) else "prompt",
    )


def _grammar(body: Body) -> Grammar | None:
    if body.regex is not None:
        return Grammar.regex(body.regex)
    if body.choice is not None:
        return Grammar.choice(body.choice)
    if isinstance(body.response_format, SchemaFormat):
        return Grammar.json_schema(body.response_format.json_schema.fits)
    return Grammar.json_object() if isinstance(body.response_format, ObjectFormat) else None


def _logit_bias(body: Body) -> dict[int, float]:
    try:
        return {int(token): bias for token, bias in (body.logit_bias or {}).items()}
    except ValueError:
        raise Refusal(
            400, "logit_bias maps token ids to numbers", "invalid_value", "logit_bias"
        ) from None
