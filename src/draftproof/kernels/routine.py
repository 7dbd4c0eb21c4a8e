"""Routines: compiled functions that others call by address.

numba compiles a function into each that calls it, and that one into its callers: what a decoder is
made of would be compiled five times for each type of weights. A routine takes whole numbers alone,
addresses among them, and is compiled once, by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import prange, types
from numba.core.ccallback import CFunc

from draftproof.kernels.address import INTEGERS, address_of
from draftproof.kernels.team import COMPILED, Cache, cgutils, compiled, intrinsic, new_team


class Routine:
    """A function of whole numbers, i64, that returns nothing.

    What one raises is printed and ends it early: the rule of numba's for functions without Python.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    @cached_property
    def _compiled(self) -> Any:
        numbers = (types.intp,) * self._function.__code__.co_argcount
        made: Any = CFunc(self._function, (numbers, types.void), {}, {**COMPILED, "nopython": True})
        with suppress(RuntimeError):  # no folder can be written
            made._cache = Cache(self._function)  # type: ignore[no-untyped-call]
        made.compile()
        return made

    @property
    def address(self) -> int:
        """Where its code lies in this process; the first to ask waits until it is compiled."""
        found: int = self._compiled.address
        return found


@intrinsic
def call(_typing: Any, _address: Any, numbers: Any) -> Any:
    """Call the routine at an address with a tuple of numbers, i64."""

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        given = cgutils.unpack_tuple(builder, values[1])
        kind = ir.FunctionType(ir.VoidType(), [number.type for number in given])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), given)
        return context.get_dummy_value()

    given: Any = types.UniTuple(types.intp, len(numbers))  # type: ignore[no-untyped-call]
    return types.void(types.intp, given), generate


@compiled()
def _run_alone(job: int, table: int, rows: int, team: int) -> None:
    call(job, (table, rows, team, 0))


@compiled(parallel=True)
def _run_team(job: int, table: int, rows: int, team: int, workers: int) -> None:
    """OpenMP's own threads, which torch's calls leave waiting for more."""
    for worker in prange(workers):
        call(job, (table, rows, team, np.int64(worker)))


def run(job: Routine, table: Any, workers: int) -> None:
    """Let each thread of a new team of `workers` call `job`.

    It is given the address of the `table`, an array of i64, its number of rows, the address of the
    team's counters, i64[TEAM_SIZE], and the number of the worker, from 0 on.
    """
    team = new_team()
    places = address_of(table, INTEGERS), len(table), address_of(team, INTEGERS)
    if workers == 1:  # no threads to wait for
        _run_alone(job.address, *places)
    else:
        _run_team(job.address, *places, workers)
