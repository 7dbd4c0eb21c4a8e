"""The stopwatch, on a clock that the test moves."""

from __future__ import annotations

import torch

from draftproof.stats import timing


def test_laps_add_up_by_phase(monkeypatch):
    times = iter([10.0, 11.0, 13.0, 13.5, 20.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(times))
    watch = timing.Stopwatch(torch.device("cpu"))
    for phase in ("draft", "verify", "draft", "rest"):
        watch.lap(phase)
    assert dict(watch.seconds) == {"draft": 1.5, "verify": 2.0, "rest": 6.5}


def test_a_gpu_is_waited_for_before_the_clock_is_read(monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: events.append("read") or 0.0)
    timing.Stopwatch(torch.device("cuda")).lap("verify")
    assert events == ["wait", "read"] * 2
