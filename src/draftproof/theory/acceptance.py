"""How a drafter fares against its target, as a simulation has it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from draftproof.theory.ranges import check_count, check_rate

_MOST_RATES = 1_000


@dataclass(frozen=True, slots=True)
class Place:
    """One level of one draft."""

    confidence: float | None
    """How sure the drafter is of its first choice; None where it cannot tell."""
    rate: float
    """Probability that the first choice is accepted given that the path before was."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How a drafter fares against its target. `InvalidSetting` for what is no probability."""

    rates: tuple[float, ...]
    """Probability that the first choice at level 1, 2, ... is accepted given that the path before
    was; the last one holds for all further levels."""
    ranks: tuple[float, ...] = ()
    """The same of the second, third, ... choice, given that the better ones were not."""
    proposes: float = 1.0
    """Share of rounds in which the drafter has anything to propose."""
    confidences: tuple[tuple[float, float], ...] = ()
    """(confidence of the drafter at a place, factor of the rate there), each equally likely."""

    def __post_init__(self) -> None:
        for name, rates in (("rates", self.rates), ("ranks", self.ranks)):
            for rate in rates:
                check_rate(name, rate)
        check_rate("proposes", self.proposes)
        for confidence, factor in self.confidences:
            check_rate("confidence", confidence)
            check_rate("rate of a place", min(1.0, max(self.rates)) * factor)
        check_count("the number of rates", len(self.rates), 1, _MOST_RATES)

    def down_to(self, depth: int) -> tuple[float, ...]:
        """The rates of levels 1 to `depth`."""
        missing = depth - len(self.rates)
        return self.rates[:depth] if missing <= 0 else self.rates + self.rates[-1:] * missing

    def places(self, depth: int, rng: random.Random) -> list[Place]:
        """Those down one draft, as chance has them."""
        rates = self.down_to(depth)
        if not self.confidences:
            return [Place(None, rate) for rate in rates]
        drawn = [rng.choice(self.confidences) for _ in rates]
        return [
            Place(sure, rate * factor) for rate, (sure, factor) in zip(rates, drawn, strict=True)
        ]
