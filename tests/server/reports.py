"""Reports written by hand, and a stand-in for the service that they would come from."""

from __future__ import annotations

from draftproof.core import Plan, Step
from draftproof.service.records import RequestReport, RoundReport, Snapshot, Turn
from draftproof.stats.counters import Stats
from draftproof.theory.machine import RoundCost

ORIGINS = {"a": "accepted", "c": "correction", "b": "bonus", "p": "plain"}


def turn(origins, *, request=1, sample=0, drafter="ngram", drafted=0, depth=None, texts=None):
    """`origins` as letters: "aac" is two accepted tokens and a correction."""
    step = Step(
        seq_id=request,
        tokens=tuple(range(len(origins))),
        origins=tuple(ORIGINS[letter] for letter in origins),
        drafted=drafted,
        depth=drafted if depth is None else depth,
        accepted=origins.count("a"),
        finish_reason=None,
        logprobs=None,
        texts=tuple(texts or [f"<{letter}>" for letter in origins]),
    )
    plan = Plan(depth=step.depth)
    return Turn(request, sample, drafter, plan, step, None if drafted else "planned")


def round_of(*turns, seconds=0.25):
    return RoundReport(
        turns,
        RoundCost(5, 4, draft_s=0.05, verify_s=0.125, rest_s=0.025, tokens=2.0, drafting=1),
        seconds,
    )


def ended(request=1, **changes):
    fields = {
        "outcome": "stop",
        "drafter": "ngram",
        "samples": 1,
        "prompt_tokens": 10,
        "shared_tokens": 4,
        "queue_s": 0.5,
        "first_token_s": 1.0,
        "total_s": 3.0,
        "stats": Stats(generated=11, target_calls=5, drafted=8, accepted=6),
        "preemptions": 0,
    }
    return RequestReport(request_id=request, **{**fields, **changes})


class StandIn:
    """A service of which only the snapshot is read."""

    def __init__(self):
        self.plans = {}
        self.waiting = 2
        self.draining = False

    def snapshot(self):
        rows, used = len(self.plans), 512 * len(self.plans)
        return Snapshot(rows, self.waiting, rows, 4096, used, 0, dict(self.plans), self.draining)
