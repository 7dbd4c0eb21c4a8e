"""What a request asks of sampling; every field is honoured or refused, never ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from draftproof.errors import InvalidSetting
from draftproof.sampling.grammar import Grammar

StopRule = Callable[[Sequence[int]], bool]

MAX_LOGPROBS = 100
MAX_SAMPLES = 128


class LogitsProcessor(Protocol):
    """A transformers-style processor: (ids i64[1, L], logits f[1, V]) -> logits f[1, V]."""

    def __call__(
        self, input_ids: torch.LongTensor, scores: torch.FloatTensor, /
    ) -> torch.FloatTensor: ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one request.

    Processing order: logit_bias, repetition, presence and frequency penalty, min_tokens, the
    user's processors, grammar, temperature, top_k, top_p, min_p. Each is applied at every drafted
    position with the drafted prefix included, exactly as plain decoding would see it.
    """

    max_tokens: int = 256
    """Most tokens to generate; 0 generates nothing."""
    min_tokens: int = 0
    """End tokens are impossible and stop strings unread before this many tokens."""
    temperature: float = 0.0
    """0 is greedy decoding; 1 samples the model's own distribution."""
    top_k: int | None = None
    """Keep the k likeliest tokens (ties with the k-th are kept)."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens that holds this much probability."""
    min_p: float = 0.0
    """Keep tokens at least this probable relative to the likeliest."""
    repetition_penalty: float = 1.0
    """Divide positive (multiply negative) logits of tokens in prompt or output; Keskar 2019."""
    presence_penalty: float = 0.0
    """Subtract once from the logit of each token in the output."""
    frequency_penalty: float = 0.0
    """Subtract times the count from the logit of each token in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id -> value added to its logit."""
    seed: int | None = None
    """The same seed gives the same tokens, whatever the drafter, depth or batch."""
    stop: str | Sequence[str] = ()
    """Strings that end the text; they are not part of it."""
    stop_token_ids: Sequence[int] = ()
    """Ids that end the output, beside the model's own end tokens."""
    stop_rule: StopRule | None = None
    """A function of all ids, prompt first: the output ends after the first token for which it
    returns True."""
    ignore_eos: bool = False
    """Go on after the model's end tokens."""
    n: int = 1
    """Independent samples of the prompt."""
    logprobs: int | None = None
    """Log-probabilities of the chosen token and of the m likeliest, per position."""
    logits_processors: Sequence[LogitsProcessor] = ()
    """Functions of (ids, logits). A copy judges each drafted position, so a rejected draft
    leaves no trace in a stateful one; one that cannot be copied is refused."""
    grammar: Grammar | None = None
    """What the whole text has to look like: only tokens with which it can still become that are
    possible, end tokens only where it is complete, and it ends where it cannot go on."""

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "logits_processors"):
            object.__setattr__(self, name, _items(name, getattr(self, name)))
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidSetting(f"logit_bias is {self.logit_bias!r}; give a mapping of token ids")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        self._check_counts()
        self._check_shape()
        self._check_penalties()
        self._check_stop()
        self._check_grammar()

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` in its one internal form."""
        return tuple(self.stop)

    def _check_counts(self) -> None:
        _integer("max_tokens", self.max_tokens, 0, None)
        _integer("min_tokens", self.min_tokens, 0, None)
        if self.min_tokens > self.max_tokens:
            raise InvalidSetting(
                f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}; "
                "lower one or raise the other"
            )
        _integer("n", self.n, 1, MAX_SAMPLES)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.seed is not None:
            _integer("seed", self.seed, 0, 2**64 - 1)

    def _check_shape(self) -> None:
        _number("temperature", self.temperature, 0.0, 100.0)
        if self.top_k is not None:
            _integer("top_k", self.top_k, 1, None)
        _number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidSetting("top_p is 0, which keeps no token; use temperature=0 for greedy")
        _number("min_p", self.min_p, 0.0, 1.0)

    def _check_penalties(self) -> None:
        _number("repetition_penalty", self.repetition_penalty, 1e-3, 1e3)
        _number("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _number("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        for token, bias in self.logit_bias.items():
            _integer("a token id in logit_bias", token, 0, None)
            if not isinstance(bias, (int, float)) or math.isnan(bias) or bias == math.inf:
                raise InvalidSetting(
                    f"logit_bias[{token}] is {bias!r}; give a finite number, or -inf for a ban"
                )
        for processor in self.logits_processors:
            if not callable(processor):
                raise InvalidSetting(
                    f"logits_processors holds {processor!r}, which is not callable; "
                    "give functions of (ids, logits)"
                )

    def _check_stop(self) -> None:
        if self.stop_rule is not None and not callable(self.stop_rule):
            raise InvalidSetting(f"stop_rule is {self.stop_rule!r}; give a function of ids")
        if not isinstance(self.ignore_eos, bool):
            raise InvalidSetting(f"ignore_eos is {self.ignore_eos!r}; give True or False")
        for text in self.stop_strings:
            if not isinstance(text, str) or not text:
                raise InvalidSetting(f"stop holds {text!r}; give non-empty strings")
        for token in self.stop_token_ids:
            _integer("a token id in stop_token_ids", token, 0, None)

    def _check_grammar(self) -> None:
        if self.grammar is None:
            return
        if not isinstance(self.grammar, Grammar):
            raise InvalidSetting(
                f"grammar is {self.grammar!r}; give Grammar.json_schema(schema), "
                "Grammar.json_object(), Grammar.regex(pattern) or Grammar.choice(texts)"
            )
        if self.min_tokens > 0 or self.ignore_eos:
            name = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise InvalidSetting(
                f"{name} and a grammar were both given, and the grammar alone says where a text "
                "may end; leave one of them out"
            )


def _items(name: str, value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise InvalidSetting(f"{name} is {value!r}; give a list")
    return tuple(value)


def _integer(name: str, value: object, low: int, high: int | None) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits or value < low or (high is not None and value > high):  # type: ignore[operator]
        limit = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise InvalidSetting(f"{name} is {value!r}; give a whole number {limit}")


def _number(name: str, value: object, low: float, high: float) -> None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fits or not low <= value <= high:  # type: ignore[operator]
        raise InvalidSetting(f"{name} is {value!r}; give a number from {low:g} to {high:g}")
