"""From records to rows: medians with their ranges, ratios taken prompt by prompt."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from draftproof.bench.matrix import OURS, PLAIN, Cell, Matrix
from draftproof.bench.peers.base import BASELINE
from draftproof.bench.record import Record

MIXED = "mixed"
"""Workload of a batch whose prompts belong to several."""

Call: TypeAlias = "list[Record]"
"""The records of one call: one prompt, or a batch."""
Calls: TypeAlias = "dict[tuple[int, int], Call]"
"""Calls of one cell by repeat and group, which pairs them with those of other cells."""
Rate: TypeAlias = "Callable[[Call], float | None]"


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the range around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the values that are known; None where none is."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None


@dataclass(frozen=True, slots=True)
class TimeShare:
    """Parts of decoding time, which add up to 1."""

    draft: float
    verify: float
    rest: float


@dataclass(frozen=True, slots=True)
class Row:
    """All requests of one cell, or those of one workload."""

    cell: Cell
    category: str | None
    """None for all workloads together."""
    requests: int
    exactness: dict[str, int]
    """How many texts got which verdict."""
    tokens_per_second: Spread | None
    """Of decoding, reading the prompt excluded; of all prompts of a batch together."""
    tokens_per_second_end_to_end: Spread | None
    """Over the wall time of the call, reading the prompt included."""
    speedup: Spread | None
    """Decoding rate over that of plain decoding, prompt by prompt."""
    speedup_over_transformers: Spread | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    tokens_per_call: float | None
    """Tokens per pass of the target."""
    acceptance_rate: float | None
    acceptance_by_position: tuple[float, ...]
    """Of the drafts that reached depth 1, 2, ...: the share whose token there was kept."""
    time_share: TimeShare | None
    peak_bytes: int | None


def summarise(matrix: Matrix, records: Sequence[Record], category: str | None = None) -> list[Row]:
    """One row per cell, in the order of the matrix; with no requests where it cannot be run."""
    rows = []
    for temperature, batch in matrix.settings():
        cells = matrix.cells(temperature, batch)
        calls = {cell: _calls(records, cell, category) for cell in cells}
        plain = next(calls[cell] for cell in cells if cell.system == PLAIN)
        base: Calls = next((calls[cell] for cell in cells if cell.system == BASELINE), {})
        rows += [_row(cell, category, calls[cell], plain, base) for cell in cells]
    return rows


def categories(records: Iterable[Record]) -> list[str]:
    """The workloads that calls belong to, in the order in which they came up."""
    by_call: dict[tuple[Cell, int, int], Call] = {}
    for record in records:
        by_call.setdefault((record.cell, record.repeat, record.group), []).append(record)
    found = dict.fromkeys(_category(call) for call in by_call.values())
    return [name for name in found if name != MIXED] + [name for name in found if name == MIXED]


def decode_rate(call: Call) -> float | None:
    """Tokens per second of decoding; None where all tokens came with the first."""
    seconds, tokens = max(r.decode_s for r in call), sum(r.decode_tokens for r in call)
    return tokens / seconds if seconds > 0 and tokens else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the values lie, interpolated; None of no values."""
    return float(np.quantile(values, share)) if values else None


def _calls(records: Iterable[Record], cell: Cell, category: str | None) -> Calls:
    calls: Calls = {}
    for record in records:
        if record.cell == cell:
            calls.setdefault((record.repeat, record.group), []).append(record)
    return {key: call for key, call in calls.items() if category in (None, _category(call))}


def _category(call: Call) -> str:
    names = {record.category for record in call}
    return names.pop() if len(names) == 1 else MIXED


def _row(cell: Cell, category: str | None, calls: Calls, plain: Calls, base: Calls) -> Row:
    records = [record for call in calls.values() for record in call]
    latencies = [call[0].total_s for call in calls.values()]
    target_calls = sum(record.target_calls or 0 for record in records)
    drafted = sum(record.drafted or 0 for record in records)
    accepted = sum(record.accepted or 0 for record in records)
    generated = sum(len(record.token_ids) for record in records)
    return Row(
        cell=cell,
        category=category,
        requests=len(records),
        exactness=dict(Counter(str(record.exactness) for record in records)),
        tokens_per_second=Spread.of(map(decode_rate, calls.values())),
        tokens_per_second_end_to_end=Spread.of(map(_whole_rate, calls.values())),
        speedup=Spread.of(_ratios(calls, plain)) if cell.system != PLAIN else None,
        speedup_over_transformers=(
            Spread.of(_ratios(calls, base)) if cell.system != BASELINE else None
        ),
        latency_p50_s=percentile(latencies, 0.5),
        latency_p95_s=percentile(latencies, 0.95),
        tokens_per_call=generated / target_calls if target_calls else None,
        acceptance_rate=accepted / drafted if drafted else None,
        acceptance_by_position=_by_position(records),
        time_share=_time_share(records),
        peak_bytes=max((r.peak_bytes for r in records if r.peak_bytes is not None), default=None),
    )


def _whole_rate(call: Call) -> float:
    return sum(len(record.token_ids) for record in call) / call[0].total_s


def _ratios(calls: Mapping[tuple[int, int], Call], base: Calls) -> list[float | None]:
    """Rates of calls over those of the same prompts in `base`."""
    ratios = []
    for key, call in calls.items():
        mine, theirs = decode_rate(call), decode_rate(base[key]) if key in base else None
        ratios.append(mine / theirs if mine and theirs else None)
    return ratios


def _by_position(records: Iterable[Record]) -> tuple[float, ...]:
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for record in records:
        drafted.update(dict(enumerate(record.drafted_per_position)))
        accepted.update(dict(enumerate(record.accepted_per_position)))
    return tuple(accepted[i] / drafted[i] for i in sorted(drafted) if drafted[i])


def _time_share(records: Sequence[Record]) -> TimeShare | None:
    ours = [record for record in records if record.cell.system in (PLAIN, OURS)]
    parts = [
        sum(seconds or 0.0 for seconds in column)
        for column in (
            [record.draft_s for record in ours],
            [record.verify_s for record in ours],
            [record.rest_s for record in ours],
        )
    ]
    whole = sum(parts)
    return TimeShare(*(part / whole for part in parts)) if whole > 0 else None
