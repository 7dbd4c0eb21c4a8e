"""What a user gets back."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.core import FinishReason, Origin, Step, TokenLogprobs
from draftproof.stats.counters import Stats


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of one prompt."""

    text: str
    token_ids: tuple[int, ...]
    """Generated ids, an end token included."""
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] | None
    origins: tuple[Origin, ...]
    """Per token: accepted from a draft, correction, bonus, or plain."""
    stats: Stats


@dataclass(frozen=True, slots=True)
class Output:
    """All samples of one prompt; the fields of a single sample are those of the first."""

    prompt_token_ids: tuple[int, ...]
    samples: tuple[Sample, ...]

    @property
    def text(self) -> str:
        return self.samples[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.samples[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.samples[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        return self.samples[0].logprobs

    @property
    def stats(self) -> Stats:
        return self.samples[0].stats


@dataclass(frozen=True, slots=True)
class Piece:
    """One generated token as it is streamed; `str(piece)` is its text."""

    text: str
    """Text that can be shown now: may be empty, or hold that of earlier tokens."""
    token_id: int
    origin: Origin
    finish_reason: FinishReason | None
    """Set on the last piece."""
    logprobs: TokenLogprobs | None

    def __str__(self) -> str:
        return self.text


def pieces(step: Step) -> list[Piece]:
    """The tokens of one step, one by one."""
    last = len(step.tokens) - 1
    return [
        Piece(
            text=step.texts[i],
            token_id=token,
            origin=step.origins[i],
            finish_reason=step.finish_reason if i == last else None,
            logprobs=step.logprobs[i] if step.logprobs is not None else None,
        )
        for i, token in enumerate(step.tokens)
    ]


def sample(steps: list[Step], finish_reason: FinishReason, stats: Stats, logprobs: bool) -> Sample:
    """Put the steps of one sequence together."""
    parts = [piece for step in steps for piece in pieces(step)]
    return Sample(
        text="".join(piece.text for piece in parts),
        token_ids=tuple(piece.token_id for piece in parts),
        finish_reason=finish_reason,
        logprobs=tuple(p.logprobs for p in parts if p.logprobs is not None) if logprobs else None,
        origins=tuple(piece.origin for piece in parts),
        stats=stats,
    )
