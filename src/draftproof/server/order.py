"""A request of HTTP in the words of the library; every limit but the service's own is here."""

from __future__ import annotations

import re
from collections.abc import Callable
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


MAX_ALTERNATIVES = 1 << 19
"""Log-probabilities of one answer, some 100 bytes each until it is sent: as many as the longest
answer of the usual limit has with the most that one token may have."""
_ID = re.compile("0|[1-9][0-9]{0,17}")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Order:
    """What one request asks of the service: its prompts, all with the same parameters."""

    prompts: list[list[int]]
    params: SamplingParams
    speculation: Speculation


def read_order(
    body: Body,
    speculator: Speculator,
    settings: ServerSettings,
    max_length: int,
    go_on: Callable[[], None],
) -> Order:
    """`max_length`: most tokens of a prompt with its answer. Encodes, so it may take a while;
    `go_on` is called before each prompt, and raises where that is in vain."""
    _check(body, settings)
    prompts = []
    for prompt in body.prompts:
        go_on()
        prompts.append(_encode(prompt, speculator))
    longest = max(len(prompt) for prompt in prompts)
    if settings.max_prompt_tokens is not None and longest > settings.max_prompt_tokens:
        raise _too_long(body, f"at most {settings.max_prompt_tokens} tokens", longest)
    room = max_length - longest
    if room < max(1, body.budget or 0):
        raise _too_long(body, f"at most {max_length} tokens with its answer", longest)
    budget = body.budget
    if budget is None:
        budget = min(room, settings.max_tokens_limit, body.default_budget or room)
    _check_logprobs(body, len(prompts) * budget)
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
    newer = isinstance(body, ChatRequest) and body.max_completion_tokens is not None
    for name, count, limit in (
        ("prompt", len(body.prompts), settings.max_prompts),
        (
            "max_completion_tokens" if newer else "max_tokens",
            body.budget or 0,
            settings.max_tokens_limit,
        ),
        ("stop", len(stops) + len(body.stop_token_ids or ()), settings.max_stops),
        ("speculation.depth", fixed, settings.max_depth),
    ):
        if count > limit:
            message = f"{name} asks for {count}, and this server allows {limit}"
            raise Refusal(400, message, "limit_exceeded", name)
    if not body.prompts:
        raise Refusal(400, "prompt is an empty list; give at least one", "invalid_value", "prompt")


def _check_logprobs(body: Body, tokens: int) -> None:
    """`tokens`: the most that one sample of each prompt has together."""
    if body.num_logprobs is None:
        return
    count = tokens * (body.n or 1) * (1 + body.num_logprobs)
    if count > MAX_ALTERNATIVES:
        name = "top_logprobs" if isinstance(body, ChatRequest) else "logprobs"
        message = (
            f"the answer may have {count} log-probabilities, and {MAX_ALTERNATIVES} are allowed; "
            f"give smaller max_tokens, n or {name}"
        )
        raise Refusal(400, message, "limit_exceeded", name)


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
    given = body.logit_bias or {}
    for token in given:
        # 07 and 7 would be one id, and one of their biases lost.
        if not _ID.fullmatch(token):
            said = f"logit_bias maps token ids to numbers, and {token[:_SHOWN]!r} is no id"
            raise Refusal(400, said, "invalid_value", "logit_bias")
    return {int(token): bias for token, bias in given.items()}
