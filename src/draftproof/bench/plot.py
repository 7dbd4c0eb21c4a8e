"""A bench as one picture: speed-ups with their ranges, acceptance by depth; needs matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from draftproof.bench.session import Result, check_new_file
from draftproof.bench.summary import Row, Spread
from draftproof.errors import InvalidSetting, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR, _RANGE, _LINE = "#4878a8", "#1d2b3a", "#999999"


def check_plot(path: Path) -> None:
    """Refuse, before anything runs, a plot that could not be drawn or written afterwards."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "plot", "--plot")
    if path.suffix.lower() != ".png":
        raise InvalidSetting(f"plot is {str(path)!r}; give a name that ends in .png")
    check_new_file("plot", path)


def draw(result: Result, path: Path) -> None:
    """Write a PNG; one panel per baseline and one for acceptance where something was drafted."""
    from matplotlib.figure import Figure

    rows = [row for row in result.rows if row.requests]
    drafting = [row for row in rows if row.acceptance_by_position]
    panels: list[Callable[[Axes], None]] = []
    for title, pick in _BASELINES:
        known = [(row, spread) for row in rows if (spread := pick(row)) is not None]
        if known:
            panels.append(partial(_speedups, title=title, known=known))
    if drafting:
        panels.append(partial(_acceptance, rows=drafting))
    figure = Figure(figsize=(5.6 * len(panels), 1.6 + 0.34 * max(len(rows), 8)), dpi=130)
    for place, panel in enumerate(panels, 1):
        panel(figure.add_subplot(1, len(panels), place))
    machine = result.machine
    figure.suptitle(
        f"{result.target}, {result.dtype}, {len(result.selection.tasks)} prompts, "
        f"{result.settings.max_tokens} tokens each; {machine.cpu}, threads: {machine.threads}",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(path)


_BASELINES: tuple[tuple[str, Callable[[Row], Spread | None]], ...] = (
    ("speed-up over plain decoding", lambda row: row.speedup),
    ("speed-up over transformers' generate", lambda row: row.speedup_over_transformers),
)


def _speedups(axes: Axes, title: str, known: Sequence[tuple[Row, Spread]]) -> None:
    """Bars at the medians, lines over the ranges, in the order of the table."""
    medians = [spread.median for _, spread in known]
    below = [spread.median - spread.low for _, spread in known]
    above = [spread.high - spread.median for _, spread in known]
    places = range(len(known))
    axes.barh(places, medians, xerr=[below, above], color=_BAR, ecolor=_RANGE, capsize=3)
    axes.axvline(1.0, color=_LINE, linewidth=1)
    axes.set_yticks(places, [_name(row) for row, _ in known], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("median, range over prompts", fontsize=8)
    axes.set_title(title, fontsize=9)


def _acceptance(axes: Axes, rows: Sequence[Row]) -> None:
    for row in rows:
        shares = row.acceptance_by_position
        axes.plot(range(1, len(shares) + 1), shares, marker="o", markersize=4, label=_name(row))
    deepest = max(len(row.acceptance_by_position) for row in rows)
    axes.set_xticks(range(1, deepest + 1, 1 + deepest // 16))
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("depth in the draft", fontsize=8)
    axes.set_title("share of drafted tokens kept", fontsize=9)
    axes.legend(fontsize=8)


def _name(row: Row) -> str:
    """The cell with its setting, on two lines."""
    cell = row.cell
    exact = " (DIFFERENT text)" if row.exactness.get("DIFFERENT") else ""
    return f"{cell.short_label}{exact}\ntemperature {cell.temperature:g}, batch {cell.batch}"
