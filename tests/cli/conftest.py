"""A tiny saved model with a byte-level tokenizer, and the command line run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from tests.test_api import tokenizer
from tests.tiny import tiny_model

pytest.importorskip("typer")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "tiny"
    model = tiny_model("llama", max_position_embeddings=512)
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Run `draftproof ARGUMENTS`, as the console script does."""
    from draftproof.cli import main

    def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["draftproof", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin), encoding="utf-8"))
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return Result(ended.value.code or 0, out, err)

    return run
