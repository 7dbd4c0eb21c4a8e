"""From one run of a drafter to what any depth of it would bring; arithmetic only.

A probe drafts deep in every round. Had it drafted d levels, a round that accepted a tokens would
have accepted min(a, d), and its target pass would have had 1 + min(length, d) columns. Tokens and
columns of every depth follow from the counts by position, seconds from the measured cost curves,
scaled to what plain decoding and the probe took on these very prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from draftproof.stats.counters import Stats
from draftproof.theory.machine import CostCurves


@dataclass(frozen=True, slots=True)
class Shape:
    """A drafter with the plan of its rounds."""

    drafter: str
    depth: int
    width: int
    nodes: int | None

    @property
    def label(self) -> str:
        tree = f", width {self.width}, {self.nodes} nodes" if self.width > 1 else ""
        return f"{self.drafter}, depth {self.depth}{tree}"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a shape promises; seconds are those of one round."""

    shape: Shape
    tokens_per_call: float
    draft_s: float
    verify_s: float
    rest_s: float
    plain_s: float
    """One plain round."""

    @property
    def speedup(self) -> float:
        return self.tokens_per_call * self.plain_s / (self.draft_s + self.verify_s + self.rest_s)

    @property
    def reason(self) -> str:
        """Why it is this fast, in words."""
        draft, verify = self.draft_s / self.plain_s, self.verify_s / self.plain_s
        return (
            f"{self.tokens_per_call:.2f} tokens a round that takes "
            f"{draft + verify + self.rest_s / self.plain_s:.2f} plain ones: "
            f"draft {draft:.2f}, verify {verify:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Probe:
    """A run of a drafter with a chain of `shape.depth`, and plain decoding of the same texts."""

    shape: Shape
    stats: Stats
    plain: Stats
    curves: CostCurves
    context_length: int
    """Mean tokens before the first new one."""

    def forecasts(self) -> Iterator[Forecast]:
        """Every depth up to the probe's own; of a tree the probe itself."""
        depths = range(1, self.shape.depth + 1) if self.shape.width == 1 else [self.shape.depth]
        for depth in depths:
            yield self._forecast(depth)

    def _forecast(self, depth: int) -> Forecast:
        stats, calls = self.stats, self.stats.target_calls
        shape = Shape(self.shape.drafter, depth, self.shape.width, self.shape.nodes)
        whole = depth == self.shape.depth
        tokens = 1 + sum(stats.accepted_per_position[i] for i in range(depth)) / calls
        verify = self._verify_scale
        return Forecast(
            shape=shape,
            tokens_per_call=stats.generated / calls if whole else tokens,
            draft_s=stats.draft_s / calls * self._draft_share(depth),
            verify_s=stats.verify_s / calls if whole else self._mean_verify(depth, verify),
            rest_s=stats.rest_s / calls,
            plain_s=self.plain.seconds_per_call or 0.0,
        )

    def _draft_share(self, depth: int) -> float:
        """Of the probe's own time for drafting, by the curve of the drafter."""
        whole = self.curves.draft_seconds(self.shape.depth, self.shape.width)
        return self.curves.draft_seconds(depth, self.shape.width) / whole if whole > 0 else 1.0

    def _mean_verify(self, depth: int, scale: Callable[[int], float]) -> float:
        """Mean seconds of a target pass if no draft were deeper than `depth`."""
        mean = 0.0
        for length, share in self._lengths(depth).items():
            seconds = self.curves.verify_seconds(1 + length, self.context_length)
            mean += share * seconds * scale(1 + length)
        return mean

    def _lengths(self, depth: int) -> dict[int, float]:
        """Length of a draft cut to `depth` -> share of rounds."""
        calls = self.stats.target_calls
        reached = [1.0, *(self.stats.drafted_per_position[i] / calls for i in range(depth)), 0.0]
        return {length: reached[length] - reached[length + 1] for length in range(depth + 1)}

    @property
    def _verify_scale(self) -> Callable[[int], float]:
        """Columns -> measured over curve: between plain passes and the probe's, a straight line."""
        plain = self.plain.verify_s / self.plain.target_calls
        one = plain / self.curves.verify_seconds(1, self.context_length)
        lengths = self._lengths(self.shape.depth)
        drafted = max(1e-9, 1 - lengths[0])
        widest = 1 + sum(length * share for length, share in lengths.items()) / drafted
        # Rounds without a draft are plain passes; what is left of the time are wide ones.
        wide_curve = self._mean_verify(self.shape.depth, lambda n: float(n > 1))
        narrow = lengths[0] * plain
        spent = self.stats.verify_s / self.stats.target_calls - narrow
        wide = max(spent, 0.0) / wide_curve if wide_curve > 0 else one

        def scale(columns: int) -> float:
            if columns == 1 or widest <= 1:
                return one
            return one + (wide - one) * min(1.0, (columns - 1) / (widest - 1))

        return scale
