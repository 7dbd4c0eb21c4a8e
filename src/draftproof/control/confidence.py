"""What a drafter's own confidence says of acceptance, watched in this text."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

THRESHOLDS = (0.3, 0.5, 0.7, 0.85, 0.95)
_PRIOR_TRIALS = (1.3, 2.0, 2.0, 1.5, 1.2, 4.0)
"""Tokens of each band that are taken to have been seen, until more is known."""
_PRIOR_POWERS = (4.0, 2.8, 1.3, 0.9, 0.4, 0.1)
"""Where r of all tokens are accepted, r to this power of a band are. Both are near to what was
found with a smaller model of the target's family and with the target's first layers."""


@dataclass(frozen=True, slots=True)
class Stop:
    """What becomes of drafts that go on only behind tokens of which the drafter was sure."""

    min_confidence: float
    goes_on: float
    """Share of drafted tokens behind which drafting goes on."""
    kept: float
    """Share of accepted tokens behind which it goes on."""


class ConfidenceEstimate:
    """Decayed counts of tokens and of hits in bands of confidence.

    The token at which a draft stops is drafted and judged as well, so every band goes on being
    counted whatever the threshold is.
    """

    def __init__(self) -> None:
        self._bands = [[0.0, 0.0] for _ in range(len(THRESHOLDS) + 1)]
        self._seen = False

    def see(self, confidence: float, hit: bool) -> None:
        """Count a token that was judged, the path before it accepted."""
        counts = self._bands[bisect_right(THRESHOLDS, confidence)]
        counts[0] += hit
        counts[1] += 1
        self._seen = True

    def age(self, kept: float) -> None:
        """Leave `kept` of the weight of what was seen."""
        for counts in self._bands:
            counts[0] *= kept
            counts[1] *= kept

    def stops(self, rate: float) -> list[Stop]:
        """One for each threshold, where `rate` of all tokens are accepted; none while the drafter
        has not said how sure it is."""
        if not self._seen:
            return []
        hits, trials = [], []
        for seen, prior, power in zip(self._bands, _PRIOR_TRIALS, _PRIOR_POWERS, strict=True):
            hits.append(seen[0] + prior * rate**power)
            trials.append(seen[1] + prior)
        return [
            Stop(threshold, sum(trials[band:]) / sum(trials), sum(hits[band:]) / sum(hits))
            for band, threshold in enumerate(THRESHOLDS, start=1)
        ]
