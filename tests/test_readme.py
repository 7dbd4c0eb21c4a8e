"""What the README and the examples show is run as it stands there."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))]


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_make_targets_named_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake (\w+)", README))
    assert {"demo", "test"} <= named
    assert named <= set(re.findall(r"^(\w+):", makefile, flags=re.MULTILINE))


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)", README):
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_every_command_parses() -> None:
    """Each documented command line is understood, its options known."""
    from typer.testing import CliRunner

    from draftproof.cli.app import app

    commands = {
        line.split("  #")[0].strip()
        for page in PAGES
        for block in re.findall(r"```(?:sh|console)?\n(.*?)```", page, flags=re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("draftproof ")
    }
    assert commands
    for command in commands:
        words = shlex.split(command)[1:]
        options = [word for word in words if word.startswith("--")]
        shown = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"}).output
        for option in options:
            assert option in shown, f"{command}: no {option}"


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("block", _blocks("python"), ids=lambda block: block.split("\n")[0][:40])
def test_python_snippets_print_what_is_shown(block: str) -> None:
    """A snippet runs, and prints the block of text that follows it word for word."""
    shown = re.search(
        re.escape(block) + r"```\n\n(?:[^\n`]*\n\n)?```text\n(.*?)```", README, re.DOTALL
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert shown is not None, "a snippet without its output"
    assert printed.getvalue().strip() == shown.group(1).strip()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 30
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "identical: False" not in done.stdout
