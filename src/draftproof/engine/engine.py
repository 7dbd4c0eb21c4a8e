"""A target with a drafter, and texts decoded by them from their prompts to their ends."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial

from draftproof.config import MAX_NODES, EngineSettings
from draftproof.control.acceptance import prior_of
from draftproof.control.adaptive import AdaptiveControl
from draftproof.control.base import ControllerFactory
from draftproof.control.costs import CostBook
from draftproof.control.fixed import FixedPlan
from draftproof.control.forecast import Costs
from draftproof.control.hybrid import HybridControl
from draftproof.core import Step
from draftproof.decode.sequence import Sequence
from draftproof.drafters.base import Drafter, is_hybrid
from draftproof.engine.calibrate import measure_costs, situation
from draftproof.engine.entry import Entry
from draftproof.engine.loop import Loop, steps
from draftproof.models.base import TargetModel
from draftproof.models.cache import SCRATCH, KVCache


@dataclass(frozen=True, slots=True)
class Engine:
    """A target with a drafter; each `run` has its own cache, so runs share no state."""

    target: TargetModel
    drafter: Drafter
    settings: EngineSettings
    costs: CostBook = field(default_factory=CostBook)
    """What passes and drafts cost here, for depth "auto"; all runs of the pair may share it."""

    def run(self, sequences: Many[Sequence]) -> Iterator[tuple[Sequence, Step]]:
        """Decode all sequences, up to `max_batch` side by side; yields steps as they come."""
        unfinished = [sequence for sequence in sequences if sequence.finish_reason is None]
        if not unfinished:
            return
        longest = max(sequence.max_length for sequence in unfinished)
        rows = min(len(unfinished), self.settings.max_batch)
        cache = KVCache(
            rows,
            longest + SCRATCH,
            self.settings.max_cache_bytes,
            self.target.cache_bytes_per_token,
        )
        make = self.controllers(unfinished[0].tokens)
        drafting = self.drafter.begin(cache)
        loop = Loop(self.target, cache, drafting, rows, self.settings.prefill_chunk)
        entries = [Entry.of(sequence, make, order) for order, sequence in enumerate(unfinished)]
        for entry in entries:
            loop.add(entry)
        while loop.busy:
            turn = loop.turn()
            for _, error in (*turn.failures, *turn.faults):
                raise error
            yield from steps(turn)
        self.doubt(entries, at_once=True)

    def doubt(self, entries: Many[Entry], at_once: bool) -> None:
        """Have the costs measured again if rounds have shown that other work had held that up: at
        the next call, or at the next start."""
        adaptive = [
            one.controller for one in entries if isinstance(one.controller, AdaptiveControl)
        ]
        if any(control.forecast.is_stale for control in adaptive):
            self.costs.forget(situation(self.target, self.drafter, self.settings), at_once)

    def controllers(self, text: Many[int]) -> ControllerFactory:
        """What plans for each sequence; `text` is some that the target can read."""
        nodes = self.settings.nodes or MAX_NODES
        depth, width = self.settings.depth, self.settings.width
        if depth != "auto":
            sure = self.settings.min_confidence
            tree = FixedPlan(depth, width, nodes, sure, self.settings.tree)
            chain = FixedPlan(depth, 1, nodes, sure)
            return lambda trees: tree if trees else chain
        costs, prior = self.measured_costs(text), prior_of(self.drafter.name)
        make = HybridControl if is_hybrid(self.drafter) else AdaptiveControl
        return lambda trees: make(costs, prior, nodes, trees)

    def measured_costs(self, text: Many[int]) -> Costs:
        """What passes and drafts cost here by batch size, measured where it is not known yet."""
        here = situation(self.target, self.drafter, self.settings)
        measure = partial(measure_costs, self.target, self.drafter, tuple(text))
        return lambda batch_size: self.costs.curves(here, batch_size, measure)
