"""`draftproof check`: is this pair lossless on this machine? Evidence and a verdict."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli import options

if TYPE_CHECKING:
    from draftproof.checks.audit import Audit

EXAMPLES = """
Examples:

  draftproof check

  draftproof check --target ./qwen-1.5b --drafter model:./qwen-0.5b --json > audit.json
"""


def check(
    target: options.Target = options.TARGET,
    drafter: options.DrafterName = options.DRAFTER,
    depth: options.Depth = options.DEPTH,
    verifier: options.VerifierName = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens per prompt.", min=2)] = 32,
    samples: Annotated[int, typer.Option(help="Texts per distribution test.", min=1)] = 48,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare with plain decoding, test the distribution, and let a wrong rule be caught.

    Exit code 0 when every check holds, 1 when one fails.
    """
    from draftproof.checks.audit import audit

    speculator = options.load_speculator(
        target, drafter, depth, verifier, dtype, device, quiet or json_
    )
    with _Progress(hidden=quiet or json_ or not sys.stderr.isatty()) as progress:
        result = audit(speculator, max_tokens=max_tokens, samples=samples, progress=progress.update)
    if json_:
        typer.echo(json.dumps(result.as_dict(), ensure_ascii=False, default=str))
    elif not quiet:
        _show(result)
    raise typer.Exit(0 if result.passed else 1)


class _Progress:
    """A bar per stage on stderr."""

    def __init__(self, hidden: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bars = Progress(console=Console(stderr=True), disable=hidden, transient=True)
        self._tasks: dict[str, object] = {}

    def __enter__(self) -> _Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done)  # type: ignore[arg-type]


def _show(result: Audit) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{result.target}, drafter {result.drafter}, depth {result.depth}")
    for column in ("prompt", "mode", "tokens", "acceptance", "equal to plain"):
        table.add_column(column)
    for row in result.comparisons:
        rate = "-" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}"
        equal = "identical"
        if row.difference is not None:
            kind = "near-tie" if row.difference.is_near_tie else "[red]DIFFERENT[/red]"
            equal = f"{kind} at token {row.difference.position}, gap {row.difference.gap:.2g}"
        table.add_row(row.prompt, row.mode, str(row.num_tokens), rate, equal)
    console.print(table)
    fit, control = result.distribution, result.control
    console.print(
        f"rule {result.rule}: largest error by exact enumeration {result.rule_deviation:.1e}\n"
        f"distribution at temperature 1: p-value {fit.p_value:.3g} from {fit.num_samples} tokens "
        f"(a correct rule fails with probability {fit.error_rate:g})\n"
        f"wrong rule through the same test: p-value {control.p_value:.3g}"
    )
    for name, held in result.checks.items():
        console.print(f"{'[green]pass[/green]' if held else '[red]FAIL[/red]'}  {name}")
    verdict = "[green]lossless[/green]" if result.passed else "[red]NOT shown lossless[/red]"
    console.print(f"verdict: {verdict} ({result.seconds:.0f} s)")
