"""Settings and limits: the only home of defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from draftproof.errors import InvalidSetting

DEFAULT_TARGET = "smollm2-135m"
DEFAULT_DRAFTER = "self-int8"
DEFAULT_DEPTH: Depth = "auto"
MAX_DEPTH = 64
MAX_NODES = 64
"""Most tokens of one draft; a tree may have more of them than it is deep."""

Kernels = Literal["exact", "fastest"]
Depth: TypeAlias = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How models are run and decoded. None of these changes the distribution of the text."""

    depth: Depth = DEFAULT_DEPTH
    """Tokens drafted per round, 0 to `MAX_DEPTH`; 0 is plain decoding. "auto" measures what passes
    cost here and drafts as deep as pays on each text (`control/adaptive.py`)."""
    width: int = 1
    """Children of a drafted token where the drafter can branch, 1 to `MAX_NODES`; 1 drafts a chain.
    For a fixed depth: "auto" chooses the width, too."""
    nodes: int | None = None
    """Most tokens of one draft, 1 to `MAX_NODES`; None for as many as fit."""
    max_batch: int = 32
    """Sequences decoded side by side; the rest wait for a free row."""
    prefill_chunk: int = 512
    """Prompt tokens fed per forward pass while a prompt is read."""
    kernels: Kernels = "exact"
    """On a CPU, for a model that `from_pretrained` loads. "exact": a row of a linear layer has the
    same bits whatever rows are computed beside it, so greedy texts are equal to the token.
    "fastest": where a quick measurement finds torch's product faster, that is used, and a draft
    may decide a near-tie."""
    max_cache_bytes: int = 8 << 30
    """Upper limit of one key/value cache; a larger request is refused before it starts."""

    def __post_init__(self) -> None:
        if self.depth != "auto" and not _is_count(self.depth, 0, MAX_DEPTH):
            raise InvalidSetting(
                f"depth is {self.depth!r}; give 'auto', or 0 (plain decoding) to {MAX_DEPTH}, "
                "3 to 8 is usual"
            )
        for name, count in (("width", self.width), ("nodes", self.nodes)):
            if count is not None and not _is_count(count, 1, MAX_NODES):
                raise InvalidSetting(f"{name} is {count!r}; give 1 to {MAX_NODES}")
        if self.depth == "auto" and self.width != 1:
            raise InvalidSetting(
                f"width is {self.width} and depth 'auto', which chooses the width as well; give a "
                "depth with it, or leave it out"
            )
        for name in ("max_batch", "prefill_chunk", "max_cache_bytes"):
            if getattr(self, name) < 1:
                raise InvalidSetting(f"{name} is {getattr(self, name)}; give at least 1")
        if self.kernels not in get_args(Kernels):
            raise InvalidSetting(f"kernels is {self.kernels!r}; give 'exact' or 'fastest'")


def _is_count(value: object, smallest: int, largest: int) -> bool:
    return isinstance(value, int) and smallest <= value <= largest
