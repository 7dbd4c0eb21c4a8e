"""The decoders of a bench behind one verb: run a cell on a group of prompts, timed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from draftproof.api import Speculator
from draftproof.bench.machine import PeakMemory
from draftproof.bench.matrix import PLAIN, Cell, Matrix
from draftproof.bench.peers.base import Job, Start
from draftproof.bench.peers.process import PeerProcess
from draftproof.bench.record import Record
from draftproof.bench.workloads import Task
from draftproof.drafters.base import fresh
from draftproof.drafters.registry import Surroundings, make_drafter
from draftproof.output import Sample
from draftproof.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts that are decoded in one call, and the seed of each."""

    number: int
    repeat: int
    tasks: tuple[Task, ...]
    seeds: tuple[int, ...]


class Decoders:
    """Plain decoding, every drafter in every shape, and the peers; a context manager.

    All of ours share one target. Peers are processes, alive between `with` and its end.
    """

    def __init__(self, plain: Speculator, matrix: Matrix, start: Start) -> None:
        """`start` is what each peer is told, whatever its spec says."""
        self.plain = plain
        around = Surroundings(
            plain.target, plain.tokenizer, start.dtype, start.device, plain.settings
        )
        self._ours: dict[tuple[Any, ...], Speculator] = {}
        """By drafter and shape."""
        for spec in matrix.drafters:
            drafter = make_drafter(spec, around)
            for shape, tree in matrix.shapes():
                settings = replace(
                    plain.settings,
                    depth=shape.depth,
                    width=shape.width or 1,
                    nodes=None if tree else plain.settings.nodes,
                    tree=tree,
                    min_confidence=0.0 if shape.depth == "auto" else matrix.min_confidence,
                )
                key = (spec, *shape)
                self._ours[key] = plain.with_drafter(drafter, settings)
        self._peers: Mapping[str, PeerProcess] = {
            spec: PeerProcess(replace(start, spec=spec)) for spec in matrix.peers
        }
        self._memory = PeakMemory(plain.target.device)
        self._stack = ExitStack()

    def __enter__(self) -> Decoders:
        with ExitStack() as stack:
            for peer in self._peers.values():
                stack.enter_context(peer)
            for peer in self._peers.values():  # they load side by side
                peer.wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(self, cell: Cell, group: Group, max_tokens: int) -> list[Record]:
        """Decode a group once; one record per prompt, not yet compared with anything."""
        if cell.is_peer:
            return self._run_peer(cell, group, max_tokens)
        params = [
            SamplingParams(
                max_tokens=max_tokens, temperature=cell.temperature, seed=seed, ignore_eos=True
            )
            for seed in group.seeds
        ]
        prompts = [list(task.ids) for task in group.tasks]
        if cell.system == PLAIN:
            decode = self.plain.plain
        else:
            ours = self._ours[cell.drafter, cell.depth, cell.width, cell.tree]
            # What a drafter remembers of this very prompt from an earlier cell would be its answer.
            decode = ours.with_drafter(fresh(ours.drafter)).generate
        self._memory.reset()
        start = time.perf_counter()
        outputs = decode(prompts, params)
        seconds = time.perf_counter() - start
        peak = self._memory.read()
        return [
            _our_record(cell, group, row, output.samples[0], seconds, peak)
            for row, output in enumerate(outputs)
        ]

    def _run_peer(self, cell: Cell, group: Group, max_tokens: int) -> list[Record]:
        prompts = [list(task.ids) for task in group.tasks]
        job = Job(prompts, max_tokens, cell.temperature, group.seeds[0])
        answer = self._peers[cell.system].generate(job)
        return [
            Record(
                cell=cell,
                **_origin(group, i),
                token_ids=tuple(ids),
                decode_tokens=len(ids) - answer.first_tokens,
                decode_s=answer.seconds - answer.first_seconds,
                total_s=answer.seconds,
                peak_bytes=answer.peak_bytes,
                first_token_s=answer.first_seconds,
            )
            for i, ids in enumerate(answer.token_ids)
        ]


def _our_record(
    cell: Cell, group: Group, row: int, sample: Sample, seconds: float, peak: int | None
) -> Record:
    stats = sample.stats
    counts = stats.as_dict()
    return Record(
        cell=cell,
        **_origin(group, row),
        token_ids=sample.token_ids,
        decode_tokens=stats.generated,
        decode_s=stats.seconds - stats.prefill_s,
        total_s=seconds,
        peak_bytes=peak,
        prefill_s=stats.prefill_s,
        draft_s=stats.draft_s,
        verify_s=stats.verify_s,
        rest_s=stats.rest_s,
        target_calls=stats.target_calls,
        drafted=stats.drafted,
        accepted=stats.accepted,
        drafted_per_position=tuple(counts["drafted_per_position"]),
        accepted_per_position=tuple(counts["accepted_per_position"]),
    )


def _origin(group: Group, row: int) -> dict[str, Any]:
    """Which request a record is of."""
    task = group.tasks[row]
    return {
        "id": task.item.id,
        "category": task.item.category,
        "repeat": group.repeat,
        "group": group.number,
        "seed": group.seeds[row],
        "prompt_ids": task.ids,
    }
