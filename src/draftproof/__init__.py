"""Lossless speculative decoding of Hugging Face language models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.api import Speculator, Stream
    from draftproof.config import EngineSettings
    from draftproof.custom_generate import custom_generate
    from draftproof.errors import DraftproofError
    from draftproof.output import Output, Piece, Sample
    from draftproof.sampling.grammar import Grammar
    from draftproof.sampling.params import SamplingParams
    from draftproof.static_tree import StaticTree
    from draftproof.stats.counters import Stats
    from draftproof.theory import best_depth, expected_speedup, simulate_speedup

__version__ = "0.1.0"

# Names are loaded on first use, so that `draftproof --help` does not wait for torch.
_HOMES = {
    "DraftproofError": "errors",
    "EngineSettings": "config",
    "Grammar": "sampling.grammar",
    "Output": "output",
    "Piece": "output",
    "Sample": "output",
    "SamplingParams": "sampling.params",
    "Speculator": "api",
    "StaticTree": "static_tree",
    "Stats": "stats.counters",
    "Stream": "api",
    "best_depth": "theory",
    "custom_generate": "custom_generate",
    "expected_speedup": "theory",
    "simulate_speedup": "theory",
}

__all__ = [
    "DraftproofError",
    "EngineSettings",
    "Grammar",
    "Output",
    "Piece",
    "Sample",
    "SamplingParams",
    "Speculator",
    "StaticTree",
    "Stats",
    "Stream",
    "best_depth",
    "custom_generate",
    "expected_speedup",
    "simulate_speedup",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
    # importlib returns the submodule even where a name is shared with it.
    value = getattr(importlib.import_module(f"draftproof.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
