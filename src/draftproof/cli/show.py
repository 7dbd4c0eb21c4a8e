"""What `generate` shows a person: coloured text on stdout, one table on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from draftproof.api import Speculator, Stream

_STYLES = {"accepted": "green", "correction": "yellow", "bonus": "cyan", "plain": ""}

_ROWS = (
    ("tokens", "generated", "{:d}"),
    ("seconds", "decode_s", "{:.2f}"),
    ("tokens/s", "tokens_per_second", "{:.1f}"),
    ("target calls", "target_calls", "{:d}"),
    ("drafted", "drafted", "{:d}"),
    ("accepted", "accepted", "{:d}"),
    ("acceptance rate", "acceptance_rate", "{:.1%}"),
    ("accepted per call", "accepted_per_call", "{:.2f}"),
    ("calls saved", "calls_saved", "{:d}"),
)


def show_stream(stream: Stream, title: str | None) -> None:
    """Write pieces as they come; colours tell accepted tokens from corrections on a terminal."""
    console = Console(highlight=False, soft_wrap=True)
    if title is not None:
        Console(stderr=True).rule(title)
    for piece in stream:
        if console.is_terminal:
            console.print(Text(piece.text, style=_STYLES[piece.origin]), end="")
        else:
            sys.stdout.write(piece.text)
        sys.stdout.flush()
    sys.stdout.write("\n")


def show_table(report: dict[str, Any], speculator: Speculator) -> None:
    """Counts and rates; beside plain decoding when that was run."""
    plain = report["plain"]
    table = Table(title=f"{speculator.target.name}, drafter {speculator.drafter.name}")
    table.add_column("")
    columns = [("speculative", report["stats"])]
    if plain is not None:
        columns.insert(0, ("plain", plain["stats"]))
    for name, _ in columns:
        table.add_column(name, justify="right")
    for label, key, form in _ROWS:
        table.add_row(label, *(_cell(stats, key, form) for _, stats in columns))
    if plain is not None:
        blank = [""] * (len(columns) - 1)
        speedup = report["speedup"]
        table.add_row("speed-up", *blank, f"{speedup:.2f}x" if speedup else "-")
        table.add_row("identical", *blank, _identical(report))
    Console(stderr=True).print(table)
    if plain is None and sys.stdout.isatty():
        legend = Text("accepted", _STYLES["accepted"])
        legend.append("  correction", _STYLES["correction"]).append("  bonus", _STYLES["bonus"])
        Console(stderr=True).print(legend)


def _cell(stats: dict[str, Any], key: str, form: str) -> str:
    value = stats["seconds"] - stats["prefill_s"] if key == "decode_s" else stats[key]
    return "-" if value is None else form.format(value)


def _identical(report: dict[str, Any]) -> str:
    difference = report["difference"]
    if difference is None:
        return "yes"
    kind = "near-tie" if difference["near_tie"] else "DIFFERENT"
    return f"{kind} at token {difference['position']}, gap {difference['gap']:.2g}"
