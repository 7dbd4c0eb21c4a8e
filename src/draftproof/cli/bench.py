"""`draftproof bench`: how fast, beside plain decoding and transformers, and is it exact?"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from draftproof.cli import options
from draftproof.errors import InvalidSetting

if TYPE_CHECKING:
    from draftproof.bench.matrix import Matrix
    from draftproof.bench.session import Result
    from draftproof.config import Kernels

EXAMPLES = """
Examples:

  draftproof bench

  draftproof bench --drafter self-int8 --depth 2 --depth 8 --peer none

  draftproof bench --depth 4 --width 1 --width 3 --nodes 16

  draftproof bench --drafter self-int8 --tree 1,1,1 --tree 3,2,1

  draftproof bench --prompts questions.jsonl --per-category 2 --by-category

  draftproof bench --peer transformers-lookup --plot bench.png

  draftproof bench --temperature 1 --batch 1 --batch 4 --json
"""

_DRAFTERS = ("self-int8", "ngram")
_PEERS = ("transformers",)


def bench(
    context: typer.Context,
    target: options.Target = options.TARGET,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="What proposes tokens; repeatable. Default: self-int8 and ngram.", metavar="NAME"
        ),
    ] = None,
    depth: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Tokens drafted per round, or auto; repeatable. Default: {options.DEPTH}.",
            metavar="auto|N",
        ),
    ] = None,
    width: Annotated[
        list[int] | None,
        typer.Option(
            help="Children of a drafted token, with each fixed depth; repeatable. Default: 1."
        ),
    ] = None,
    nodes: options.Nodes = None,
    min_confidence: options.MinConfidence = 0.0,
    tree: Annotated[
        list[str] | None,
        typer.Option(
            help="A tree of fixed places, as 4,2,1 (children by level), for every drafter, in "
            "place of depths or beside them; repeatable.",
            metavar="TREE",
        ),
    ] = None,
    settings: options.SettingsFile = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="0 always takes the likeliest token; repeatable. Default: 0."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Prompts decoded side by side; repeatable. Default: 1."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="Who else decodes: transformers, transformers-assisted:PATH, transformers-lookup, "
            "or none; repeatable. Default: transformers.",
            metavar="NAME",
        ),
    ] = None,
    prompts: options.Prompts = None,
    per_category: Annotated[
        int | None, typer.Option(help="Take so many prompts of each workload.")
    ] = None,
    max_prompt_tokens: options.MaxPromptTokens = 1024,
    max_tokens: options.TextTokens = 64,
    repeats: Annotated[int, typer.Option(help="Run everything so many times.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the first prompt when sampling.")] = 0,
    records: Annotated[
        Path | None,
        typer.Option(help="New file for the raw results. Default: bench-DATE-TIME.jsonl here."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the result as a new .png file.")] = None,
    by_category: Annotated[
        bool, typer.Option("--by-category", help="Show each workload by itself, too.")
    ] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    kernels: options.KernelsName = "exact",
    threads: Annotated[
        int | None, typer.Option(help="Threads to compute with. Default: torch's choice.")
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """How fast is a pair on this machine, and are its texts exact? Decodes the same prompts
    plainly, with each drafter, and with transformers' generate, in turn.

    Raw results go to a JSONL file, tables and one JSON object to standard output.
    Exit code 0, 1 when a text of ours is not plain decoding's, 2 for bad input.
    """
    from draftproof.bench.plot import check_plot, draw
    from draftproof.bench.session import Settings, run_bench
    from draftproof.cli.progress import Bar

    if settings is not None:
        given = {"target": target, "nodes": nodes, "drafter": None, "depth": None, "width": None}
        tuned = options.from_settings(context, settings, **given)
        target, nodes = tuned["target"], tuned["nodes"]
        drafter = drafter or [tuned["drafter"]]
        if not tree:
            depth, width = depth or [tuned["depth"]], width or [tuned["width"]]
    chosen = Settings(
        target=target,
        matrix=_matrix(drafter, depth, width, tree, temperature, batch, peer, min_confidence),
        records=records or Path(time.strftime("bench-%Y%m%d-%H%M%S.jsonl")),
        prompts=prompts,
        nodes=nodes,
        per_category=per_category,
        max_prompt_tokens=max_prompt_tokens,
        max_tokens=max_tokens,
        repeats=repeats,
        seed=seed,
        dtype=dtype,
        device=device,
        kernels=cast("Kernels", kernels),
        threads=threads,
    )
    if plot is not None:
        check_plot(plot)
    with Bar(hidden=quiet or json_ or not sys.stderr.isatty()) as progress:
        result = run_bench(chosen, progress.update, progress.stage)
    if plot is not None:
        draw(result, plot)
    if not json_ and not quiet:
        _show(result, by_category)
    report = result.as_dict(by_category) | {"plot": None if plot is None else str(plot)}
    typer.echo(json.dumps(report, ensure_ascii=False, allow_nan=False))
    raise typer.Exit(0 if result.exact else 1)


def _matrix(
    drafters: list[str] | None,
    depths: list[str] | None,
    widths: list[int] | None,
    trees: list[str] | None,
    temperatures: list[float] | None,
    batches: list[int] | None,
    peers: list[str] | None,
    min_confidence: float,
) -> Matrix:
    """The settings as given, defaults where nothing is."""
    from draftproof.bench.matrix import Matrix
    from draftproof.static_tree import StaticTree

    if peers and "none" in peers and len(peers) > 1:
        raise InvalidSetting("--peer none was given with other peers; give it alone, or leave it")
    wanted, usual = tuple(peers or _PEERS), () if trees else (options.DEPTH,)
    return Matrix(
        drafters=tuple(drafters or _DRAFTERS),
        depths=tuple(options.parse_depth(depth) for depth in depths or usual),
        widths=tuple(widths or (1,)),
        trees=tuple(StaticTree.parse(tree) for tree in trees or ()),
        temperatures=tuple(temperatures or (0.0,)),
        batches=tuple(batches or (1,)),
        peers=() if wanted == ("none",) else wanted,
        min_confidence=min_confidence,
    )


def _show(result: Result, by_category: bool) -> None:
    from rich.console import Console

    from draftproof.bench.report import show

    show(result, Console(highlight=False), by_category)
