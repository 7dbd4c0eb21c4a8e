"""What a bench ran on: processor, memory and its speed, versions; and peak memory per run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import statistics
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("draftproof", "torch", "transformers", "numpy", "numba")
_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware and software behind a table of speeds."""

    cpu: str
    cores: int
    """Logical processors that this process may use."""
    threads: int
    """Threads that torch and our kernels compute with."""
    ram_bytes: int | None
    read_gb_per_s: float
    """Measured speed of reading memory with these threads, in 10^9 bytes per second."""
    device: str
    """The processor that decodes: "cpu", or the GPU's name."""
    python: str
    versions: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def describe(device: torch.device) -> Machine:
    """This machine; takes about a second, for the memory's speed is measured."""
    return Machine(
        cpu=_cpu_name(),
        cores=_cores(),
        threads=torch.get_num_threads(),
        ram_bytes=_ram_bytes(),
        read_gb_per_s=_read_speed(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        python=platform.python_version(),
        versions=_versions(),
    )


class PeakMemory:
    """Most memory in use since `reset`, in bytes: of the process on a CPU, of the tensors on CUDA.

    On a CPU that is Linux only: the kernel keeps the mark and lets us put it back.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        with suppress(OSError):
            (_PROC / "clear_refs").write_text("5")

    def read(self) -> int | None:
        """None where the system does not tell."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        if self._device.type != "cpu" or not os.access(_PROC / "clear_refs", os.W_OK):
            return None
        with suppress(OSError):
            mark = re.search(r"VmHWM:\s+(\d+) kB", (_PROC / "status").read_text())
            return int(mark[1]) * 1024 if mark else None
        return None


def _cpu_name() -> str:
    with suppress(OSError):
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _ram_bytes() -> int | None:
    with suppress(AttributeError, OSError, ValueError):  # no such question on this system
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _cache_bytes() -> int:
    """The last-level cache, or a large one where the system does not tell."""
    with suppress(OSError, ValueError):
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text.removesuffix("K")) * 1024
    return 64 << 20


def _read_speed(repeats: int = 7) -> float:
    """Median speed of adding up numbers that no cache holds, in 10^9 bytes per second."""
    numbers = torch.ones(max(4 * _cache_bytes(), 128 << 20) // 4)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - start)
    return numbers.numel() * 4 / statistics.median(seconds) / 1e9


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
