"""What a service did, for Prometheus and for people; numbers only, never a text."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from draftproof.server.latency import Latencies
from draftproof.server.tally import Tallies, Tally
from draftproof.service.records import RequestReport, RoundReport, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ACCEPTANCE = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)
_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 65)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_GAUGES = {
    "requests_running": ("running", "Requests that are decoded, or whose prompt is read."),
    "requests_waiting": ("waiting", "Requests in the queue."),
    "sequences": ("sequences", "Rows of the batch in use, one for each sample of a request."),
    "cache_tokens": ("cache_tokens", "Tokens that the key/value cache has room for."),
    "cache_tokens_used": (
        "cache_tokens_used",
        "Tokens of the cache reserved for running requests and kept prompts.",
    ),
    "draining": ("draining", "1 while the service takes no more requests, else 0."),
}


class Metrics:
    """Listens to one service. It has a registry of its own, so a process may hold several.

    A reader never sees half a round: the counters of one moment reconcile exactly.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._tallies = Tallies()
        self.registry.register(self._tallies)
        self._rounds = _Rounds(self.registry)
        self._requests = _Requests(self.registry)
        self._latencies = Latencies(self.registry)
        self._gauges = {
            field: Gauge(f"draftproof_{name}", text, registry=self.registry)
            for name, (field, text) in _GAUGES.items()
        }

    def submitted(self, request_id: int) -> None:  # noqa: ARG002
        self._requests.submitted.inc()

    def refused(self, reason: str) -> None:
        """The door refuses more than the service does, and tells `turned_away` of all."""

    def turned_away(self, code: str) -> None:
        """A request got an error before the service had it."""
        self._requests.refused.labels(code).inc()

    def round(self, report: RoundReport) -> None:
        with self._lock:
            self._tallies.add(report)
            self._rounds.add(report)

    def ended(self, report: RequestReport) -> None:
        with self._lock:
            self._requests.add(report)
            self._latencies.add(report)

    def exposition(self, snapshot: Snapshot) -> bytes:
        """All metrics in Prometheus' text format; the media type is `CONTENT_TYPE`."""
        with self._lock:
            for field, gauge in self._gauges.items():
                gauge.set(getattr(snapshot, field))
            families = list(self.registry.collect())
        for family in families:
            # When a series began doubles the answer and serves no panel.
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
        return generate_latest(_Collected(families))

    def total(self) -> Tally:
        """All turns so far, of all drafters."""
        with self._lock:
            return self._tallies.total()

    def as_dict(self, snapshot: Snapshot) -> dict[str, Any]:
        """What speculation has brought so far, ready for JSON."""
        with self._lock:
            tallies = self._tallies.by_drafter.items()
            drafters = {drafter: tally.as_dict() for drafter, tally in tallies}
            total = self._tallies.total().as_dict()
            latencies = self._latencies.as_dict()
        plans = [
            {"request": request, "depth": plan.depth, "width": plan.width, "nodes": plan.nodes}
            for request, plan in snapshot.plans.items()
        ]
        return {"total": total, "drafters": drafters, "seconds": latencies, "plans": plans}


@dataclass(frozen=True, slots=True)
class _Collected:
    """Families that were read at one moment, as a collector."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


class _Rounds:
    """What a round of the batch is like."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tokens = Histogram(
            "draftproof_tokens_per_call",
            "Tokens that one target call put out for one sequence; plain decoding has 1.",
            ["drafter"],
            registry=registry,
            buckets=_TOKENS,
        )
        self._rows = Histogram(
            "draftproof_batch_size",
            "Sequences decoded side by side in one round.",
            registry=registry,
            buckets=_ROWS,
        )
        self._seconds = Counter(
            "draftproof_round_seconds",
            "Seconds spent in rounds: draft, verify (the target's pass), rest (judging and "
            "bookkeeping), other (the service's own work).",
            ["phase"],
            registry=registry,
        )

    def add(self, report: RoundReport) -> None:
        self._rows.observe(len(report.turns))
        for turn in report.turns:
            self._tokens.labels(turn.drafter).observe(len(turn.step.tokens))
        cost = report.cost
        other = max(0.0, report.seconds - cost.draft_s - cost.verify_s - cost.rest_s)
        phases = {"draft": cost.draft_s, "verify": cost.verify_s, "rest": cost.rest_s}
        for phase, seconds in {**phases, "other": other}.items():
            self._seconds.labels(phase).inc(seconds)


class _Requests:
    """How requests come and go."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"draftproof_{name}", text, labels, registry=registry)

        self.submitted = counter("requests_submitted", "Requests taken into the queue.")
        self.refused = counter(
            "requests_refused",
            "Requests that got an error before the service had them, by its code.",
            "reason",
        )
        self._ended = counter(
            "requests", "Requests that are over, by how they ended.", "drafter", "outcome"
        )
        self._prompt = counter(
            "prompt_tokens", "Prompt tokens of requests that are over, whatever their n."
        )
        self._shared = counter(
            "shared_prompt_tokens",
            "Prompt tokens copied from another sequence's cache and not read, for each sample.",
        )
        self._preemptions = counter(
            "preemptions", "Times that a request, now over, had to make room and start again."
        )
        self._acceptance = Histogram(
            "draftproof_acceptance_rate",
            "Share of a request's proposed tokens that are in its output, 0 to 1; requests with "
            "drafts.",
            ["drafter"],
            registry=registry,
            buckets=_ACCEPTANCE,
        )

    def add(self, report: RequestReport) -> None:
        self._ended.labels(report.drafter, report.outcome).inc()
        self._prompt.inc(report.prompt_tokens)
        self._shared.inc(report.shared_tokens)
        self._preemptions.inc(report.preemptions)
        rate = report.stats.acceptance_rate
        if rate is not None:
            self._acceptance.labels(report.drafter).observe(rate)
