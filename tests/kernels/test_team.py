"""A team gets through whoever of it comes, and says what went wrong."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

pytest.importorskip("numba")

from draftproof.kernels import team


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_every_worker_that_starts_has_its_own_number(workers: int) -> None:
    lock, seen = threading.Lock(), []

    def work(worker: int) -> None:
        with lock:
            seen.append(worker)

    team.run_together(work, workers)
    assert 0 in seen
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(range(workers))


def test_an_error_is_told_when_all_have_ended() -> None:
    ended = []

    def work(worker: int) -> None:
        if worker == 0:
            raise ValueError("here")
        ended.append(worker)

    with pytest.raises(ValueError, match="here"):
        team.run_together(work, 2)
    assert ended in ([], [1])  # called off before it began, or waited for


def test_threads_that_never_come_are_done_without(monkeypatch) -> None:
    class Busy:
        def submit(self, *_):
            return Future()

    monkeypatch.setattr(team, "_pool", Busy)
    done = []
    team.run_together(done.append, 4)
    assert done == [0]
