"""What a person sees of a tuning: the verified settings, and the best of every drafter."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from draftproof.bench.report import WIDTH
from draftproof.drafters.base import shortened
from draftproof.tune.predict import Forecast
from draftproof.tune.session import Result


def show(result: Result, console: Console) -> None:
    """Print the ranking; on a stream that has no width of its own it takes 100 columns."""
    if not console.is_terminal:
        console.width = WIDTH
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="verified, fastest first")
    for title in ("setting", "measured", "predicted", "equal texts"):
        table.add_column(title, justify="left" if title == "setting" else "right")
    table.add_column("why", overflow="fold")
    for one in result.verified:
        table.add_row(
            shortened(one.forecast.shape.label),
            f"{one.speedup:.2f}x",
            f"{one.forecast.speedup:.2f}x",
            f"{one.identical} of {one.total}",
            one.forecast.reason,
        )
    console.print(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="best of each drafter, as predicted")
    for title in ("setting", "predicted"):
        table.add_column(title, justify="left" if title == "setting" else "right")
    table.add_column("why", overflow="fold")
    for forecast in best_of_each(result):
        table.add_row(shortened(forecast.shape.label), f"{forecast.speedup:.2f}x", forecast.reason)
    console.print(table)
    best = result.best
    setting = "plain decoding" if best.drafter == "none" else f"{best.drafter}, depth {best.depth}"
    console.print(f"best for {result.target} here: {setting}", highlight=False, markup=False)


def best_of_each(result: Result) -> list[Forecast]:
    """The most promising forecast of each drafter and width, fastest first."""
    best: dict[tuple[str, int], Forecast] = {}
    for forecast in result.forecasts:
        best.setdefault((forecast.shape.drafter, forecast.shape.width), forecast)
    return list(best.values())


def as_dict(result: Result) -> dict[str, Any]:
    """The object that docs/cli.md describes."""
    return {
        "target": result.target,
        "prompts": result.prompts,
        "verified": [
            _forecast_as_dict(one.forecast)
            | {"measured_speedup": one.speedup, "identical": one.identical, "texts": one.total}
            for one in result.verified
        ],
        "forecasts": [_forecast_as_dict(forecast) for forecast in result.forecasts],
        "costs": {drafter: curves.as_dict() for drafter, curves in result.curves.items()},
        "best": asdict(result.best),
    }


def _forecast_as_dict(forecast: Forecast) -> dict[str, Any]:
    fields = asdict(forecast)
    shape: dict[str, Any] = fields.pop("shape")
    return shape | fields | {"predicted_speedup": forecast.speedup, "reason": forecast.reason}
