"""All subcommands under one name; errors of ours become one line and exit code 2."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from draftproof import __version__
from draftproof.cli import check, estimate, generate, models
from draftproof.errors import DraftproofError

app = typer.Typer(
    name="draftproof",
    help="Lossless speculative decoding: the same text, sooner, and proof of it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("generate", epilog=generate.EXAMPLES)(generate.generate)
app.command("estimate", epilog=estimate.EXAMPLES)(estimate.estimate)
app.command("check", epilog=check.EXAMPLES)(check.check)
app.add_typer(models.app, name="models")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"draftproof {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Lossless speculative decoding: the same text, sooner, and proof of it."""


def run() -> None:
    """Run the command line; exit 0, 1 for a failed check, 2 for bad input."""
    try:
        app()
    except DraftproofError as error:
        typer.echo(f"draftproof: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("draftproof: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader went away; silence Python's own complaint at exit.
        sys.stdout = None
        sys.exit(141)
