"""What was counted while a request was decoded; every rate is derived from counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from draftproof.core import Plan, Step

PLAIN_REASONS = ("planned", "no_room", "no_draft")


@dataclass(slots=True)
class Stats:
    """Counters of one sequence, or of several added together.

    `accepted` counts drafted tokens that are in the output, so
    generated = accepted + the corrections, bonuses and plain tokens, one a round at most.
    """

    prompt_tokens: int = 0
    generated: int = 0
    """Tokens in the output."""
    target_calls: int = 0
    """Target forward passes that this output took part in, prompt reading excluded."""
    drafted: int = 0
    """Drafted tokens that the target verified."""
    accepted: int = 0
    undrafted_calls: int = 0
    """Target calls without a draft."""
    drafted_per_position: Counter[int] = field(default_factory=Counter)
    """How often a draft reached this depth, counted from 0."""
    accepted_per_position: Counter[int] = field(default_factory=Counter)
    planned_depths: Counter[int] = field(default_factory=Counter)
    """How many rounds were to draft so deep; 0 is plain decoding."""
    plain_rounds: Counter[str] = field(default_factory=Counter)
    """Why rounds had no draft: "planned", plain decoding was thought to be faster; "no_room", the
    text ends with this token; "no_draft", the drafter had nothing to propose."""
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    rest_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Wall time; in a batch, of the rounds that the sequence took part in."""
        return self.prefill_s + self.draft_s + self.verify_s + self.rest_s

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def accepted_per_call(self) -> float | None:
        """Drafted tokens kept per target call; None before the first call."""
        return self.accepted / self.target_calls if self.target_calls else None

    @property
    def tokens_per_call(self) -> float | None:
        """Tokens per target call; plain decoding has 1."""
        return self.generated / self.target_calls if self.target_calls else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of decoding, prompt reading excluded."""
        decoding = self.seconds - self.prefill_s
        return self.generated / decoding if decoding > 0 else None

    @property
    def calls_saved(self) -> int:
        """Target calls that plain decoding would have needed beyond these."""
        return self.generated - self.target_calls

    @property
    def seconds_per_call(self) -> float | None:
        """Seconds of a round, prompt reading excluded."""
        return (self.seconds - self.prefill_s) / self.target_calls if self.target_calls else None

    def add(self, other: Stats) -> None:
        """Count another sequence's rounds as well."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def add_step(self, step: Step, seconds: dict[str, float]) -> None:
        """Count one round of the sequence."""
        self.generated += len(step.tokens)
        self.target_calls += 1
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.undrafted_calls += step.drafted == 0
        self.drafted_per_position.update(range(step.depth))
        self.accepted_per_position.update(range(step.accepted))
        self.draft_s += seconds.get("draft", 0.0)
        self.verify_s += seconds.get("verify", 0.0)
        self.rest_s += seconds.get("rest", 0.0)

    def add_plan(self, plan: Plan, reason: str | None) -> None:
        """Count what was planned for a round, and by `plain_reason` why it had no draft."""
        self.planned_depths[plan.depth] += 1
        if reason is not None:
            self.plain_rounds[reason] += 1

    def as_dict(self) -> dict[str, Any]:
        """Counts and the rates derived from them, ready for JSON."""
        counts = asdict(self)
        depth = max(self.drafted_per_position, default=-1) + 1
        for name in ("drafted_per_position", "accepted_per_position"):
            counts[name] = [getattr(self, name)[i] for i in range(depth)]
        deepest = max(self.planned_depths, default=-1)
        counts["planned_depths"] = [self.planned_depths[i] for i in range(deepest + 1)]
        counts["plain_rounds"] = {reason: self.plain_rounds[reason] for reason in PLAIN_REASONS}
        rates = (
            "seconds",
            "acceptance_rate",
            "accepted_per_call",
            "tokens_per_call",
            "tokens_per_second",
            "calls_saved",
        )
        return counts | {name: getattr(self, name) for name in rates}


def plain_reason(plan: Plan, room: int, step: Step) -> str | None:
    """Why a round with room for `room` drafted tokens had no draft, one of `PLAIN_REASONS`; None
    where it had one."""
    if step.drafted > 0:
        return None
    return "no_room" if room == 0 else "no_draft" if plan.depth else "planned"
