"""What both kinds of answer are made of: choices as they grow, usage, and the parts of a body."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel

from draftproof.core import FinishReason
from draftproof.output import Piece, pieces
from draftproof.service.records import Finished, Progress
from draftproof.stats.counters import Stats

LEAST_LOGPROB = -9999.0
"""JSON has no infinity."""


class Usage(BaseModel):
    prompt_tokens: int
    """Of each prompt once, however many choices it has."""
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Head:
    """What all bodies of one answer begin with."""

    id: str
    created: int
    model: str


@dataclass(slots=True)
class Choice:
    """One sample of one prompt as it grows."""

    index: int
    pieces: list[Piece] = field(default_factory=list)
    """Those that no body has told yet."""
    finish_reason: FinishReason | None = None
    stats: Stats = field(default_factory=Stats)
    told: int = 0
    """Characters of the bodies before."""

    @property
    def has_news(self) -> bool:
        """Text or log-probabilities to tell."""
        return any(piece.text or piece.logprobs for piece in self.pieces)

    def tell(self) -> list[Piece]:
        """What a body has to tell; it is let go of."""
        new, self.pieces = self.pieces, []
        self.told += sum(len(piece.text) for piece in new)
        return new


class Choices:
    """All samples of all prompts of one request."""

    def __init__(self, prompts: Sequence[Sequence[int]], n: int) -> None:
        self.prompt_tokens = sum(len(prompt) for prompt in prompts)
        self.generated = 0
        self._n = n
        self._all = [Choice(index) for index in range(len(prompts) * n)]

    def __iter__(self) -> Iterator[Choice]:
        return iter(self._all)

    def take(self, prompt: int, event: Progress | Finished) -> Choice:
        """Add an event of a prompt to the choice that it is about."""
        choice = self._all[prompt * self._n + event.sample]
        if isinstance(event, Progress):
            choice.pieces += pieces(event.step)
            self.generated += len(event.step.tokens)
        else:
            choice.finish_reason, choice.stats = event.finish_reason, event.stats
        return choice

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.generated,
            total_tokens=self.prompt_tokens + self.generated,
        )

    @property
    def stats(self) -> dict[str, Any]:
        """Counters of all choices together."""
        total = Stats()
        for choice in self._all:
            total.add(choice.stats)
        return total.as_dict()


class Form(Protocol):
    """One of the two kinds of answer, whole or in chunks."""

    def whole(self, choices: Choices, extras: dict[str, Any]) -> BaseModel:
        """`extras` are fields that only some answers have."""
        ...

    def opening(self, index: int) -> BaseModel | None:
        """The chunk that begins a choice, where there is one."""
        ...

    def chunk(self, choice: Choice) -> BaseModel:
        """What is new of a choice."""
        ...

    def ending(self, choice: Choice) -> BaseModel: ...

    def closing(self, extras: dict[str, Any]) -> BaseModel:
        """The chunk behind all choices."""
        ...


def text_of(new: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in new)


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
