"""Imports point down: a module may import from its own layer's row in the table, never above."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "draftproof"
FILES = sorted(SOURCE.rglob("*.py"))

# Rooms (folders or modules) and those each may import from, as docs/structure.md draws them.
BASE = {"errors", "core", "config", "static_tree", "table_file"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "core": {"config", "static_tree"},
    "static_tree": {"config", "errors"},
    "config": {"errors"},
    "table_file": set(),
    "sampling": BASE,
    "theory": BASE,
    "kernels": BASE,
    "models": BASE | {"kernels"},
    "verification": BASE | {"sampling"},
    "drafters": BASE | {"sampling", "models"},
    "stats": BASE,
    "control": BASE | {"stats", "theory"},
    "decode": BASE
    | {"sampling", "models", "drafters", "verification", "control", "stats", "theory"},
    "engine": BASE
    | {"sampling", "models", "drafters", "verification", "control", "stats", "theory", "decode"},
    "output": BASE | {"stats"},
    "tuned": BASE,
}
BELOW_API = set(ALLOWED)
ALLOWED |= {
    "api": BELOW_API,
    "custom_generate": BELOW_API | {"api"},
    "checks": BELOW_API | {"api"},
    "bench": BASE | {"sampling", "models", "drafters", "output", "api", "checks"},
    "tune": BELOW_API | {"api", "bench"},
    "service": BELOW_API | {"api"},
    "server": BELOW_API | {"api", "service", ""},
    "cli": BELOW_API | {"api", "checks", "bench", "tune", "service", "server", ""},
    "": {"api", "custom_generate", *BELOW_API},
}

# Packages that only some files may touch.
TRANSFORMERS = {
    "models/hf.py",
    "models/load.py",
    "models/probe.py",
    "custom_generate.py",
    "bench/peers/transformers.py",
}
# Composition roots reach beyond their room.
REGISTRIES = {"drafters/registry.py", "verification/registry.py"}
# The only modules of these rooms that decode may know.
PROTOCOLS = {"drafters": "base", "verification": "base", "control": "base"}
# The bench loads models and makes drafters; how they work is not its business.
DOORS = {"drafters": {"base", "registry"}, "models": {"base", "load"}}


def _imports(path: Path) -> list[tuple[str, int, bool]]:
    """(module, line, only for type checking) of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "draftproof" or (node.module or "").count(".") == 1:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [(name, node.lineno, id(node) in typing_only) for name in names]
    return found


def _room(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem.replace("__init__", "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    room, relative = _room(path), path.relative_to(SOURCE).as_posix()
    for module, line, typing_only in _imports(path):
        if not module.startswith("draftproof") or typing_only or relative in REGISTRIES:
            continue
        parts = module.split(".")
        other = parts[1] if len(parts) > 1 else ""
        if other.startswith("__"):
            other = ""
        if other != room:
            assert other in ALLOWED[room], f"{relative}:{line} imports {module}, which is above it"
        if room == "decode" and other in PROTOCOLS:
            assert parts[2] == PROTOCOLS[other], f"{relative}:{line} may know only the protocol"
        if room == "bench" and other in DOORS:
            assert parts[2] in DOORS[other], f"{relative}:{line} may know only {DOORS[other]}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_transformers_stays_in_its_files(path: Path) -> None:
    relative = path.relative_to(SOURCE).as_posix()
    for module, line, typing_only in _imports(path):
        if module.split(".")[0] == "transformers" and not typing_only:
            assert relative in TRANSFORMERS, f"{relative}:{line} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        first = node.body[0]
        docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        start = first.end_lineno if docstring and len(node.body) > 1 else node.body[0].lineno
        assert (node.end_lineno or 0) - (start or 0) <= 40, f"{path.name}: {node.name} is too long"


def test_structure_page_names_every_room() -> None:
    page = (SOURCE.parents[1] / "docs" / "structure.md").read_text(encoding="utf-8")
    rooms = {_room(path) for path in FILES} - {""}
    missing = {room for room in rooms if not re.search(rf"\b{room}\b", page)}
    assert not missing, f"docs/structure.md does not mention {sorted(missing)}"
