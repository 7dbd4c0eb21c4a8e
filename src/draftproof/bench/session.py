"""One bench from its settings to its result; knows neither tables nor terminals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from draftproof.api import Speculator
from draftproof.bench.decoders import Decoders
from draftproof.bench.machine import Machine, describe
from draftproof.bench.matrix import OURS, Matrix
from draftproof.bench.peers.base import Start
from draftproof.bench.record import Record
from draftproof.bench.runner import Progress, Schedule, run
from draftproof.bench.summary import Row, categories, summarise
from draftproof.bench.workloads import Item, Selection, read_items, select_for
from draftproof.config import EngineSettings, Kernels
from draftproof.errors import InvalidSetting
from draftproof.models.load import load
from draftproof.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Settings:
    """What to bench; checked before anything is loaded."""

    target: str
    matrix: Matrix
    records: Path
    """Raw results go here, one JSON object per request; a file that exists is refused."""
    nodes: int | None = None
    """Most tokens of one draft; None for as many as fit."""
    prompts: Path | None = None
    """JSONL; None for our own set."""
    per_category: int | None = None
    max_prompt_tokens: int = 1024
    max_tokens: int = 64
    """Tokens of every text; end tokens do not end it."""
    repeats: int = 1
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    kernels: Kernels = "exact"
    threads: int | None = None
    """Threads to compute with; None for torch's own choice."""

    def __post_init__(self) -> None:
        SamplingParams(max_tokens=self.max_tokens, seed=self.seed)
        EngineSettings(nodes=self.nodes, kernels=self.kernels)
        least = {"max_tokens": 2, "max_prompt_tokens": 1, "repeats": 1}
        for name, low in (least | {"per_category": 1, "threads": 1}).items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise InvalidSetting(f"{name} of the bench is {value}; give at least {low}")
        check_new_file("records", self.records)


@dataclass(frozen=True, slots=True)
class Result:
    """What came out."""

    settings: Settings
    target: str
    dtype: str
    selection: Selection
    machine: Machine
    rows: tuple[Row, ...]
    """One per cell."""
    rows_by_category: tuple[Row, ...]
    """One per cell and workload."""
    seconds: float

    @property
    def exact(self) -> bool:
        """Whether every text of ours is plain decoding's, but for near-ties."""
        ours = [row for row in self.rows if row.cell.system == OURS]
        return not any(row.exactness.get("DIFFERENT") for row in ours)

    def as_dict(self, by_category: bool) -> dict[str, Any]:
        """The object that docs/cli.md describes."""
        settings, selection = self.settings, self.selection
        return {
            "target": self.target,
            "dtype": self.dtype,
            "max_tokens": settings.max_tokens,
            "repeats": settings.repeats,
            "seed": settings.seed,
            "kernels": settings.kernels,
            "nodes": settings.nodes,
            "min_confidence": settings.matrix.min_confidence,
            "prompts": {
                "source": selection.source,
                "total": selection.total,
                "too_long": selection.too_long,
                "used": len(selection.tasks),
                "categories": selection.categories,
            },
            "machine": self.machine.as_dict(),
            "cells": [_row_as_dict(row) for row in self.rows],
            "by_category": [_row_as_dict(row) for row in self.rows_by_category if by_category],
            "exact": self.exact,
            "records": str(settings.records),
            "seconds": self.seconds,
        }


def run_bench(
    settings: Settings,
    progress: Progress = lambda _what, _done, _total: None,
    stage: Callable[[str], None] = lambda _text: None,
) -> Result:
    """Load, choose prompts, run, and sum up. `stage` is told what is being prepared."""
    began = time.perf_counter()
    items = read_items(settings.prompts)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    stage(f"Loading {settings.target}")
    loaded = load(settings.target, dtype=settings.dtype, device=settings.device)
    plain = Speculator.from_pretrained(
        (loaded.model, loaded.tokenizer),
        "none",
        settings=EngineSettings(
            nodes=settings.nodes,
            max_batch=max(settings.matrix.batches),
            kernels=settings.kernels,
        ),
    )
    selection = _select(settings, items, plain)
    schedule = Schedule(
        settings.matrix, selection.tasks, settings.max_tokens, settings.repeats, settings.seed
    )
    stage("Measuring the machine")
    machine = describe(plain.target.device)
    start = Start("", settings.target, settings.dtype, settings.device, torch.get_num_threads())
    stage("Loading drafters and peers")
    with Decoders(plain, settings.matrix, start) as decoders:
        records = _run_and_write(decoders, schedule, settings.records, progress)
    by_category = [
        row for name in categories(records) for row in summarise(settings.matrix, records, name)
    ]
    return Result(
        settings=settings,
        target=loaded.name,
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        selection=selection,
        machine=machine,
        rows=tuple(summarise(settings.matrix, records)),
        rows_by_category=tuple(row for row in by_category if row.requests),
        seconds=time.perf_counter() - began,
    )


def _run_and_write(
    decoders: Decoders, schedule: Schedule, path: Path, progress: Progress
) -> list[Record]:
    with path.open("x", encoding="utf-8") as file:

        def write(record: Record) -> None:
            file.write(record.line() + "\n")
            file.flush()  # what was measured outlives whatever comes

        return run(decoders, schedule, write, progress)


def check_new_file(name: str, path: Path) -> None:
    """Refuse a place where no new file can be written; told before the work that would fill it."""
    folder = path.absolute().parent
    if path.exists():
        raise InvalidSetting(f"{name} is {str(path)!r}, which exists; remove it or give a new name")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidSetting(
            f"{name} is {str(path)!r}, and no file can be written in {folder}; give a folder that "
            "exists"
        )


def _select(settings: Settings, items: list[Item], plain: Speculator) -> Selection:
    return select_for(
        plain,
        items,
        str(settings.prompts or "mixed"),
        settings.max_prompt_tokens,
        settings.max_tokens,
        settings.per_category,
    )


def _row_as_dict(row: Row) -> dict[str, Any]:
    fields = asdict(row)
    cell: dict[str, Any] = fields.pop("cell")
    return cell | {"label": row.cell.label} | fields | {"note": row.cell.unsupported or ""}
