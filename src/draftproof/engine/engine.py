"""The decode loop: admits sequences to rows of one cache and runs rounds until all have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial

from draftproof.config import MAX_NODES, EngineSettings
from draftproof.control.adaptive import AdaptiveControl, prior_of
from draftproof.control.base import Controller, ControllerFactory
from draftproof.control.costs import CostBook
from draftproof.control.fixed import FixedPlan
from draftproof.core import Step
from draftproof.decode.round import run_round
from draftproof.decode.sequence import Sequence
from draftproof.drafters.base import Drafter, Drafting
from draftproof.engine.calibrate import measure_costs, situation
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache
from draftproof.stats.timing import Stopwatch
from draftproof.theory.machine import CostCurves


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
        # Behind the longest sequence there is scratch for one draft and the pass that catches up.
        capacity = longest + MAX_NODES + 2
        cache = KVCache(
            rows, capacity, self.settings.max_cache_bytes, self.target.cache_bytes_per_token
        )
        make_controller = self._controllers(unfinished[0].tokens)
        drafting = self.drafter.begin(cache)
        loop = _Loop(self, cache, drafting, make_controller, deque(unfinished))
        while loop.admit():
            yield from loop.round()
            loop.retire()

    def _controllers(self, text: Many[int]) -> ControllerFactory:
        """What plans for each sequence; `text` is some that the target can read."""
        nodes = self.settings.nodes or MAX_NODES
        depth, width = self.settings.depth, self.settings.width
        if depth != "auto":
            return lambda trees: FixedPlan(depth, width if trees else 1, nodes)
        here = situation(self.target, self.drafter, self.settings)
        measure = partial(measure_costs, self.target, self.drafter, tuple(text))

        def costs(batch_size: int) -> CostCurves:
            return self.costs.curves(here, batch_size, measure)

        prior = prior_of(self.drafter.name)
        return lambda trees: AdaptiveControl(costs, prior, nodes, trees)


class _Loop:
    """One run: `active[b]` lives in cache row b."""

    def __init__(
        self,
        engine: Engine,
        cache: KVCache,
        drafting: Drafting,
        make_controller: ControllerFactory,
        waiting: deque[Sequence],
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._drafting = drafting
        self._waiting = waiting
        self._active: list[Sequence] = []
        self._make_controller = make_controller
        self._controllers: dict[int, Controller] = {}

    def admit(self) -> bool:
        """Fill free rows from the queue; False when nothing is left to decode."""
        while self._waiting and len(self._active) < self._cache.rows:
            sequence = self._waiting.popleft()
            sequence.row = len(self._active)
            self._read_prompt(sequence)
            trees = sequence.pairing.verifier.trees
            self._controllers[sequence.seq_id] = self._make_controller(trees)
            self._active.append(sequence)
        return bool(self._active)

    def round(self) -> list[tuple[Sequence, Step]]:
        controllers = [self._controllers[sequence.seq_id] for sequence in self._active]
        rooms = [sequence.max_depth for sequence in self._active]
        plans = [
            controller.plan(room, len(sequence.tokens), len(self._active))
            for controller, sequence, room in zip(controllers, self._active, rooms, strict=True)
        ]
        done = run_round(self._engine.target, self._cache, self._drafting, self._active, plans)
        for b, (controller, sequence) in enumerate(zip(controllers, self._active, strict=True)):
            controller.observe(done.drafts[b], done.steps[b], done.cost)
            sequence.stats.add_plan(plans[b], rooms[b], done.steps[b])
        return list(zip(self._active, done.steps, strict=True))

    def retire(self) -> None:
        """Free the rows of ended sequences; the last active one moves into each gap."""
        for row in reversed(range(len(self._active))):
            if self._active[row].finish_reason is None:
                continue
            last = len(self._active) - 1
            self._drafting.release(row)
            del self._controllers[self._active[row].seq_id]
            moved = self._active.pop()
            if row != last:
                self._cache.copy(last, row)
                self._drafting.move(last, row)
                moved.row = row
                self._active[row] = moved
            self._cache.truncate(last, 0)

    def _read_prompt(self, sequence: Sequence) -> None:
        """Cache all of the prompt but the anchor, once for all samples of it."""
        watch = Stopwatch(self._engine.target.device)
        prompt = sequence.tokens
        for other in self._active:
            if other.tokens[: other.prompt_length] == prompt:
                self._cache.copy(other.row, sequence.row, len(prompt) - 1)
                break
        else:
            self._engine.target.prefill(
                prompt[:-1], self._cache, sequence.row, self._engine.settings.prefill_chunk
            )
        watch.lap("prefill")
        sequence.stats.prefill_s += watch.seconds["prefill"]
