"""What a person sees of a bench: two tables per setting, the machine below; needs rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Literal, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.bench.machine import Machine
from draftproof.bench.session import Result
from draftproof.bench.summary import Row, Spread

WIDTH = 100
_POSITIONS = 8
"""Depths whose acceptance is shown; the JSON object has them all."""

_LEFT = ("workload", "by depth, %")

Column: TypeAlias = "tuple[str, Callable[[Row], str | Text]]"


def show(result: Result, console: Console, by_category: bool) -> None:
    """Print the tables; on a stream that has no width of its own they take 100 columns."""
    if not console.is_terminal:
        console.width = WIDTH
    for (temperature, batch), rows in groupby(result.rows, _setting):
        own = list(rows)
        same = [row for row in result.rows_by_category if _setting(row) == (temperature, batch)]
        console.print(Text(f"\ntemperature {temperature:g}, batch {batch}", "bold"))
        console.print(_table(own, _SPEED))
        console.print(_table(own, _WHERE))
        if by_category:
            console.print(_table(same, _WORKLOADS))
    for line in _notes(result):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _setting(row: Row) -> tuple[float, int]:
    return row.cell.temperature, row.cell.batch


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title, cell in columns:
        # Where it gets narrow, long names are folded and numbers are not.
        words = cell in (_label, _exactness)
        justify: Literal["left", "right"] = "left" if words or title in _LEFT else "right"
        table.add_column(title, justify=justify, no_wrap=not words, overflow="fold")
    for row, after in zip_longest(rows, rows[1:]):
        last = after is not None and after.category != row.category
        table.add_row(*(cell(row) for _, cell in columns), end_section=last)
    return table


def _label(row: Row) -> str:
    return row.cell.short_label


def _number(form: str, value: float | None) -> str:
    return "-" if value is None else form.format(value)


def _median(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.1f}"


def _ratio(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    if spread.low == spread.high:
        return f"{spread.median:.2f}"
    return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"


def _exactness(row: Row) -> Text:
    """Every verdict that is not the best one, with how many texts got it."""
    if row.cell.unsupported is not None:
        return Text("not supported", "dim")
    counts = dict(row.exactness)
    if len(counts) == 1 and not {"DIFFERENT", "near-tie"} & counts.keys():
        verdict = next(iter(counts))
        return Text(verdict, {"identical": "green"}.get(verdict, "dim"))
    bad = counts.get("DIFFERENT", 0)
    parts = [f"{count} {name}" for name, count in counts.items()]
    return Text(", ".join(parts), "red" if bad else "yellow")


def _positions(row: Row) -> str:
    shares = row.acceptance_by_position
    shown = " ".join(f"{100 * share:.0f}" for share in shares[:_POSITIONS])
    return (shown or "-") + (" ..." if len(shares) > _POSITIONS else "")


def _share(name: str) -> Callable[[Row], str]:
    return lambda row: "-" if row.time_share is None else f"{getattr(row.time_share, name):.0%}"


def _peak(row: Row) -> str:
    return "-" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f}"


_SPEED: tuple[Column, ...] = (
    ("", _label),
    ("tok/s", lambda row: _median(row.tokens_per_second)),
    ("over plain", lambda row: _ratio(row.speedup)),
    ("over transformers", lambda row: _ratio(row.speedup_over_transformers)),
    ("p50 s", lambda row: _number("{:.2f}", row.latency_p50_s)),
    ("p95 s", lambda row: _number("{:.2f}", row.latency_p95_s)),
    ("text", _exactness),
)
_WHERE: tuple[Column, ...] = (
    ("", _label),
    ("tok/s all", lambda row: _median(row.tokens_per_second_end_to_end)),
    ("tok/call", lambda row: _number("{:.2f}", row.tokens_per_call)),
    ("kept", lambda row: _number("{:.0%}", row.acceptance_rate)),
    ("by depth, %", _positions),
    ("draft", _share("draft")),
    ("verify", _share("verify")),
    ("rest", _share("rest")),
    ("peak MiB", _peak),
)
_WORKLOADS: tuple[Column, ...] = (
    ("workload", lambda row: row.category or ""),
    *_SPEED[:4],
    ("kept", lambda row: _number("{:.0%}", row.acceptance_rate)),
    ("text", _exactness),
)


def _notes(result: Result) -> Iterator[str]:
    settings, chosen = result.settings, result.selection
    yield (
        f"{result.target}, {result.dtype}: {len(chosen.tasks)} of {chosen.total} prompts of "
        f"{chosen.source} ({', '.join(chosen.categories)}), {settings.max_tokens} tokens each, "
        f"{settings.repeats} pass{'es' if settings.repeats > 1 else ''}, {result.seconds:.0f} s."
    )
    if chosen.too_long:
        yield f"{chosen.too_long} prompts were left out, being too long."
    yield (
        "Medians; ratios are taken prompt by prompt, range in parentheses. tok/s, ratios and the "
        "shares of time leave out reading the prompt; tok/s all, p50 and p95 do not. text: against "
        "plain decoding. kept: share of drafted tokens that are in the text."
    )
    for row in result.rows:
        if row.cell.unsupported is not None:
            yield f"{_label(row)}, batch {row.cell.batch}: {row.cell.unsupported}."
    yield _machine(result.machine)
    yield f"Raw results: {settings.records}"
    if not result.exact:
        yield (
            "Texts DIFFER from plain decoding, which rounding does not explain: do not trust these "
            "speeds, and run draftproof check."
        )


def _machine(machine: Machine) -> str:
    ram = "" if machine.ram_bytes is None else f", {machine.ram_bytes / 2**30:.0f} GiB"
    device = "" if machine.device == "cpu" else f", {machine.device}"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return (
        f"{machine.cpu}, {machine.threads} of {machine.cores} cores{ram}, memory read at "
        f"{machine.read_gb_per_s:.0f} GB/s{device}; Python {machine.python}, {versions}."
    )
