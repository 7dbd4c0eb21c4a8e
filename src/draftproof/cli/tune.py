"""`draftproof tune`: which drafter and depth are fastest here, predicted and then measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from draftproof.cli import options
from draftproof.config import Kernels

EXAMPLES = """
Examples:

  draftproof tune

  draftproof tune --target ./qwen-1.5b --drafter model:./qwen-0.5b

  draftproof tune --prompts code-editing --output tuned.json --plot tuned.png

  draftproof generate "Why is the sky blue?" --settings tuned.json
"""


def tune(
    target: options.Target = options.TARGET,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "--drafters",
            help="What may propose tokens; repeatable. Default: self-int8, ngram, suffix and "
            "recycling.",
            metavar="NAME",
        ),
    ] = None,
    prompts: options.Prompts = None,
    per_category: Annotated[int, typer.Option(help="Prompts of each workload.")] = 2,
    max_prompt_tokens: options.MaxPromptTokens = 1024,
    max_tokens: options.TextTokens = 64,
    temperature: options.Temperature = 0.0,
    best: Annotated[int, typer.Option(help="Verify so many of the best predictions.")] = 3,
    output: Annotated[
        Path | None, typer.Option(help="Write the best setting to this file, for --settings.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw speed-up against depth and the costs: a new .png.")
    ] = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    kernels: options.KernelsName = "exact",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Which drafter, how deep? Measures what passes cost here and what is accepted on the
    prompts, predicts every depth of every drafter, and verifies the best few.

    Exit code 0, or 2 for bad input.
    """
    from draftproof.bench.plot import check_plot
    from draftproof.cli.progress import Bar
    from draftproof.tune import report
    from draftproof.tune.plot import draw
    from draftproof.tune.session import DRAFTERS, Settings, run_tune

    settings = Settings(
        target=target,
        drafters=tuple(drafter or DRAFTERS),
        prompts=prompts,
        per_category=per_category,
        max_prompt_tokens=max_prompt_tokens,
        max_tokens=max_tokens,
        temperature=temperature,
        best=best,
        dtype=dtype,
        device=device,
        kernels=cast("Kernels", kernels),
    )
    if plot is not None:
        check_plot(plot)
    with Bar(hidden=quiet or json_ or not sys.stderr.isatty()) as bar:
        result = run_tune(settings, bar.update)
    if plot is not None:
        draw(result, plot)
    if output is not None:
        result.best.write(output)
    if json_:
        typer.echo(json.dumps(report.as_dict(result), ensure_ascii=False, allow_nan=False))
    else:
        from rich.console import Console

        report.show(result, Console(highlight=False))
