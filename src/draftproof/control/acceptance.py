"""How often a drafter's tokens are accepted, by position and by rank, as the text goes on."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from draftproof.control.confidence import ConfidenceEstimate, Stop
from draftproof.core import Draft, Step

_PRIOR_TRIALS = 2.0
"""How many positions the prior counts as ..."""
_PRIOR_MISSES = 0.36
"""... or as many as hold so much of a miss, where those are more: a drafter known to be good is not
given up for its first one ..."""
_FEWEST_MISSES = 0.03
"""... and no prior is taken to expect fewer of all positions."""
_POSITION_TRIALS = 6.0
"""How many trials of one position the rate of all positions counts as there."""
_KEPT = 0.98
"""What a round leaves of the weight of those before it."""
_RARE = 0.005
"""Rounds in a row less likely than this under the estimate say that the text has changed."""
_KEPT_OF_OTHER_TEXT = 0.3
_RANK_PRIOR = (0.4, 0.28, 0.2)
"""Chance of the second, third, fourth choice where all better ones missed, while nothing is known:
a guess on the high side, and what is seen fades, so that chains are not the end of trees."""
_RANK_TRIALS = 4.0
"""How many trials of a rank the guess counts as."""

_PRIORS = {"self-int8": 0.97, "model": 0.7, "ngram": 0.4}


def prior_of(drafter: str) -> float:
    """The acceptance rate to expect of a drafter of this name before anything is known."""
    kind, _, argument = drafter.partition(":")
    if kind == "hybrid":  # its look-up is seldom sure at first, and then the other drafts
        return prior_of(argument.rpartition(",")[2])
    return _PRIORS.get(kind, 0.5)


class Level(NamedTuple):
    """What was tried at one level of a draft."""

    rank: int | None
    """Of the child that was accepted; None for none."""
    num_children: int
    confidence: float | None
    """Of the drafter at this place; None where it has none."""


class AcceptanceEstimate:
    """Decayed counts of trials and hits.

    The rate of one position is drawn towards that of all positions, of which there is more: so a
    deep position that was never tried has a rate, too.
    """

    def __init__(self, prior: float) -> None:
        self._trials = max(_PRIOR_TRIALS, _PRIOR_MISSES / max(1 - prior, _FEWEST_MISSES))
        self._hits = prior * self._trials
        self._by_position: list[list[float]] = []
        self._by_rank = [[0.0, 0.0] for _ in _RANK_PRIOR]
        self._by_confidence = ConfidenceEstimate()
        # How likely the last rounds were that all were accepted whole, or all not at all.
        self._streak = 1.0
        self._all_hit = False

    @property
    def rate(self) -> float:
        """Probability that a drafted token is accepted given that the path before it was."""
        return self._hits / self._trials

    def at(self, position: int) -> float:
        """The same at one position, counted from 0."""
        if position >= len(self._by_position):
            return self.rate
        hits, trials = self._by_position[position]
        return (hits + _POSITION_TRIALS * self.rate) / (trials + _POSITION_TRIALS)

    @property
    def ranks(self) -> tuple[float, ...]:
        """Chances of the second, third, ... choice, given that the better ones missed."""
        return tuple(
            (hits + _RANK_TRIALS * prior) / (trials + _RANK_TRIALS)
            for (hits, trials), prior in zip(self._by_rank, _RANK_PRIOR, strict=True)
        )

    @property
    def stops(self) -> list[Stop]:
        """What stopping by the drafter's confidence would do, by threshold."""
        return self._by_confidence.stops(self.rate)

    def see(self, draft: Draft, step: Step) -> None:
        """Count one verified draft; one that proposes nothing says nothing."""
        levels = _levels(draft, step)
        if not levels:
            return
        self._watch_for_change(levels)
        self.age(_KEPT)
        for position, (rank, num_children, confidence) in enumerate(levels):
            if position == len(self._by_position):
                self._by_position.append([0.0, 0.0])
            hit = float(rank == 0)
            self._hits += hit
            self._trials += 1
            self._by_position[position][0] += hit
            self._by_position[position][1] += 1
            if confidence is not None:
                self._by_confidence.see(confidence, rank == 0)
            last = num_children - 1 if rank is None else rank
            for other, counts in enumerate(self._by_rank[:last], start=1):
                counts[0] += other == rank
                counts[1] += 1

    def miss_ranks(self) -> None:
        """Count a place where a second choice was asked for and there was none."""
        for counts in self._by_rank:
            counts[1] += 1

    def age(self, kept: float) -> None:
        """Leave `kept` of the weight of what was seen."""
        self._hits *= kept
        self._trials *= kept
        for counts in (*self._by_position, *self._by_rank):
            counts[0] *= kept
            counts[1] *= kept
        self._by_confidence.age(kept)

    def _watch_for_change(self, levels: Sequence[Level]) -> None:
        """Forget most when rounds in a row end in a way that the estimate finds too rare."""
        all_hit = all(level.rank is not None for level in levels)
        none_hit = levels[0].rank is None
        chance = 1.0 - self.at(0)
        if all_hit:
            chance = prod(self.at(position) for position in range(len(levels)))
        goes_on = (all_hit or none_hit) and all_hit == self._all_hit
        self._streak = (self._streak if goes_on else 1.0) * chance
        self._all_hit = all_hit
        if not (all_hit or none_hit):
            self._streak = 1.0
        if self._streak < _RARE:
            self.age(_KEPT_OF_OTHER_TEXT)
            self._streak = 1.0


def _levels(draft: Draft, step: Step) -> list[Level]:
    """The levels of a draft that were tried, from the anchor's children down."""
    sure = draft.confidences or [None] * len(draft.tokens)
    if draft.is_chain:
        tried = min(step.accepted + 1, len(draft.tokens))
        return [Level(0 if i < step.accepted else None, 1, sure[i]) for i in range(tried)]
    levels: list[Level] = []
    node = -1
    for token in (*step.tokens[: step.accepted], None):
        children = draft.children(node)
        if not children:
            break
        rank = None
        if token is not None:
            tokens = [draft.tokens[child] for child in children]
            if token not in tokens:  # of equal siblings another one led here
                break
            rank = tokens.index(token)
            node = children[rank]
        levels.append(Level(rank, len(children), sure[children[0]]))
    return levels
