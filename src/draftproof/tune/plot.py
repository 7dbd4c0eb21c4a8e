"""A tuning as one picture: speed-up against depth, and the curves of cost; needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from draftproof.drafters.base import shortened
from draftproof.tune.session import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINE = "#999999"


def draw(result: Result, path: Path) -> None:
    """Write a PNG of three panels: speed-up by depth, target passes, drafting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.2), dpi=120)
    speed, verify, draft = (figure.add_subplot(1, 3, place) for place in (1, 2, 3))
    colours = {drafter: f"C{place}" for place, drafter in enumerate(result.curves)}
    _speedups(speed, result, colours)
    curves = next(iter(result.curves.values()))
    columns = sorted(curves.verify)
    verify.plot(columns, [1e3 * curves.verify[n] for n in columns], marker="o", color="#4878a8")
    _name(verify, "target pass, ms", "columns: 1 + drafted tokens")
    for drafter, own in result.curves.items():
        for width, points in sorted(own.draft.items()):
            levels = [0, *sorted(points)]
            seconds = [0.0, *(1e3 * points[n] for n in sorted(points))]
            label = Path(drafter).name + (f", width {width}" if width > 1 else "")
            style = "o-" if width == 1 else "^--"
            draft.plot(levels, seconds, style, color=colours[drafter], label=label)
    _name(draft, "drafting, ms", "depth")
    draft.legend(fontsize=8)
    figure.suptitle(f"{result.target}, {result.prompts} prompts", fontsize=10)
    figure.tight_layout()
    figure.savefig(path)


def _speedups(axes: Axes, result: Result, colours: Mapping[str, str]) -> None:
    """Lines as predicted, trees as triangles, crosses as measured."""
    chains = sorted(
        (one for one in result.forecasts if one.shape.width == 1),
        key=lambda one: (one.shape.drafter, one.shape.depth),
    )
    for drafter in dict.fromkeys(one.shape.drafter for one in chains):
        own = [one for one in chains if one.shape.drafter == drafter]
        depths = [one.shape.depth for one in own]
        speedups = [one.speedup for one in own]
        axes.plot(depths, speedups, ".-", color=colours[drafter], label=Path(drafter).name)
    for tree in (one for one in result.forecasts if one.shape.width > 1):
        colour, label = colours[tree.shape.drafter], shortened(tree.shape.label)
        axes.plot([tree.shape.depth], [tree.speedup], "^", color=colour, label=label)
    for one in result.verified:
        axes.plot([one.forecast.shape.depth], [one.speedup], "kx", markersize=9)
    axes.axhline(1.0, color=_LINE, linewidth=1)
    axes.legend(fontsize=7)
    _name(axes, "speed-up: predicted (lines), measured (crosses)", "depth")


def _name(axes: Axes, title: str, below: str) -> None:
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(below, fontsize=8)
