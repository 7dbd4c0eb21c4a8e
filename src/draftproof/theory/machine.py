"""What the parts of a round cost on one machine, in seconds; measured, or written down by hand.

`cost` has the same curve relative to one row, for the closed forms. Here the unit is the second,
a pass reads a context, and a drafter has a cost of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from draftproof.errors import InvalidSetting
from draftproof.theory.cost import line_through
from draftproof.theory.ranges import is_number


@dataclass(frozen=True)
class CostCurves:
    """Seconds of target passes and of drafting, for a batch of one size.

    Points are joined by straight lines. Below the first point its own cost holds, beyond the last
    the line goes on, level where it would fall. `InvalidSetting` for numbers that are no costs.
    """

    verify: Mapping[int, float]
    """Columns of a row -> seconds of one target pass over a context of `context` tokens."""
    draft: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Width -> levels -> seconds of drafting so far down. Widths above 1 are there exactly for a
    drafter that branches; without an entry drafting is free."""
    attention: Mapping[int, float] = field(default_factory=dict)
    """Columns of a row -> further seconds for each token of context beyond `context`."""
    draft_attention: Mapping[int, float] = field(default_factory=dict)
    """Levels -> further seconds of drafting for each token of context beyond `context`."""
    context: int = 0
    rest: float = 0.0
    """Seconds of judging and bookkeeping, a round."""

    def __post_init__(self) -> None:
        if 1 not in self.verify:
            raise InvalidSetting("the curve of verification has no cost of 1 column; give one")
        further = self.attention, self.draft_attention
        for points in (self.verify, *further, *self.draft.values()):
            for place, seconds in points.items():
                if not is_number(seconds) or not 0 <= seconds < float("inf") or place < 1:
                    raise InvalidSetting(
                        f"a cost curve says {place}: {seconds!r}; give counts from 1 and seconds"
                    )
        if self.verify[1] <= 0:
            raise InvalidSetting("verifying 1 column takes 0 seconds; give the measured time")

    def verify_seconds(self, columns: float, context_length: int = 0) -> float:
        """One target pass over `columns` columns a row, behind `context_length` tokens."""
        beyond = max(0, context_length - self.context)
        return self._verify(columns) + beyond * self._attention(columns)

    def draft_seconds(self, levels: int, width: int = 1, context_length: int = 0) -> float:
        """Drafting `levels` levels of at most `width` nodes that get children, likewise."""
        if levels == 0 or not self.draft:
            return 0.0
        known = [measured for measured in self._draft if measured >= width]
        seconds = self._draft[min(known, default=max(self._draft))](levels)
        return seconds + max(0, context_length - self.context) * self._draft_attention(levels)

    def round_seconds(self, levels: int, width: int, columns: int, context_length: int) -> float:
        """A whole round."""
        verify = self.verify_seconds(columns, context_length)
        return self.draft_seconds(levels, width, context_length) + verify + self.rest

    @property
    def widest(self) -> int:
        """The largest width whose drafting is known; 1 for a drafter of chains."""
        return max(self.draft, default=1)

    @cached_property
    def _verify(self) -> Callable[[float], float]:
        return cache(line_through(self.verify))

    @cached_property
    def _attention(self) -> Callable[[float], float]:
        return cache(line_through(self.attention or {1: 0.0}))

    @cached_property
    def _draft_attention(self) -> Callable[[float], float]:
        return cache(line_through({0: 0.0, **self.draft_attention}))

    @cached_property
    def _draft(self) -> dict[int, Callable[[float], float]]:
        return {
            width: cache(line_through({0: 0.0, **points})) for width, points in self.draft.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, and for `from_dict`."""
        return {
            "verify": dict(self.verify),
            "draft": {width: dict(points) for width, points in self.draft.items()},
            "attention": dict(self.attention),
            "draft_attention": dict(self.draft_attention),
            "context": self.context,
            "rest": self.rest,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> CostCurves:
        """The curves of `as_dict`, whose keys JSON made strings."""
        return cls(
            verify=_numbered(fields["verify"]),
            draft={int(width): _numbered(points) for width, points in fields["draft"].items()},
            attention=_numbered(fields["attention"]),
            draft_attention=_numbered(fields["draft_attention"]),
            context=int(fields["context"]),
            rest=float(fields["rest"]),
        )


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What one round of a batch took."""

    columns: float
    """Columns a row that the target pass computes, in the mean: 1 + the nodes of a draft, padding
    included where the model computes that."""
    levels: int
    """Levels of the deepest draft; those that a hybrid has looked up do not count."""
    draft_s: float
    verify_s: float
    rest_s: float
    tokens: float
    """What a sequence got, in the mean."""
    drafting: int
    """Sequences that had a draft, counted likewise."""


def _numbered(points: Mapping[Any, Any]) -> dict[int, float]:
    return {int(place): float(seconds) for place, seconds in points.items()}
