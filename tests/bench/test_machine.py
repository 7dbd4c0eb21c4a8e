"""What is said of the machine, and the high-water mark of memory."""

from __future__ import annotations

import sys

import pytest
import torch

from draftproof.bench.machine import PeakMemory, describe

CPU = torch.device("cpu")


def test_the_machine_is_described_with_units_that_make_sense():
    machine = describe(CPU)
    assert machine.cpu
    assert machine.threads == torch.get_num_threads()
    assert 0.1 < machine.read_gb_per_s < 10_000
    assert machine.ram_bytes is None or machine.ram_bytes > 1 << 28
    assert {"draftproof", "torch", "transformers"} <= machine.versions.keys()
    assert machine.as_dict()["device"] == "cpu"


@pytest.mark.skipif(sys.platform != "linux", reason="the mark is kept by Linux")
def test_each_peak_is_its_own():
    size = 64 << 20
    memory = PeakMemory(CPU)
    memory.reset()
    before = memory.read()
    if before is None:
        pytest.skip("this system does not let the mark be put back")
    block = torch.ones(size // 4)
    high = memory.read()
    del block
    memory.reset()
    assert high >= before + size * 0.9
    assert memory.read() < high - size * 0.5


def test_a_device_that_does_not_tell_has_no_peak():
    memory = PeakMemory(torch.device("meta"))
    memory.reset()
    assert memory.read() is None


@pytest.mark.gpu
def test_on_a_gpu_its_own_memory_counts():
    memory = PeakMemory(torch.device("cuda"))
    memory.reset()
    before = memory.read()
    block = torch.ones(1 << 20, device="cuda")
    assert memory.read() >= before + (1 << 22)
    del block
