"""What one verification pass over several rows costs; knows nothing of acceptance.

The unit is the target's pass over one row, so the cost of one row is 1 by definition. "Free"
verification, the same cost whatever the width, is the assumption of Leviathan et al. 2023
(arXiv 2211.17192). It holds where a pass is bound by reading the weights, and fails on most CPUs
and in large batches: measure there.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from draftproof.errors import InvalidSetting
from draftproof.theory.ranges import LARGEST_COST, SMALLEST_COST, check_count, is_number

VerifyCost: TypeAlias = Callable[[int], float] | Mapping[int, float] | Sequence[tuple[int, float]]
"""Cost of n rows relative to one row: a function of n, or measured points n -> cost."""

_MAX_ROWS = 1 << 31
_ONE_ROW_TOLERANCE = 1e-6


def cost_curve(verify_cost: VerifyCost | None) -> Callable[[int], float]:
    """Return the function n rows -> cost relative to one row that `verify_cost` describes.

    `None` is free verification. Measured points are joined by straight lines; beyond the last one
    the line through the last two goes on, level where it would fall, for no pass gets cheaper by
    widening. The point (1 row, 1) may be left out.

    Raises `InvalidSetting` for a cost that is not positive and finite, a cost of one row that is
    not 1, a row count below 1 or given twice, or points of which none lies beyond one row.
    """
    if verify_cost is None:
        return _free_cost
    if isinstance(verify_cost, Mapping):
        return _through_points(verify_cost.items())
    if callable(verify_cost):
        return _checked_function(verify_cost)
    return _through_points(verify_cost)


def _free_cost(_num_rows: int) -> float:
    return 1.0


def _checked_function(function: Callable[[int], float]) -> Callable[[int], float]:
    _check_one_row(_check_cost(1, function(1)))

    def cost(num_rows: int) -> float:
        return 1.0 if num_rows == 1 else _check_cost(num_rows, function(num_rows))

    return cost


def _through_points(points: Iterable[tuple[int, float]]) -> Callable[[int], float]:
    return line_through(_read_points(points))


def line_through(points: Mapping[int, float]) -> Callable[[float], float]:
    """The function that joins `points` by straight lines.

    Below the first point it is level, beyond the last one the line through the last two goes on,
    level where it would fall.
    """
    places = sorted(points)
    values = [points[place] for place in places]
    if len(places) == 1:
        return lambda _place: values[0]

    def line(place: float) -> float:
        if place <= places[0]:
            return values[0]
        right = min(bisect_left(places, place, lo=1), len(places) - 1)
        left = right - 1
        slope = (values[right] - values[left]) / (places[right] - places[left])
        if place > places[right]:
            return values[right] + max(slope, 0.0) * (place - places[right])
        return values[left] + slope * (place - places[left])

    return line


def _read_points(points: Iterable[tuple[int, float]]) -> dict[int, float]:
    table: dict[int, float] = {}
    try:
        pairs = [(rows, cost) for rows, cost in points]
    except (TypeError, ValueError):
        raise InvalidSetting(
            f"verify_cost is {points!r}; give a function of the number of rows, a mapping "
            "rows -> cost, or a list of pairs (rows, cost), such as {1: 1.0, 5: 1.4}"
        ) from None
    for given_rows, cost in pairs:
        rows = check_count("a row count of verify_cost", given_rows, 1, _MAX_ROWS)
        if rows in table:
            raise InvalidSetting(
                f"verify_cost gives {rows} rows twice; give one cost per row count, "
                "the median of its measurements"
            )
        table[rows] = _check_cost(rows, cost)
    _check_one_row(table.get(1, 1.0))
    table[1] = 1.0
    if len(table) == 1:
        raise InvalidSetting(
            "verify_cost has no point beyond 1 row; measure at least one wider pass, "
            "or leave verify_cost out for free verification"
        )
    return table


def _check_cost(num_rows: int, cost: float) -> float:
    if not is_number(cost) or not SMALLEST_COST <= cost <= LARGEST_COST:
        raise InvalidSetting(
            f"verify_cost of {num_rows} rows is {cost!r}; give the time of one pass over "
            f"{num_rows} rows divided by that of one row, a number "
            f"from {SMALLEST_COST:g} to {LARGEST_COST:g}"
        )
    return float(cost)


def _check_one_row(cost: float) -> None:
    if not math.isclose(cost, 1.0, rel_tol=_ONE_ROW_TOLERANCE):
        raise InvalidSetting(
            f"verify_cost of 1 row is {cost}; costs are relative to one row, which costs 1; "
            f"divide every cost by {cost}"
        )
