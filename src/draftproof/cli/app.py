"""All subcommands under one name; errors of ours become one line and exit code 2."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer

from draftproof import __version__
from draftproof.cli import bench, check, estimate, generate, models, serve, tune
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
app.command("bench", epilog=bench.EXAMPLES)(bench.bench)
app.command("tune", epilog=tune.EXAMPLES)(tune.tune)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
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
        code = app(standalone_mode=False, prog_name="draftproof")
    except DraftproofError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except typer.Abort:
        _fail("nothing was done", 1)
    except Exception as error:
        # Typer has a click of its own in some versions, so its errors are known by their parts.
        if not hasattr(error, "format_message"):
            raise
        _fail(_usage_error(error), 2)
    if code == 130:
        _fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _usage_error(error: Any) -> str:
    """One line for what the parser of arguments refused."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "draftproof"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; see {command} --help"


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"draftproof: {message}", err=True)
    sys.exit(code)
