"""What a running service says of its requests; frozen, read by servers and metrics alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from draftproof.core import FinishReason, Plan, Step
from draftproof.errors import DraftproofError
from draftproof.stats.counters import Stats
from draftproof.theory.machine import RoundCost


@dataclass(frozen=True, slots=True)
class Progress:
    """What one round added to one sample of a request."""

    sample: int
    """Which of the request's n samples, from 0."""
    step: Step


@dataclass(frozen=True, slots=True)
class Finished:
    """A sample has ended by its own rules; after the last one the request is over."""

    sample: int
    finish_reason: FinishReason
    stats: Stats
    last: bool
    """No other sample of the request is left."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The whole request has ended for a reason that is not its text: nothing more will come."""

    error: DraftproofError
    """`Cancelled`, `DeadlineExceeded`, `Overloaded` on shutdown, or `RequestFailed`."""


Event: TypeAlias = Progress | Finished | Failed


@dataclass(frozen=True, slots=True)
class Turn:
    """One sequence's part of a round."""

    request_id: int
    sample: int
    drafter: str
    """"none" for a request without speculation."""
    plan: Plan
    step: Step
    plain_reason: str | None
    """Why there was no draft, one of `stats.counters.PLAIN_REASONS`; None where there was one."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round of the whole batch."""

    turns: tuple[Turn, ...]
    cost: RoundCost
    seconds: float
    """All of the round: drafting, verifying, and the engine's own work."""


@dataclass(frozen=True, slots=True)
class RequestReport:
    """How a request went, told once when it is over."""

    request_id: int
    outcome: str
    """"stop", "length" (of the last sample to end), "cancelled", "deadline", "failed"."""
    drafter: str
    samples: int
    prompt_tokens: int
    shared_tokens: int
    """Prompt tokens whose keys and values were copied from another request's."""
    queue_s: float
    """From submission to the first prompt token read; of a request never admitted, all its time."""
    first_token_s: float | None
    """From submission to the first token; None when none came."""
    total_s: float
    stats: Stats
    """Of all samples together."""
    preemptions: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The service at one moment."""

    running: int
    """Requests whose samples are decoded, or whose prompt is read."""
    waiting: int
    sequences: int
    """Rows of the batch in use."""
    cache_tokens: int
    """Tokens that the cache has room for."""
    cache_tokens_used: int
    """Of those, reserved for running requests and kept prefixes."""
    preemptions: int
    plans: Mapping[int, Plan]
    """Request id -> the last plan of its first sample."""
    draining: bool


class Listener(Protocol):
    """Hears what happens, on the service's own thread: be quick and never raise."""

    def submitted(self, request_id: int) -> None: ...

    def refused(self, reason: str) -> None:
        """A request was turned away before it was queued: "queue_full", "too_long", "draining",
        "failed"; told on the thread that asked."""
        ...

    def round(self, report: RoundReport) -> None: ...

    def ended(self, report: RequestReport) -> None: ...
