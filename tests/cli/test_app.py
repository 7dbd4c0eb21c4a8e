"""The command as a whole: help, what it imports, and how errors leave it."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMANDS = ["generate", "bench", "check", "estimate", "models", "tune"]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["generate", "--help"], ["bench", "--help"]]
)
def test_help_does_not_wait_for_torch(arguments):
    code = (
        "import sys; sys.argv[1:] = " + repr(arguments) + "\n"
        "import draftproof, draftproof.cli\n"
        "try: draftproof.cli.main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'numba', 'scipy', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert "draftproof" in result.stdout


def test_the_check_for_torch_can_fail():
    code = "import draftproof, sys; draftproof.Speculator; assert 'torch' not in sys.modules"
    assert run_python(code).returncode != 0


def test_the_root_lists_every_command(call):
    result = call("--help")
    assert result.code == 0
    for command in COMMANDS:
        assert f" {command} " in result.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples_each_on_a_line_of_its_own(call, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    result = call(command, "--help")
    assert result.code == 0
    examples = result.out.split("Examples:")[1].splitlines()
    shown = [line.strip() for line in examples if line.strip()]
    assert len(shown) >= 3
    assert all("draftproof" in line for line in shown), shown


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (("generat",), "generat"),
        (("--nonsense",), "--nonsense"),
        (("models", "nonsense"), "nonsense"),
    ],
)
def test_unknown_commands_are_one_line_and_exit_code_2(call, line, named):
    result = call(*line)
    assert (result.code, result.out) == (2, "")
    assert named in result.err
    assert "--help" in result.err
    assert result.err.count("\n") == 1


def test_the_entry_point_can_be_called_twice(call):
    assert call("--version") == call("--version")


def test_without_typer_the_missing_extra_is_named():
    code = "import sys; sys.modules['typer'] = None\nimport draftproof.cli; draftproof.cli.main()"
    result = run_python(code)
    assert result.returncode != 0
    assert "pip install 'draftproof[cli]'" in result.stderr
    assert "Traceback" not in result.stderr
