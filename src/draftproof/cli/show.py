"""What `generate` shows a person: coloured text on stdout, one table on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from draftproof.api import Stream

_STYLES = {"accepted": "green", "correction": "yellow", "bonus": "cyan", "plain": ""}

_ROWS = (
    ("tokens", "generated", "{:d}"),
    ("seconds, prompt excluded", "decode_s", "{:.2f}"),
    ("tokens per second", "tokens_per_second", "{:.1f}"),
    ("target calls", "target_calls", "{:d}"),
    ("drafted", "drafted", "{:d}"),
    ("accepted", "accepted", "{:d}"),
    ("acceptance rate", "acceptance_rate", "{:.1%}"),
    ("accepted per call", "accepted_per_call", "{:.2f}"),
    ("calls saved", "calls_saved", "{:d}"),
)


def show_stream(stream: Stream, title: str | None) -> None:
    """Write pieces as they come; colours tell where tokens are from, on a terminal."""
    console = Console(highlight=False, soft_wrap=True)
    if title is not None:
        Console(stderr=True).rule(title, align="left")
    for piece in stream:
        if console.is_terminal:
            console.print(Text(piece.text, style=_STYLES[piece.origin]), end="")
        else:
            sys.stdout.write(piece.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def show_table(report: dict[str, Any], target: str, drafter: str) -> None:
    """Counts and rates; beside plain decoding when that was run."""
    console = Console(stderr=True, highlight=False)
    plain = report["plain"]
    columns = {"speculative": report["stats"]}
    if plain is not None:
        columns = {"plain": plain["stats"], **columns}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(f"{target}, drafter {drafter}"), no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for label, key, form in _ROWS:
        table.add_row(label, *(_cell(stats, key, form) for stats in columns.values()))
    if report["speedup"] is not None:
        table.add_row("speed-up", "", f"{report['speedup']:.2f}x")
    console.print(table)
    if plain is not None:
        console.print(_verdict(report), soft_wrap=True)
    if sys.stdout.isatty():
        console.print(_legend())


def _legend() -> Text:
    legend = Text("colours: ")
    for origin in ("accepted", "correction", "bonus"):
        legend.append(f"{origin} ", _STYLES[origin])
    return legend


def _cell(stats: dict[str, Any], key: str, form: str) -> str:
    value = stats["seconds"] - stats["prefill_s"] if key == "decode_s" else stats[key]
    return "-" if value is None else form.format(value)


def _verdict(report: dict[str, Any]) -> Text:
    """What the comparison of both texts says."""
    difference = report["difference"]
    if report["identical"] is None:
        return Text("texts not compared: this rule keeps the distribution, not the text of a seed")
    if difference is None:
        return Text("identical to plain decoding", "green")
    place = f"at token {difference['position']}"
    if difference["near_tie"]:
        return Text(
            f"near-tie {place}: rounding decides between logits {difference['gap']:.1g} apart, "
            "and the texts part there",
            "yellow",
        )
    gap = "one text ended" if difference["gap"] is None else f"gap {difference['gap']:.2g}"
    return Text(f"DIFFERENT from plain decoding {place} ({gap}); run draftproof check", "red")
