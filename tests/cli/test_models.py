"""`draftproof models` says what is here, fetches, removes, and fails in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftproof.errors import DownloadFailed
from draftproof.models import store

typer_testing = pytest.importorskip("typer.testing")
models = pytest.importorskip("draftproof.cli.models")


def run(*arguments: str, answer: str | None = None):  # type: ignore[no-untyped-def]
    return typer_testing.CliRunner().invoke(models.app, list(arguments), input=answer)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTPROOF_HOME", str(tmp_path))
    return tmp_path / "models"


@pytest.fixture
def fetched(home: Path) -> Path:
    folder = home / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(2_000_000))
    (folder / store.MANIFEST).write_text('{"date": "2026-01-31"}')
    return folder


@pytest.mark.parametrize("arguments", [(), ("list",)])
def test_the_table_has_every_named_model(fetched: Path, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert set(store.NAMED_MODELS) <= set(lines)
    assert "yes" in lines["smollm2-135m"].split()
    assert "2 MB" in lines["smollm2-135m"]
    assert "Apache-2.0" in lines["qwen-coder-0.5b"]
    assert "no" in lines["qwen-coder-0.5b"].split()
    assert str(fetched.parent) in result.stdout


@pytest.mark.parametrize("arguments", [("--json",), ("list", "--json")])
def test_json_is_one_record_per_model(fetched: Path, arguments: tuple[str, ...]) -> None:
    rows = {row["name"]: row for row in json.loads(run(*arguments).stdout)}
    assert set(rows) == set(store.NAMED_MODELS)
    assert rows["smollm2-135m"]["cached"] is True
    assert rows["smollm2-135m"]["folder"] == str(fetched)
    assert rows["smollm2-135m"]["bytes"] > 2_000_000
    assert rows["qwen-coder-1.5b"]["folder"] is None


def test_fetch_prints_the_folder_alone_on_stdout(fetched: Path) -> None:
    result = run("fetch", "smollm2-135m")
    assert result.exit_code == 0
    assert result.stdout == f"{fetched}\n"


def test_quiet_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(store, "fetch", lambda _name, *, quiet: seen.append(quiet) or "folder")
    run("fetch", "smollm2-135m", "--quiet")
    run("fetch", "smollm2-135m")
    assert seen == [True, False]


@pytest.mark.parametrize("command", ["fetch", "remove"])
def test_an_unknown_name_is_one_sentence_and_status_2(command: str) -> None:
    result = run(command, "gpt-99")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("draftproof: 'gpt-99' is no named model")
    assert "smollm2-135m" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_failed_download_is_said_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str, *, quiet: bool) -> Path:
        raise DownloadFailed(f"no network, quiet={quiet}")

    monkeypatch.setattr(store, "fetch", fail)
    result = run("fetch", "smollm2-135m")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "draftproof: no network, quiet=False\n"


def test_remove_asks_first(fetched: Path) -> None:
    assert run("remove", "smollm2-135m", answer="n\n").exit_code == 1
    assert fetched.is_dir()
    assert run("remove", "smollm2-135m", answer="y\n").exit_code == 0
    assert not fetched.exists()


def test_remove_with_yes_does_not_ask(fetched: Path) -> None:
    result = run("remove", "smollm2-135m", "--yes")
    assert result.exit_code == 0
    assert result.stdout == "removed smollm2-135m, 2 MB\n"
    assert not fetched.exists()


def test_remove_of_what_is_not_here() -> None:
    result = run("remove", "smollm2-135m", "--yes")
    assert result.exit_code == 2
    assert "not on this machine" in result.stderr


@pytest.mark.parametrize("arguments", [(), ("list",), ("fetch",), ("remove",)])
def test_help_has_examples(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--help")
    assert result.exit_code == 0
    assert "draftproof models fetch smollm2-135m" in result.stdout
