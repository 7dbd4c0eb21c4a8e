"""The `draftproof` command; one file per subcommand, nothing heavy imported before it is needed."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        sys.exit(
            "the draftproof command needs typer and rich, which are not installed; "
            "run: pip install 'draftproof[cli]'"
        )
    from draftproof.cli.app import run

    run()
