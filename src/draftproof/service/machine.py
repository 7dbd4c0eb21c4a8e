"""The parts that a service runs on: a cache of bounded size, the drafters, the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from draftproof.api import Speculator
from draftproof.config import Depth, ServiceSettings
from draftproof.control.base import ControllerFactory
from draftproof.drafters.base import (
    Drafter,
    cache_bytes_per_token,
    stops_in_doubt,
    takes_static_trees,
)
from draftproof.drafters.none import NoDrafter
from draftproof.drafters.routed import RoutedDrafting
from draftproof.engine.engine import Engine
from draftproof.engine.entry import Entry
from draftproof.engine.loop import Loop
from draftproof.errors import LimitExceeded
from draftproof.models.cache import SCRATCH, KVCache
from draftproof.sampling.params import SamplingParams

_CHUNK = 64
_KEPT_ROWS = 32
"""Most prompt beginnings that are kept at once."""
_TOUCHED = 8192
"""Tokens of the cache that are written to once before the first request."""
_WARM_TEXT = "The quick brown fox jumps over the lazy dog while the band plays on. " * 2
_WARM_TOKENS = 8


class Machine:
    """Everything that is made once, before the first request."""

    def __init__(
        self, speculator: Speculator, drafters: Mapping[str, Drafter], settings: ServiceSettings
    ) -> None:
        """`LimitExceeded` where the cache would not hold a single short request."""
        self._speculator = speculator
        self._drafters = drafters
        engine, target = speculator.settings, speculator.target
        per_token = target.cache_bytes_per_token
        per_token += sum(cache_bytes_per_token(drafter) for drafter in drafters.values())
        most = engine.max_cache_bytes // max(1, per_token)
        longest = min(target.max_positions or most, settings.max_length or most)
        self.cache_tokens = min(most, engine.max_batch * (longest + SCRATCH))
        self.max_length = min(longest, self.cache_tokens - SCRATCH)
        if self.max_length < 2:
            raise LimitExceeded(
                f"a cache of {engine.max_cache_bytes} bytes holds {self.cache_tokens} tokens at "
                f"{per_token} bytes each, and one request needs {SCRATCH + 2}; raise "
                "max_cache_bytes"
            )
        kept = _KEPT_ROWS if settings.keep_prefixes else 0
        rows = engine.max_batch + 1 + kept
        self.cache = KVCache(rows, self.cache_tokens, bytes_per_token=per_token, pool=True)
        self.drafting = RoutedDrafting(drafters, self.cache)
        self.loop = Loop(
            target,
            self.cache,
            self.drafting,
            engine.max_batch,
            settings.prefill_chunk or (engine.prefill_chunk if target.pads else _CHUNK),
            settings.prefill_tokens,
            settings.max_skips,
            settings.keep_prefixes,
        )
        self._text = self._some_text()
        self._factories: dict[tuple[str, Depth], ControllerFactory] = {}

    def controllers(self, name: str, depth: Depth | None) -> ControllerFactory:
        """What plans for the sequences that a drafter drafts for, as deep as is wished."""
        wished = self._speculator.settings.depth if depth is None else depth
        key = name, wished
        if key not in self._factories:
            self._factories[key] = self._engine(name, wished).controllers(self._text)
        return self._factories[key]

    def doubt(self, name: str, entries: Sequence[Entry]) -> None:
        """See what rounds have told of a drafter's costs; who decodes now does not wait for that
        to be measured again."""
        self._engine(name, self._speculator.settings.depth).doubt(entries, at_once=False)

    @property
    def lost_tokens(self) -> int:
        """Tokens of the cache that are neither free, nor kept, nor of a row that is in use."""
        rows = sum(self.cache.size(row) for row in range(len(self.loop.entries)))
        return self.cache_tokens - self.cache.num_free - self.loop.num_kept - rows

    def warm_up(self, is_closing: Callable[[], bool]) -> None:
        """Compile, measure what passes cost, and decode a few tokens with every drafter.

        Measuring takes a minute; `is_closing` is asked between its parts whether to give up.
        """
        for name in self._drafters:
            engine = self._engine(name, self._speculator.settings.depth)
            if engine.settings.depth == "auto":
                costs, most = engine.measured_costs(self._text), engine.settings.max_batch
                for power in range(most.bit_length() + 1):
                    if is_closing():
                        return
                    costs(min(most, 1 << power))
            self._decode_a_little(name)
        self._touch()

    def _touch(self) -> None:
        """Write to what the first long prompt will lie in: the system clears memory when it is
        first used, a second for 400 MB, and everybody would wait for that."""
        size = min(_TOUCHED, self.max_length, self.cache.num_free // 2)
        if not self.cache.open(0, size):
            return
        if self.cache.open(1, size):
            self.cache.copy(1, 0, size)  # reading what was never written takes no memory
            self.cache.close(1)
        self.cache.close(0)

    def _decode_a_little(self, name: str) -> None:
        tokens = min(_WARM_TOKENS, self.max_length - 1)
        prompt = self._text[: max(1, self.max_length - tokens)]
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        (sequence,) = self._speculator.sequences(self._drafters[name], prompt, params, 0)
        self.drafting.assign(0, name)
        self.loop.add(Entry.of(sequence, self.controllers(name, None), 0))
        while self.loop.busy:
            turn = self.loop.turn()
            for _, fault in (*turn.faults, *turn.failures):
                raise fault
        self.drafting.unassign(0)

    def _engine(self, name: str, depth: Depth) -> Engine:
        drafter, settings = self._drafters[name], self._speculator.settings
        if isinstance(drafter, NoDrafter):
            depth = 0
        # Only some drafters know how sure they are.
        sure = settings.min_confidence if stops_in_doubt(drafter) else 0.0
        asked = depth == settings.depth and takes_static_trees(drafter)
        tree = settings.tree if asked else None
        settings = replace(settings, depth=depth, min_confidence=sure, tree=tree)
        return Engine(self._speculator.target, drafter, settings, self._speculator.costs)

    def _some_text(self) -> Sequence[int]:
        """Ids that the target can read."""
        if self._speculator.tokenizer is not None:
            return self._speculator.encode(_WARM_TEXT)
        return [id_ % self._speculator.num_tokens for id_ in range(2, 34)]
