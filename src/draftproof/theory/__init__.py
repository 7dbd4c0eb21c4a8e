"""What speculative decoding should gain, before any model is run.

All of it needs the standard library only, except for the simulation that checks the closed forms:
that one is loaded on first use, because it needs numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftproof.theory.acceptance import Acceptance
from draftproof.theory.cost import VerifyCost
from draftproof.theory.decoding import SimulatedDecoding, simulate_decoding
from draftproof.theory.machine import CostCurves
from draftproof.theory.speedup import (
    BestDepth,
    best_depth,
    break_even_acceptance,
    expected_speedup,
    expected_tokens,
    round_cost,
)
from draftproof.theory.trees import best_static_tree

if TYPE_CHECKING:
    from draftproof.theory.simulate import SimulatedSpeedup, simulate_speedup

__all__ = [
    "Acceptance",
    "BestDepth",
    "CostCurves",
    "SimulatedDecoding",
    "SimulatedSpeedup",
    "VerifyCost",
    "best_depth",
    "best_static_tree",
    "break_even_acceptance",
    "expected_speedup",
    "expected_tokens",
    "round_cost",
    "simulate_decoding",
    "simulate_speedup",
]

_LAZY = frozenset({"SimulatedSpeedup", "simulate_speedup"})


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from draftproof.theory import simulate

    return getattr(simulate, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
