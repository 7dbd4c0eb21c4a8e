"""Range checks of the theory's settings; knows no formula, only what a value may be.

Each check returns the value in its plain Python type or raises `InvalidSetting`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, repeat
from numbers import Real
from operator import index
from typing import TypeGuard

from draftproof.errors import InvalidSetting

MAX_THEORY_DEPTH = 10_000
"""Deepest draft the formulas accept: their work grows with the depth."""
SMALLEST_COST, LARGEST_COST = 1e-9, 1e9
"""Relative costs between which no formula over- or underflows."""


def check_count(name: str, value: int, smallest: int, largest: int) -> int:
    """Return `value` as an int in `smallest` to `largest`."""
    advice = f"give a whole number from {smallest} to {largest}"
    try:
        count = index(value)
    except TypeError:
        raise InvalidSetting(f"{name} is {value!r}, not a whole number; {advice}") from None
    if isinstance(value, bool) or not smallest <= count <= largest:
        raise InvalidSetting(f"{name} is {value!r}; {advice}")
    return count


def check_depth(value: int, name: str = "depth") -> int:
    """Return a number of drafted tokens per round, 0 (plain decoding) or more."""
    return check_count(name, value, 0, MAX_THEORY_DEPTH)


def check_rate(name: str, value: float) -> float:
    """Return a probability, 0 to 1; NaN is refused."""
    if not is_number(value) or not 0 <= value <= 1:
        raise InvalidSetting(
            f"{name} is {value!r}; give a probability from 0 to 1: accepted over drafted tokens"
        )
    return float(value)


def check_rates(value: float | Iterable[float], depth: int) -> tuple[float, ...]:
    """Return the `depth` rates A_1..A_depth, from one rate for all or from a longer list."""
    if is_number(value):
        return tuple(repeat(check_rate("acceptance_rate", value), depth))
    rates = rates_by_position(value)
    if len(rates) < depth:
        raise InvalidSetting(
            f"acceptance_rate has {len(rates)} positions for depth {depth}; "
            f"give one rate per drafted position, or a depth of at most {len(rates)}"
        )
    return tuple(islice(rates, depth))


def rates_by_position(value: float | Iterable[float]) -> tuple[float, ...]:
    """Return every rate of a list of per-position rates, each checked."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidSetting(
            f"acceptance_rate is {value!r}; give a probability from 0 to 1, "
            "or a list with one probability per drafted position"
        )
    return tuple(check_rate(f"acceptance_rate[{i}]", rate) for i, rate in enumerate(value))


def check_cost_ratio(value: float) -> float:
    """Return the time of one drafter step over that of one target step."""
    if not is_number(value) or not 0 <= value <= LARGEST_COST:
        raise InvalidSetting(
            f"cost_ratio is {value!r}; give the time of one drafter step divided by the time of "
            f"one target step, a number from 0 to {LARGEST_COST:g}"
        )
    return float(value)


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is one real number; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool)
