"""Threads that work through a list of items together, and how numba compiles for them.

One call holds a whole forward pass. Its work is a list of items in phases; every phase
needs the one before it. A thread takes the next item, asks the memory for that item's weights
while it waits for the phase before to end, and computes. So memory is read without a pause, where
a parallel loop per matrix would let it rest at every loop's end. Since items are taken in order,
whoever holds the earliest unfinished item can always go on: any number of running threads, one
included, gets through.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numba.core.cgutils
import numba.extending
import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core.caching import FunctionCache

# Typed loosely: what numba says about its own types differs from release to release.
cgutils: Any = numba.core.cgutils
intrinsic: Callable[[Callable[..., Any]], Any] = numba.extending.intrinsic(prefer_literal=True)
njit: Any = numba.njit

LINE_BYTES = 64
# Places of a team's counters, each on a cache line (or two, which are fetched in pairs) of its own.
TAKEN, FINISHED, READY = 0, 16, 32
TEAM_SIZE = 48
_SPINS_BEFORE_YIELD = 2000

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_X86 = binding.get_process_triple().startswith(("x86_64", "i686"))


def _digest() -> str:
    """Of all kernels as they are written."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


SOURCES = _digest()
"""Read before anything is compiled from them."""


COMPILED = {"error_model": "numpy"}
"""Dividing by 0 gives what IEEE says: a thread that stopped there would leave the others waiting.
"""


class Cache(FunctionCache):
    """numba's disk cache, which notices a change of any kernel: by itself it looks at the file of a
    function only, and the functions that it calls are compiled into it."""

    def _index_key(self, *args: Any) -> tuple[Any, ...]:
        key: tuple[Any, ...] = super()._index_key(*args)  # type: ignore[no-untyped-call]
        return (*key, SOURCES)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """numba's njit with the disk cache, or without where no folder can be written."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher: Any = njit(**COMPILED, **options)(function)
        with suppress(RuntimeError):  # no folder can be written
            dispatcher._cache = Cache(function)  # type: ignore[no-untyped-call]
        made: Callable[..., Any] = dispatcher
        return made

    return decorate


def inner(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`compiled` for what compiled functions alone call, and Python cannot: the ways in from there
    take as long to compile as the function."""
    return compiled(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def prefetch_line(builder: Any, pointer: Any) -> None:
    """Ask for the cache line at pointer, to be put in the second-level cache."""
    place = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [place.type, _I32, _I32, _I32])
    name = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
    # For reading; locality 2, since 3 (first level) evicts the tokens and measured half as fast.
    builder.call(name, [place, _I32(0), _I32(2), _I32(1)])


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


@intrinsic
def count(_typing: Any, counters: Any, _index: Any) -> Any:
    """Add one to counters[index], i64, for all threads and return what it was."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _place(context, builder, signature.args[0], *values)
        return builder.atomic_rmw("add", place, _I64(1), "acq_rel")

    return types.intp(counters, types.intp), generate


@intrinsic
def look(_typing: Any, counters: Any, _index: Any) -> Any:
    """counters[index], i64, and with it all that was written before it was published."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _place(context, builder, signature.args[0], *values)
        return builder.load_atomic(place, "acquire", 8)

    return types.intp(counters, types.intp), generate


@intrinsic
def publish(_typing: Any, counters: Any, _index: Any, _value: Any) -> Any:
    """Set counters[index], i64, for all threads to see after everything written before."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _place(context, builder, signature.args[0], *values[:2])
        builder.store_atomic(values[2], place, "release", 8)
        return context.get_dummy_value()

    return types.void(counters, types.intp, types.intp), generate


@intrinsic
def _prefetch(_typing: Any, _address: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        prefetch_line(builder, builder.inttoptr(values[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def _pause(_typing: Any) -> Any:
    """Tell the core that this thread is waiting in a loop."""

    def generate(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        if _X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _yield_core(_typing: Any) -> Any:
    """Let another thread run here, so that a team larger than its cores still moves on."""

    def generate(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        if os.name == "posix":
            kind = ir.FunctionType(_I32, [])
            function = cgutils.get_or_insert_function(builder.module, kind, "sched_yield")
            builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


@inner()
def wait(counters: Any, phase: int, address: int, num_bytes: int) -> None:
    """Wait until `phase` phases have ended, fetching num_bytes at `address` into the cache."""
    fetched = 0
    spins = 0
    while look(counters, READY) < phase:
        if fetched < num_bytes:
            _prefetch(address + fetched)
            fetched += LINE_BYTES
        else:
            spins += 1
            _pause()
            if spins % _SPINS_BEFORE_YIELD == 0:
                _yield_core()


def new_team() -> Any:
    """Counters of a team that has nothing taken, finished or ready: i64[TEAM_SIZE]."""
    return np.zeros(TEAM_SIZE, np.int64)
