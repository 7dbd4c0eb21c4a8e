"""Compiled functions are kept on disk until a kernel changes."""

import pytest

pytest.importorskip("numba")

from draftproof.kernels import team
from tests.kernels.test_routine import imported

SOURCE = """
from draftproof.kernels.team import compiled

@compiled()
def double(x):
    return 2 * x
"""


def compilations(path) -> int:
    """How many functions had to be compiled to call the one in `path`."""
    module = imported(path)
    assert module.double(3) == 6
    return sum(module.double.stats.cache_misses.values())


def test_what_is_on_disk_is_used_until_any_kernel_changes(tmp_path, monkeypatch):
    path = tmp_path / "doubles.py"
    path.write_text(SOURCE, encoding="utf-8")
    assert compilations(path) == 1
    assert compilations(path) == 0
    monkeypatch.setattr(team, "SOURCES", "another digest")
    assert compilations(path) == 1
