"""`draftproof check`: is this pair lossless on this machine? Evidence and a verdict."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from draftproof.checks.audit import Audit, Comparison

EXAMPLES = """
Examples:

  draftproof check

  draftproof check --target ./qwen-1.5b --drafter model:./qwen-0.5b

  draftproof check --drafter ngram --depth 8 --json > audit.json
"""


def check(
    target: options.Target = options.TARGET,
    drafter: options.DrafterName = options.DRAFTER,
    depth: options.Depth = options.CHECK_DEPTH,
    verifier: options.VerifierName = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens per text, 2 at least.")] = 32,
    samples: Annotated[int, typer.Option(help="Texts per distribution test.")] = 48,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    kernels: options.KernelsName = "exact",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Is this pair lossless on this machine? Compares it with plain decoding, tests the
    distribution of sampled tokens, and shows that the same tests catch rules known to be wrong.

    Exit code 0 when every check holds, 1 when one fails, 2 for bad input.
    """
    from draftproof.checks.audit import audit

    speculator = options.load_speculator(
        target, drafter, depth, verifier, dtype, device, kernels, quiet or json_
    )
    with _Progress(hidden=quiet or json_ or not sys.stderr.isatty()) as progress:
        result = audit(speculator, max_tokens=max_tokens, samples=samples, progress=progress.update)
    if json_:
        typer.echo(json.dumps(result.as_dict(), ensure_ascii=False, allow_nan=False))
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
    from rich.markup import escape

    console = Console(highlight=False)
    console.print(_comparison_table(result))
    for line in (*_law_lines(result), *_check_lines(result)):
        console.print(line, soft_wrap=True)
    pair = escape(f"{result.target} with drafter {result.drafter}")
    verdict = "[green]lossless[/green]" if result.passed else "[red]NOT shown to be lossless[/red]"
    console.print(f"\n{pair}: {verdict} ({result.seconds:.0f} s)", soft_wrap=True)


def _comparison_table(result: Audit) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("prompt")
    table.add_column("mode")
    table.add_column("tokens", justify="right")
    table.add_column("acceptance", justify="right")
    table.add_column("against plain decoding")
    for row in result.comparisons:
        rate = "-" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}"
        table.add_row(row.prompt, row.mode, str(row.num_tokens), rate, _outcome(row))
    return table


def _outcome(row: Comparison) -> str:
    if not row.differences:
        return "identical"
    parts = []
    for one in row.differences:
        kind = "near-tie" if one.is_near_tie else "[red]DIFFERENT[/red]"
        ended = one.expected is None or one.found is None
        why = "one text ended" if ended else f"gap {one.gap:.2g}"
        parts.append(f"{kind} at token {one.position} ({why})")
    return ", ".join(parts)


def _law_lines(result: Audit) -> Iterator[str]:
    fit = result.distribution
    rules = ", ".join(f"{rule} ({kind})" for kind, rule in result.rules.items())
    yield f"rules          {rules}: error {result.rule_deviation:.0e} by exact enumeration"
    yield (
        f"distribution   p-value {fit.p_value:.2g} from {fit.num_samples} pairs of sampled tokens; "
        f"fails below {fit.error_rate:g}, a lossless pair once in {1 / fit.error_rate:,.0f} audits"
    )
    for control in result.controls:
        yield (
            f"control        {control.rule}: error {control.deviation:.2g} by enumeration, "
            f"p-value {control.distribution.p_value:.2g} in the same test"
        )
    yield ""


def _check_lines(result: Audit) -> Iterator[str]:
    for name, held in result.checks.items():
        yield f"{'[green]pass[/green]' if held else '[red]FAIL[/red]'}  {name}"
    if not all(control.caught for control in result.controls):
        yield "      too few tokens to tell a wrong rule from a right one: raise --samples"
