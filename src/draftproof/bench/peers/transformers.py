"""transformers' own `generate`: plain, assisted, and with prompt lookup."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import GenerationConfig

from draftproof.bench.machine import PeakMemory
from draftproof.bench.peers.base import Answer, Job, Start
from draftproof.models.load import load

LOOKUP_TOKENS = 10
"""Tokens looked up at once, as in the article that introduced prompt lookup in transformers."""


class TransformersPeer:
    """A target loaded as for us, with transformers' own modules and its defaults for drafting."""

    def __init__(self, start: Start) -> None:
        self._model: Any = _loaded(start.target, start)
        self._drafting: dict[str, Any] = {}
        name, _, argument = start.spec.partition(":")
        if name == "transformers-assisted":
            self._drafting["assistant_model"] = _loaded(argument, start)
        elif name == "transformers-lookup":
            self._drafting["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        self._memory = PeakMemory(self._model.device)

    def generate(self, job: Job) -> Answer:
        ids, mask = _padded(job.prompts, self._model.device)
        sampling: dict[str, Any] = {"do_sample": job.temperature > 0}
        if job.temperature > 0:
            # 0 and 1 cut nothing off; the defaults would.
            sampling |= {"temperature": job.temperature, "top_k": 0, "top_p": 1.0}
            torch.manual_seed(job.seed)
        self._memory.reset()
        clock = _Clock(rows=len(job.prompts))
        output = self._model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=job.max_tokens,
            streamer=clock,
            **sampling,
            **self._drafting,
        )
        token_ids = output[:, ids.shape[1] :].tolist()
        seconds = clock.elapsed()
        return Answer(
            token_ids, seconds, clock.first_seconds, clock.first_tokens, self._memory.read()
        )


class _Clock:
    """A streamer that takes the time of the first tokens; `generate` hands it the prompt before."""

    def __init__(self, rows: int) -> None:
        self.first_seconds = 0.0
        self.first_tokens = 0
        self._rows = rows
        self._calls = 0
        self._start = time.perf_counter()

    def put(self, value: torch.Tensor) -> None:
        self._calls += 1
        if self._calls == 2:
            self.first_seconds = self.elapsed()
            self.first_tokens = value.numel() // self._rows

    def end(self) -> None:
        """Nothing is left to be written."""

    def elapsed(self) -> float:
        return time.perf_counter() - self._start


def _loaded(source: str, start: Start) -> Any:
    model: Any = load(source, dtype=start.dtype, device=start.device).model
    # A checkpoint's own settings may sample, penalise or end a text; the job alone decides here.
    own = GenerationConfig(pad_token_id=0)  # type: ignore[no-untyped-call]
    model.generation_config = own
    return model.eval()


def _padded(prompts: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and mask i64[B, L], padded on the left."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
