"""`draftproof estimate`: is speculation worth it, and how deep? Arithmetic only, no model."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer

from draftproof.cli import options
from draftproof.errors import InvalidSetting

EXAMPLES = """
Examples:

  draftproof estimate --acceptance-rate 0.8 --cost-ratio 0.05

  draftproof estimate --acceptance-rate 0.8 --cost-ratio 0.3 --verify-cost 5=1.4 --verify-cost 9=2.2
"""


def estimate(
    acceptance_rate: Annotated[
        float, typer.Option(help="Share of drafted tokens accepted, given all before were.")
    ],
    cost_ratio: Annotated[
        float, typer.Option(help="Time of one drafter step / time of one target step.")
    ],
    depth: Annotated[
        int | None, typer.Option(help="Tokens drafted per round; default: the best depth.")
    ] = None,
    verify_cost: Annotated[
        list[str] | None,
        typer.Option(help="ROWS=COST of a target pass over ROWS tokens, 1 row costing 1."),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Check the formula with a Monte Carlo run.")
    ] = False,
    json_: options.Json = False,
) -> None:
    """Expected speed-up (1 - a^(k+1)) / ((1 - a) (v(k+1) + k c)) and the best depth k.

    Without --verify-cost verification is taken as free, which is right for a GPU at batch 1 and
    wrong for most CPUs; Leviathan et al. 2023.
    """
    from draftproof.theory import (
        best_depth,
        break_even_acceptance,
        expected_speedup,
        expected_tokens,
        simulate_speedup,
    )

    measured = _parse_costs(verify_cost or [])
    best = best_depth(acceptance_rate, cost_ratio, measured)
    chosen = best.depth if depth is None else depth
    report: dict[str, Any] = {
        "acceptance_rate": acceptance_rate,
        "cost_ratio": cost_ratio,
        "depth": chosen,
        "tokens_per_round": expected_tokens(acceptance_rate, chosen),
        "speedup": expected_speedup(acceptance_rate, chosen, cost_ratio, measured),
        "best_depth": best.depth,
        "best_speedup": best.speedup,
        "break_even_acceptance": break_even_acceptance(max(chosen, 1), cost_ratio, measured),
        "simulated": None,
    }
    if simulate:
        run = simulate_speedup(acceptance_rate, chosen, cost_ratio, measured)
        report["simulated"] = {"speedup": run.speedup, "standard_error": run.standard_error}
    if json_:
        typer.echo(json.dumps(report))
    else:
        _show(report, [expected_speedup(acceptance_rate, k, cost_ratio, measured) for k in _DEPTHS])


_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)


def _parse_costs(entries: list[str]) -> dict[int, float] | None:
    costs = {}
    for entry in entries:
        rows, _, cost = entry.partition("=")
        try:
            costs[int(rows)] = float(cost)
        except ValueError:
            raise InvalidSetting(f"--verify-cost is {entry!r}; give ROWS=COST, as 5=1.4") from None
    return costs or None


def _show(report: dict[str, Any], curve: list[float]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="speed-up by depth")
    table.add_column("depth", justify="right")
    table.add_column("speed-up", justify="right")
    table.add_column("")
    for depth, speedup in zip(_DEPTHS, curve, strict=True):
        table.add_row(str(depth), f"{speedup:.2f}x", "█" * max(1, math.floor(speedup * 8)))
    console = Console()
    console.print(table)
    console.print(
        f"depth {report['depth']}: {report['tokens_per_round']:.2f} tokens per round, "
        f"speed-up {report['speedup']:.2f}x"
    )
    if report["best_depth"] == 0:
        console.print("No depth pays: decode plainly, or find a cheaper or better drafter.")
    else:
        console.print(f"best depth {report['best_depth']}: {report['best_speedup']:.2f}x")
    if report["break_even_acceptance"] is not None:
        console.print(f"pays from an acceptance rate of {report['break_even_acceptance']:.2f}")
    if report["simulated"] is not None:
        run = report["simulated"]
        console.print(f"simulated: {run['speedup']:.3f}x ± {run['standard_error']:.3f}")
