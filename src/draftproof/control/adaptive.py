"""Draft as deep as pays, find out what pays while decoding, and never lose much by trying.

With A_i the chance that position i is accepted given that all before it were, a round of depth d
brings E(d) = 1 + A_1 + A_1 A_2 + ... tokens and takes T(d) = draft(d) + verify(d + 1) + rest
seconds. The plan is the d of the largest E(d) / T(d); plain decoding is d = 0. That is the goodput
of SmartSpec (arXiv 2406.14066) with the costs of this machine and the acceptance of this text.

An account (`account.py`) bounds the price of trying, whatever the drafter does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from operator import mul

from draftproof.config import MAX_NODES
from draftproof.control.acceptance import AcceptanceEstimate
from draftproof.control.account import LONGEST, Account
from draftproof.control.forecast import Costs, Forecast
from draftproof.control.shapes import shapes
from draftproof.core import Draft, Plan, Step
from draftproof.theory.machine import RoundCost
from draftproof.theory.trees import best_nodes

MAX_AUTO_DEPTH = 32
_LEAST_GAIN = 1.03
"""A speed-up below this counts as none: the estimate is off by about as much."""
_TOO_SMALL = 16
"""Rounds become plain after so many plans on end that promise less, at once where drafts are slower
than plain decoding."""
_GAIN_TO_RETURN = 1.06
"""A plain sequence drafts again from this on; the distance keeps it from going to and fro."""
_FIRST_WAIT = 4
"""Plain rounds before the first probe."""
_LONG_STAY = 64
"""Rounds of drafting after which going plain is news, so that probing starts early again."""
_PROBING_LOSS = 0.003
"""Share of time that probing may cost once it has failed for long."""
_LONGEST_WAIT = 256
_KEPT_BY_PROBE = 0.85
"""What a probe leaves of the weight of what was seen before it."""
_FREE = 0.02
"""A drafter that takes less than this share of the pass that verifies it is a look-up."""
_LEAST_SURVIVAL = 0.01
"""Paths less likely than this are not looked at."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A shape of draft, and what it promises."""

    levels: int
    width: int
    nodes: int
    seconds: float
    """T: what a round takes."""
    rate: float
    """E / T: tokens a second."""
    min_confidence: float = 0.0
    """Below it a draft ends early, and takes less than `seconds`."""


class AdaptiveControl:
    def __init__(
        self, costs: Costs, prior: float, nodes: int = MAX_NODES, trees: bool = True
    ) -> None:
        """`prior` is the acceptance rate to expect of the drafter before anything is known.

        Trees are planned where `trees` allows it and the costs know widths above 1.
        """
        self.forecast = Forecast(costs)
        """What rounds will take."""
        self._acceptance = AcceptanceEstimate(prior)
        self._nodes = nodes
        self.account = Account(prior)
        """What trying may still cost."""
        self.rate = 0.0
        """Tokens a second that the last plan promises."""
        self._drafting = True
        self._stay = 0
        """Rounds since it went over to drafting, or to plain."""
        self._too_small = 0
        """Plans on end whose gain was too small."""
        self._wait = _FIRST_WAIT
        self._since_probe = 0
        self._probed = False
        """A probe has told something that was not looked at yet."""
        self._trees = trees
        self._last = Plan(0)
        """A drafter that proposes less has taken its time all the same, unless it was to stop."""

    def plan(self, max_depth: int, context_length: int, batch_size: int) -> Plan:
        curves = self.forecast.turn_to(context_length, batch_size)
        self.forecast.mixed = False
        self._last = Plan(0)
        due = self._drafting or self._probed or self._since_probe >= self._wait
        plain = self.forecast.pass_seconds(1)
        self.rate = 1 / plain
        if max_depth == 0 or not due:
            return Plan(0)
        widths = sorted({1, *curves.draft}) if self._trees else [1]
        choices = self._choices(min(max_depth, MAX_AUTO_DEPTH), widths)
        choices += self._stopping([c for c in choices if c.width == 1], batch_size)
        self._go_over(max(choice.rate for choice in choices) * plain)
        affordable = self._affordable(choices, plain)
        if not self._drafting:
            return self._probe(affordable, plain)
        best = max(affordable, key=lambda choice: choice.rate, default=None)
        if best is None or best.rate * plain <= 1:
            return Plan(0)
        self.rate = best.rate
        return self._as_plan(best)

    def offer(
        self, max_depth: int, context_length: int, batch_size: int, mixed: bool
    ) -> list[float]:
        """The chain that could be drafted in a batch, by the chances that it is accepted down to
        level 1, 2, ...; `joint` chooses for all its sequences.

        `mixed`: they do not all have the same drafter.
        """
        self.forecast.turn_to(context_length, batch_size)
        self.forecast.mixed = mixed
        self._last = Plan(0)
        rates = (self._acceptance.at(level) for level in range(min(max_depth, self._nodes)))
        return list(accumulate(rates, mul))

    @property
    def due(self) -> bool:
        """It has not drafted for so long that its drafter may have become better."""
        return self._since_probe >= self._wait

    def take(self, levels: int, nodes: int, probe: bool = False) -> Plan:
        """The plan that `joint` has chosen; a `probe` is a draft that is not expected to pay."""
        self._drafting = nodes > 0 and not probe
        if self._drafting:
            self._since_probe, self._wait = 0, _FIRST_WAIT
        self._last = Plan(levels, 1, nodes) if nodes else Plan(0)
        return self._last

    def observe(self, draft: Draft, step: Step, cost: RoundCost) -> None:
        self._stay += 1
        self._since_probe += 1
        self.forecast.observe(cost, self._last.width)
        loss = self._loss(self._levels(draft, step), cost)
        self.account.settle(len(step.tokens), loss)
        if step.drafted > 0:
            self._learn(draft, step, loss)

    def _levels(self, draft: Draft, step: Step) -> int:  # noqa: ARG002
        """Levels to charge the sequence for: those planned, unless its drafter was to stop."""
        plan = self._last
        return min(plan.depth, step.depth) if plan.min_confidence > 0 else plan.depth

    def _loss(self, levels: int, cost: RoundCost) -> float:
        """What a round took beyond the rounds of plain decoding that its tokens replace; by the
        forecast, for the clock of a single round is no evidence."""
        levels, width = max(levels, cost.levels), self._last.width
        # Other work only ever adds: what took less than expected was a look-up's draft.
        drafting = min(self.forecast.draft_seconds(levels, width), cost.draft_s)
        seconds = self.forecast.pass_seconds(cost.columns) + drafting
        return seconds / self.forecast.pass_seconds(1) - cost.tokens

    def _learn(self, draft: Draft, step: Step, loss: float) -> None:
        """See what was accepted of a draft."""
        if self._last.width > 1 and draft.is_chain and step.accepted < step.drafted:
            self._acceptance.miss_ranks()  # of the siblings that it did not have
        if not self._drafting:
            self._acceptance.age(_KEPT_BY_PROBE)
            self._wait_after_probe(step.accepted > 0, loss)
        self._acceptance.see(draft, step)

    def _choices(self, depth: int, widths: Sequence[int]) -> list[_Choice]:
        """Shapes worth a look: the best tree of every size, for every width."""
        rates = [self._acceptance.at(position) for position in range(depth)]
        longest = LONGEST * self.forecast.pass_seconds(1)
        choices = []
        for width in widths:
            grown = best_nodes(rates, self._acceptance.ranks, width, self._nodes)
            nodes = list(takewhile(lambda node: node.chance >= _LEAST_SURVIVAL, grown))
            # An unlikely first token is worth a look all the same: it may cost next to nothing.
            nodes = nodes or list(best_nodes(rates[:1], (), 1, 1))
            for levels, size, tokens in shapes(nodes, width):
                seconds = self.forecast.seconds(levels, width, 1 + size)
                if seconds <= longest or levels == 1:
                    choices.append(_Choice(levels, width, size, seconds, tokens / seconds))
        return choices

    def _stopping(self, chains: Sequence[_Choice], batch_size: int) -> list[_Choice]:
        """The same chains, left where the drafter is in doubt, down to where they stop paying.

        A token is accepted and drafted on behind in `stop.kept` of the cases in which it is
        accepted. A level costs nothing where no sequence of the batch gets so far.
        """
        choices = []
        for stop in self._acceptance.stops:
            tokens, seconds, chance, reached, best = 1.0, 0.0, 1.0, 1.0, 0.0
            for level, chain in enumerate(chains):
                chance *= self._acceptance.at(level)
                tokens += chance
                further = chain.seconds - chains[level - 1].seconds if level else chain.seconds
                seconds += (1 - (1 - reached) ** batch_size) * further
                rate = tokens / seconds
                if rate < best:
                    break
                best = rate
                choices.append(replace(chain, rate=rate, min_confidence=stop.min_confidence))
                chance *= stop.kept
                reached *= stop.goes_on
        return choices

    def _affordable(self, choices: Sequence[_Choice], plain: float) -> list[_Choice]:
        """What may miss without overdrawing the account; the shallowest may take all of it."""
        usual, last = plain * self.account.usual, plain * self.account.last
        return [
            choice for i, choice in enumerate(choices) if choice.seconds <= (usual if i else last)
        ]

    def _go_over(self, gain: float) -> None:
        """Draft from now on, or decode plainly, for a speed-up of `gain`."""
        self._probed = False
        self._too_small = self._too_small + 1 if gain < _LEAST_GAIN else 0
        if not self._drafting and gain >= _GAIN_TO_RETURN:
            self._drafting, self._stay = True, 0
        elif self._drafting and (gain < 1 or self._too_small >= _TOO_SMALL):
            if self._stay >= _LONG_STAY:
                self._wait = _FIRST_WAIT
            self._drafting, self._stay, self._since_probe = False, 0, 0

    def _probe(self, affordable: list[_Choice], plain: float) -> Plan:
        """A shallow draft now and then, to hear whether the drafter has become better."""
        chains = [choice for choice in affordable[:2] if choice.width == 1]
        if self._since_probe < self._wait or not chains:
            return Plan(0)
        # Two levels tell more than one, where the second costs little beside the first.
        dearest = 1.5 * (chains[0].seconds - plain)
        return self._as_plan([c for c in chains if c.seconds - plain <= dearest][-1])

    def _wait_after_probe(self, hit: bool, loss: float) -> None:
        """Probe again soon after a hit, later and later after misses."""
        self._since_probe, self._probed = 0, True
        longest = min(_LONGEST_WAIT, max(_FIRST_WAIT, round(loss / _PROBING_LOSS)))
        self._wait = _FIRST_WAIT if hit else min(longest, 2 * self._wait)

    def _as_plan(self, choice: _Choice) -> Plan:
        self._last = Plan(
            choice.levels, choice.width, choice.nodes, self._floor(choice), choice.min_confidence
        )
        return self._last

    def _floor(self, choice: _Choice) -> float:
        """The chance from which a node pays for its column, when tokens come at `choice.rate`.

        Dinkelbach's argument: at the best ratio of tokens to seconds, what is added has to bring
        more than that ratio times the seconds it takes. Only for a drafter that costs next to
        nothing: a look-up's chances are counted hits, while the probability that a model gives its
        own tokens is no chance of their acceptance.
        """
        passes = self.forecast.pass_seconds(1 + choice.nodes)
        if self.forecast.draft_seconds(choice.levels, choice.width) > _FREE * passes:
            return 0.0
        more = self.forecast.pass_seconds(1 + 2 * choice.nodes) - passes
        return min(1.0, choice.rate * max(0.0, more) / choice.nodes)
