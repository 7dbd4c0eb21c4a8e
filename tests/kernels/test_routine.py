"""Routines are called by address, by each thread of a team, and are kept on disk."""

import importlib.util

import numpy as np
import pytest

pytest.importorskip("numba")

from draftproof.kernels import team
from draftproof.kernels.routine import run

SOURCE = """
import numpy as np
from numba.np.numpy_support import carray

from draftproof.kernels.address import pointer
from draftproof.kernels.routine import Routine
from draftproof.kernels.team import TAKEN, TEAM_SIZE, count

def _add_up(table: int, rows: int, team: int, worker: int) -> None:
    numbers = carray(pointer(table, np.empty(0, np.int64)), (rows,))
    count(carray(pointer(team, numbers), (TEAM_SIZE,)), TAKEN)
    numbers[worker] += 10 * worker + rows

ADD_UP = Routine(_add_up)
"""


def imported(path):
    """What the module at `path` defines, new with every call."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "sums.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_each_worker_of_a_team_calls_it_once(path, workers):
    table = np.zeros(5, np.int64)
    run(imported(path).ADD_UP, table, workers)
    assert table.tolist() == [10 * worker + 5 if worker < workers else 0 for worker in range(5)]


def test_a_table_of_another_type_is_refused(path):
    for table in (np.zeros(5), np.zeros((5, 2), np.int64)[:, 0]):
        with pytest.raises(ValueError, match="expected int64, C-contiguous"):
            run(imported(path).ADD_UP, table, 1)


def test_what_is_on_disk_is_used_until_any_kernel_changes(path, monkeypatch):
    def loaded():
        """Whether the code of a new routine came from the disk."""
        routine = imported(path).ADD_UP
        assert routine.address
        return routine._compiled.cache_hits == 1

    assert not loaded()
    assert loaded()
    monkeypatch.setattr(team, "SOURCES", "another digest")
    assert not loaded()
