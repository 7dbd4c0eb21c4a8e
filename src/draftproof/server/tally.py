"""What came of drafts, counted by drafter: the counters of Prometheus, and their sum for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily

from draftproof.service.records import RoundReport, Turn
from draftproof.stats.counters import Stats

ORIGINS = ("accepted", "correction", "bonus", "plain")

_SERIES = {
    "spec_decode_num_drafts": "Drafts made, one for each sequence and round that had one.",
    "spec_decode_num_draft_tokens": "Tokens proposed by drafters.",
    "spec_decode_num_verified_tokens": (
        "Tokens scored by target passes: every proposed token, and for each call the last token "
        "of the text before it."
    ),
    "spec_decode_num_accepted_tokens": "Proposed tokens that are in the output.",
    "target_calls": "Target passes that sequences took part in, prompt reading excluded.",
}
_LABELED = {
    "spec_decode_num_draft_tokens_per_pos": (
        "position",
        "Drafts that reached this depth, counted from 0.",
    ),
    "spec_decode_num_accepted_tokens_per_pos": (
        "position",
        "Accepted tokens by their depth in the draft, counted from 0.",
    ),
    "emitted_tokens": ("origin", "Tokens put out, by where they came from."),
    "plain_rounds": ("reason", "Target calls without a draft, by why there was none."),
}


@dataclass(slots=True)
class Tally:
    """The turns of one drafter."""

    stats: Stats = field(default_factory=Stats)
    origins: Counter[str] = field(default_factory=Counter)

    def add(self, turn: Turn) -> None:
        self.stats.add_step(turn.step, {})
        self.stats.add_plan(turn.plan, turn.plain_reason)
        self.origins.update(turn.step.origins)

    @property
    def drafts(self) -> int:
        """Target calls that judged one."""
        return self.stats.target_calls - self.stats.undrafted_calls

    def counts(self) -> dict[str, int]:
        """Series without a label of their own -> count."""
        calls, drafted = self.stats.target_calls, self.stats.drafted
        return {
            "spec_decode_num_drafts": self.drafts,
            "spec_decode_num_draft_tokens": drafted,
            "spec_decode_num_verified_tokens": drafted + calls,
            "spec_decode_num_accepted_tokens": self.stats.accepted,
            "target_calls": calls,
        }

    def labeled_counts(self) -> dict[str, Counter[int] | Counter[str]]:
        """Series with a label -> count by its value."""
        return {
            "spec_decode_num_draft_tokens_per_pos": self.stats.drafted_per_position,
            "spec_decode_num_accepted_tokens_per_pos": self.stats.accepted_per_position,
            "emitted_tokens": self.origins,
            "plain_rounds": self.stats.plain_rounds,
        }

    def as_dict(self) -> dict[str, Any]:
        """The fields of `Stats` that a service can know, and tokens by origin."""
        seconds = ("prefill_s", "draft_s", "verify_s", "rest_s", "seconds", "tokens_per_second")
        counted = self.stats.as_dict()
        known = {name: counted[name] for name in counted if name not in (*seconds, "prompt_tokens")}
        return known | {
            "drafts": self.drafts,
            "rejected": self.stats.drafted - self.stats.accepted,
            "origins": {origin: self.origins[origin] for origin in ORIGINS},
        }


class Tallies:
    """A tally for each drafter that has had a turn; a collector of Prometheus."""

    def __init__(self) -> None:
        self.by_drafter: defaultdict[str, Tally] = defaultdict(Tally)

    def add(self, report: RoundReport) -> None:
        for turn in report.turns:
            self.by_drafter[turn.drafter].add(turn)

    def total(self) -> Tally:
        """All drafters together, plain requests included."""
        total = Tally()
        for tally in self.by_drafter.values():
            total.stats.add(tally.stats)
            total.origins.update(tally.origins)
        return total

    def collect(self) -> Iterator[CounterMetricFamily]:
        for name, text in _SERIES.items():
            family = CounterMetricFamily(f"draftproof_{name}", text, labels=["drafter"])
            for drafter, tally in self.by_drafter.items():
                family.add_metric([drafter], tally.counts()[name])
            yield family
        for name, (label, text) in _LABELED.items():
            family = CounterMetricFamily(f"draftproof_{name}", text, labels=["drafter", label])
            for drafter, tally in self.by_drafter.items():
                for value, count in sorted(tally.labeled_counts()[name].items()):
                    family.add_metric([drafter, str(value)], count)
            yield family
