"""Cost curves of machines that differ in what drafting and wide passes cost."""

from __future__ import annotations

from draftproof.theory.machine import CostCurves

STEP = 0.02
"""Seconds of one plain pass."""


def machine(draft, slope, jump=0.0, **others):
    """Drafting a level costs `draft` steps, each further column `slope`, more than 5 a `jump`."""
    verify = {n: STEP * (1 + slope * (n - 1) + jump * (n > 5)) for n in (1, 2, 3, 5, 6, 9, 17, 33)}
    return CostCurves(verify, {1: {1: STEP * draft, 4: 4 * STEP * draft}}, **others)


MACHINES = {
    "lookup": machine(0.001, 0.02),
    "int8 on a CPU": machine(0.34, 0.022),
    "small drafter on a GPU": machine(0.1, 0.001),
    "dear drafter": machine(0.6, 0.05),
    "dear columns": machine(0.05, 0.3),
    "a jump at six columns": machine(0.05, 0.02, jump=0.5),
}
