"""What is asked of a service to sequences that its loop can decode, everything about it checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from draftproof.api import Speculator
from draftproof.config import ServiceSettings, Speculation
from draftproof.drafters.base import Drafter
from draftproof.engine.entry import Entry
from draftproof.errors import InvalidSetting, LimitExceeded
from draftproof.sampling.params import SamplingParams
from draftproof.service.machine import Machine

PLAIN = "none"
"""The drafter of those who want none."""


class Intake:
    """May be called from any thread."""

    def __init__(
        self,
        speculator: Speculator,
        machine: Machine,
        drafters: Mapping[str, Drafter],
        settings: ServiceSettings,
        refused: Callable[[str], None],
    ) -> None:
        """The first of `drafters` is the default; `refused` is told why somebody is turned away."""
        self._refused = refused
        self._speculator = speculator
        self._machine = machine
        self._drafters = drafters
        self._max_samples = settings.max_samples
        self._numbers = threading.Lock()
        self._next_sequence = 1  # the warm-up's is 0

    def entries(
        self, prompt: Sequence[int], params: SamplingParams, wish: Speculation
    ) -> tuple[str, list[Entry]]:
        """The request's drafter and its samples."""
        name = self._choose(wish)
        if params.n > self._max_samples:
            raise LimitExceeded(
                f"n is {params.n} and at most {self._max_samples} samples are allowed"
            )
        self._check_length(len(prompt), params.max_tokens)
        with self._numbers:
            first = self._next_sequence
            self._next_sequence += params.n
        sequences = self._speculator.sequences(self._drafters[name], prompt, params, first)
        make = self._machine.controllers(name, wish.depth)
        return name, [Entry.of(sequence, make, sequence.seq_id) for sequence in sequences]

    def _check_length(self, prompt: int, answer: int) -> None:
        longest = self._machine.max_length
        if prompt + answer > longest:
            self._refused("too_long")
            raise LimitExceeded(
                f"the prompt has {prompt} tokens and max_tokens is {answer}, together "
                f"{prompt + answer}; at most {longest} are allowed here"
            )

    def _choose(self, wish: Speculation) -> str:
        if not wish.enabled:
            return PLAIN
        if wish.depth == "auto" and self._speculator.settings.depth != "auto":
            raise InvalidSetting(
                "depth is 'auto', which needs costs that this service did not measure when it "
                f"started with a depth of {self._speculator.settings.depth}; give a number, or "
                "start it with 'auto'"
            )
        name = wish.drafter or next(iter(self._drafters))
        if name not in self._drafters:
            raise InvalidSetting(
                f"drafter is {name!r}; this service has {', '.join(self._drafters)}"
            )
        return name
