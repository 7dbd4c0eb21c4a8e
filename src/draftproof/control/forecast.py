"""Seconds that a round will take: measured costs, corrected by what rounds took since."""

from __future__ import annotations

import math
from collections.abc import Callable

from draftproof.theory.machine import CostCurves, RoundCost

Costs = Callable[[int], CostCurves]
"""Batch size -> the curves for it."""

_LEVEL_WEIGHT = 0.1
"""How much of a surprise moves the correction of all passes."""
_WIDE_WEIGHT = 0.03
"""How much of it moves what wide passes are corrected by beyond that."""
_DRAFT_WEIGHT = 0.1
"""How much of a surprise moves what drafting is corrected by beyond that; the first ones more, for
a drafter that was measured too dear is seldom heard of."""
_STALE = 0.7
_SETTLED = 24
"""After so many passes in less than this share of what was measured, the measuring was held up."""
_REST_WEIGHT = 0.1
_LARGEST_SURPRISE = math.log(2)
"""A round that was held up says little about the next: more than this is not believed."""


class Forecast:
    """One sequence's view of the machine.

    A machine that is busier than when it was measured is slower at everything, and more so where
    it computes than where it waits for memory; so wide passes have a factor of their own, and so
    has drafting.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.mixed = False
        """Others draft by other means, and a round does not tell what these drafts cost."""
        self._passes = self._drafts = 0
        # Logs of the factors: of all passes, and beyond that of wide ones and of drafting.
        self._log_level = self._log_wide = self._log_draft = 0.0
        self._plain_factor = self._wide_factor = self._draft_factor = 1.0
        self._rest: float | None = None
        self._curves: CostCurves | None = None
        self._batch_size = 0
        self._context_length = 0

    def turn_to(self, context_length: int, batch_size: int) -> CostCurves:
        """Forecast for so many sequences of this length; returns the curves it starts from."""
        self._context_length = context_length
        if self._curves is None or batch_size != self._batch_size:
            self._curves = self.costs(batch_size)
            self._batch_size = batch_size
        return self._curves

    def seconds(self, levels: int, width: int, columns: float) -> float:
        """A round in which all draft `levels` levels, with rows of `columns` columns."""
        return self.pass_seconds(columns) + self.draft_seconds(levels, width)

    def pass_seconds(self, columns: float) -> float:
        """A round without what its drafts take."""
        verify = self._turned.verify_seconds(columns, self._context_length)
        seconds = verify * (self._wide_factor if columns > 1 else self._plain_factor)
        return seconds + (self._turned.rest if self._rest is None else self._rest)

    def draft_seconds(self, levels: int, width: int, drafting: int | None = None) -> float:
        """Drafts of `levels` levels for `drafting` sequences; None for all."""
        if not levels:
            return 0.0
        curves = self._turned if drafting is None else self.costs(drafting)
        return self._draft_factor * curves.draft_seconds(levels, width, self._context_length)

    def observe(self, cost: RoundCost, width: int) -> None:
        """Move towards what a round took whose plans were at most `width` wide."""
        curves = self._turned
        verify = curves.verify_seconds(cost.columns, self._context_length)
        wide = cost.columns > 1
        surprise = _surprise(cost.verify_s, verify, self._log_level + wide * self._log_wide)
        self._passes += 1
        self._log_level += _LEVEL_WEIGHT * surprise
        self._log_wide += wide * _WIDE_WEIGHT * surprise
        if cost.levels and not self.mixed:
            drafting = self.costs(cost.drafting)
            draft = drafting.draft_seconds(cost.levels, width, self._context_length)
            surprise = _surprise(cost.draft_s, draft, self._log_level + self._log_draft)
            self._drafts += 1
            self._log_draft += max(_DRAFT_WEIGHT, 1 / (1 + self._drafts)) * surprise
        rest = cost.rest_s if self._rest is None else self._rest
        self._rest = rest + _REST_WEIGHT * (cost.rest_s - rest)
        self._plain_factor = math.exp(self._log_level)
        self._wide_factor = math.exp(self._log_level + self._log_wide)
        self._draft_factor = math.exp(self._log_level + self._log_draft)

    @property
    def is_stale(self) -> bool:
        """The machine is so much faster than when it was measured that it should be again."""
        return self._passes >= _SETTLED and self._plain_factor < _STALE

    @property
    def _turned(self) -> CostCurves:
        assert self._curves is not None, "turn_to comes first"
        return self._curves


def _surprise(seen: float, measured: float, log_factor: float) -> float:
    """Log of seen over expected seconds, within reason."""
    if seen <= 0 or measured <= 0:
        return 0.0
    log_ratio = math.log(seen / measured) - log_factor
    return max(-_LARGEST_SURPRISE, min(_LARGEST_SURPRISE, log_ratio))
