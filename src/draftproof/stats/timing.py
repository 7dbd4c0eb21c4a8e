"""Where time goes: laps by phase on one monotonic clock."""

from __future__ import annotations

import time
from collections import defaultdict

import torch


class Stopwatch:
    """Adds up seconds by phase; waits for a GPU before it reads the clock."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._last = self._now()
        self.seconds: dict[str, float] = defaultdict(float)

    def lap(self, phase: str) -> None:
        """Book the time since the last lap on `phase`."""
        now = self._now()
        self.seconds[phase] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()
