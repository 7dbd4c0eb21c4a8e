"""Which product is faster here, ours or torch's: measured once for a shape and a number of rows.

Torch sums a row in another order, and in one that depends on the rows beside it. So this choice
gives up equal bits, and with them equal texts where two tokens nearly tie; it is made only when it
is asked for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path

import torch
import torch.nn.functional as F

from draftproof.kernels.modules import MAX_ROWS, FewRowLinear, is_available
from draftproof.table_file import read_table, write_table

MEASURED_ROWS = (1, 2, 4, 8, MAX_ROWS)
"""A number of rows between two of these is treated like the larger one."""
_REPEATS = 7

Timing = tuple[float, float]
"""Seconds of our product and of torch's."""


def choose(layers: Iterable[FewRowLinear], path: Path) -> int:
    """Let each layer leave to torch the numbers of rows at which torch is faster.

    What was measured on this machine before is read from the JSON file `path`, what is new is
    added to it. Returns how many pairs of shape and rows are torch's.
    """
    if not is_available():
        return 0
    by_shape: dict[str, list[FewRowLinear]] = {}
    for layer in layers:
        by_shape.setdefault(f"{layer.out_features}x{layer.in_features}", []).append(layer)
    machine = _machine()
    table = read_table(path)
    known = table.setdefault(machine, {})
    new = [shape for shape in by_shape if shape not in known]
    for shape in new:
        known[shape] = {str(rows): _measure(by_shape[shape], rows) for rows in MEASURED_ROWS}
    if new:
        write_table(path, table)
    count = 0
    for shape, same in by_shape.items():
        slower = [int(rows) for rows, (ours, theirs) in known[shape].items() if theirs < ours]
        count += len(slower)
        chosen = frozenset(rows for rows in range(1, MAX_ROWS + 1) if _measured(rows) in slower)
        for layer in same:
            layer.torch_rows = chosen
    return count


def _measured(rows: int) -> int:
    return next(measured for measured in MEASURED_ROWS if measured >= rows)


@torch.inference_mode()
def _measure(layers: list[FewRowLinear], rows: int) -> Timing:
    """Medians over layers in turn, whose weights push each other out of the caches."""
    # Numbers of their own: the user's generator stays where it is.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, layers[0].in_features, generator=generator, dtype=torch.float32)
    turns = cycle(layers)
    both: tuple[list[float], list[float]] = ([], [])
    products: tuple[Callable[[FewRowLinear], object], ...] = (
        lambda layer: layer.by_kernel(x),
        lambda layer: F.linear(x, layer.weight, layer.bias),
    )
    for repeat in range(_REPEATS + 1):
        for seconds, product in zip(both, products, strict=True):
            layer = next(turns)
            start = time.perf_counter()
            product(layer)
            if repeat:  # the first may compile
                seconds.append(time.perf_counter() - start)
    return statistics.median(both[0]), statistics.median(both[1])


def _machine() -> str:
    """What the measurements hold for."""
    import numba
    from llvmlite import binding  # type: ignore[import-untyped]

    from draftproof.kernels.team import SOURCES

    threads = torch.get_num_threads()
    cpu = binding.get_host_cpu_name()
    versions = f"torch {torch.__version__}, numba {numba.__version__}, kernels {SOURCES[:8]}"
    return f"{cpu}, {threads} threads, {versions}"
