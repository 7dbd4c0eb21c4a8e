"""How long requests took: histograms for Prometheus, exact quantiles of the latest for people."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Histogram

from draftproof.service.records import RequestReport

KEPT = 1024
"""Finished requests whose times are kept for exact quantiles."""
QUANTILES = (0.5, 0.95, 0.99)

_FINISHED = ("stop", "length")


def ladder(first: int, last: int) -> tuple[float, ...]:
    """Bounds from 10^first to 10^last, five a decade, so that quantiles can be read off."""
    steps = (1, 1.5, 2.5, 4, 6.5)
    between = [float(f"{step}e{power}") for power in range(first, last) for step in steps]
    return (*between, float(f"1e{last}"))


# From a small model on a GPU to a large one on a CPU.
_SECONDS = ladder(-3, 3)
_TOKEN_SECONDS = ladder(-4, 1)


class Latencies:
    """Times of requests, by drafter; told once a request is over."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._histograms = {
            name: Histogram(
                f"draftproof_{name}_seconds", text, ["drafter"], registry=registry, buckets=buckets
            )
            for name, (text, buckets) in _TIMES.items()
        }
        self._latest: dict[str, deque[float]] = {name: deque(maxlen=KEPT) for name in _TIMES}

    def add(self, report: RequestReport) -> None:
        for name, seconds in _times(report).items():
            self._histograms[name].labels(report.drafter).observe(seconds)
            self._latest[name].append(seconds)

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Seconds by name and quantile; a name is missing until a request had that time."""
        return {
            name: {f"p{100 * share:.0f}": quantile(latest, share) for share in QUANTILES}
            for name, latest in self._latest.items()
            if latest
        }


_TIMES = {
    "time_to_first_token": (
        "Seconds from submission to the first token; requests that got one.",
        _SECONDS,
    ),
    "time_per_output_token": (
        "Seconds per token after the first of a sample; finished requests.",
        _TOKEN_SECONDS,
    ),
    "request": ("Seconds from submission to the last token; finished requests.", _SECONDS),
    "queue": (
        "Seconds from submission to the first prompt token read; of a request that was never "
        "read, all its time.",
        _SECONDS,
    ),
}


def _times(report: RequestReport) -> Mapping[str, float]:
    times = {"queue": report.queue_s}
    if report.first_token_s is not None:
        times["time_to_first_token"] = report.first_token_s
        later = report.stats.generated / report.samples - 1
        if report.outcome in _FINISHED and later > 0:
            times["time_per_output_token"] = (report.total_s - report.first_token_s) / later
    if report.outcome in _FINISHED:
        times["request"] = report.total_s
    return times


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
