"""One request of a service: its samples, its times, and what it tells whoever made it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from draftproof.core import Plan, Step
from draftproof.engine.entry import Entry
from draftproof.errors import Cancelled, DeadlineExceeded, DraftproofError
from draftproof.service.records import Event, Failed, Finished, Progress, RequestReport
from draftproof.stats.counters import Stats


@dataclass(slots=True, eq=False)
class Request:
    """All that a service keeps of a request while it lasts."""

    request_id: int
    drafter: str
    entries: list[Entry]
    """One a sample."""
    on_event: Callable[[Event], None]
    deadline: float | None
    """On the clock of `time.monotonic`."""
    submitted: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    running: set[int] = field(default_factory=set)
    """Samples that have not ended."""
    plan: Plan | None = None
    """The last one of its first sample."""
    outcome: str | None = None
    """Set once it is over."""

    def __post_init__(self) -> None:
        self.running = set(range(len(self.entries)))

    @property
    def started(self) -> float | None:
        """When the first of its samples was given a row."""
        times = [entry.started for entry in self.entries if entry.started is not None]
        return min(times, default=None)

    @property
    def waiting(self) -> bool:
        return self.started is None

    def progress(self, sample: int, step: Step) -> None:
        """Pass on what a round added to a sample; raises what the listener raises."""
        if self.first_token is None:
            self.first_token = time.monotonic()
        self.on_event(Progress(sample, step))
        self.end_if_finished(sample)

    def end_if_finished(self, sample: int) -> None:
        """Tell that a sample has ended by its own rules, if it has."""
        sequence = self.entries[sample].sequence
        if sequence.finish_reason is None or sample not in self.running:
            return
        self.running.discard(sample)
        last = not self.running
        if last:
            self.outcome = sequence.finish_reason
        self.on_event(Finished(sample, sequence.finish_reason, sequence.stats, last))

    def fail(self, error: DraftproofError) -> None:
        """End it for a reason that is not its text."""
        self.outcome = "failed"
        if isinstance(error, Cancelled):
            self.outcome = "cancelled"
        elif isinstance(error, DeadlineExceeded):
            self.outcome = "deadline"
        self.running.clear()
        self.on_event(Failed(error))

    def report(self) -> RequestReport:
        now, stats = time.monotonic(), Stats()
        for entry in self.entries:
            stats.add(entry.sequence.stats)
        first = self.first_token
        return RequestReport(
            request_id=self.request_id,
            outcome=self.outcome or "failed",
            drafter=self.drafter,
            samples=len(self.entries),
            prompt_tokens=self.entries[0].sequence.prompt_length,
            shared_tokens=sum(entry.shared for entry in self.entries),
            queue_s=(self.started or now) - self.submitted,
            first_token_s=None if first is None else first - self.submitted,
            total_s=now - self.submitted,
            stats=stats,
            preemptions=sum(entry.preemptions for entry in self.entries),
        )
