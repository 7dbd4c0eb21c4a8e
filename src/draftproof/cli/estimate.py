"""`draftproof estimate`: is speculation worth it, and how deep? Arithmetic only, no model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from draftproof.cli import options

EXAMPLES = """
Examples:

  draftproof estimate --acceptance-rate 0.8 --cost-ratio 0.05

  draftproof estimate --acceptance-rate 0.8 --cost-ratio 0.05 --depth 5 --json

  draftproof estimate --acceptance-rate .8 --cost-ratio .3 --verify-cost 5=1.4
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
    """Is speculation worth it, and how deep? Arithmetic only, no model.

    Speed-up = (1 - a^(k+1)) / ((1 - a) (v(k+1) + k c)): acceptance rate a,
    depth k, cost ratio c, v(n) the cost of a target pass over n rows.
    Without --verify-cost v is 1, which is right for a GPU at batch 1 and
    wrong for most CPUs (Leviathan et al. 2023).
    """
    form = "ROWS=COST, as 5=1.4"
    measured = options.parse_pairs(verify_cost or [], "--verify-cost", form) or None
    report = _report(acceptance_rate, cost_ratio, depth, measured, simulate)
    if json_:
        typer.echo(json.dumps(report, allow_nan=False))
    else:
        from draftproof.theory import expected_speedup

        _show(report, [expected_speedup(acceptance_rate, k, cost_ratio, measured) for k in _DEPTHS])


def _report(
    acceptance_rate: float,
    cost_ratio: float,
    depth: int | None,
    verify_cost: dict[int, float] | None,
    simulate: bool,
) -> dict[str, Any]:
    """The JSON object that docs/cli.md describes."""
    from draftproof.theory import (
        best_depth,
        break_even_acceptance,
        expected_speedup,
        expected_tokens,
        simulate_speedup,
    )

    best = best_depth(acceptance_rate, cost_ratio, verify_cost)
    chosen = best.depth if depth is None else depth
    report: dict[str, Any] = {
        "acceptance_rate": acceptance_rate,
        "cost_ratio": cost_ratio,
        "depth": chosen,
        "tokens_per_round": expected_tokens(acceptance_rate, chosen),
        "speedup": expected_speedup(acceptance_rate, chosen, cost_ratio, verify_cost),
        "best_depth": best.depth,
        "best_speedup": best.speedup,
        "break_even_acceptance": break_even_acceptance(max(chosen, 1), cost_ratio, verify_cost),
        "simulated": None,
    }
    if simulate:
        run = simulate_speedup(acceptance_rate, chosen, cost_ratio, verify_cost)
        report["simulated"] = {"speedup": run.speedup, "standard_error": run.standard_error}
    return report


_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)


def _show(report: dict[str, Any], curve: list[float]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("depth", justify="right")
    table.add_column("speed-up", justify="right")
    table.add_column("")
    widest = max(curve)
    for depth, speedup in zip(_DEPTHS, curve, strict=True):
        bar = "█" * max(1, round(24 * speedup / widest))
        table.add_row(str(depth), f"{speedup:.2f}x", bar)
    console = Console(highlight=False)
    console.print(table)
    for line in _lines(report):
        console.print(line, soft_wrap=True)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    tokens, speedup = report["tokens_per_round"], report["speedup"]
    yield f"depth {report['depth']}: {tokens:.2f} tokens per round, speed-up {speedup:.2f}x"
    if report["simulated"] is not None:
        run = report["simulated"]
        yield f"simulated: {run['speedup']:.3f}x ± {run['standard_error']:.3f} (standard error)"
    if report["best_depth"] == 0:
        yield "no depth pays: decode plainly, or find a cheaper or better drafter"
    else:
        yield f"best depth {report['best_depth']}: {report['best_speedup']:.2f}x"
    tried, least = max(report["depth"], 1), report["break_even_acceptance"]
    if least is None:
        yield f"depth {tried} does not pay even if every draft is accepted"
    else:
        yield f"depth {tried} pays from an acceptance rate of {least:.2f}"
