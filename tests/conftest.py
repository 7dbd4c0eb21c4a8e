"""What every test shares."""

from __future__ import annotations

import os

# One test process for each core: threads of theirs, and of what they start, would wait for each
# other at every small matrix. Read when torch is imported; tests of threads ask for their number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu are skipped where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
