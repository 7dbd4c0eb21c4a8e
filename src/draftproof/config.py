"""Settings and limits: the only home of defaults."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.errors import InvalidSetting

DEFAULT_TARGET = "smollm2-135m"
DEFAULT_DRAFTER = "self-int8"
DEFAULT_DEPTH = 4
MAX_DEPTH = 64
MAX_NODES = 64
"""Most tokens of one draft; a tree may have more of them than it is deep."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How one decode loop runs. None of these changes what is generated."""

    depth: int = DEFAULT_DEPTH
    """Tokens drafted per round, 0 to `MAX_DEPTH`; 0 is plain decoding."""
    max_batch: int = 32
    """Sequences decoded side by side; the rest wait for a free row."""
    prefill_chunk: int = 512
    """Prompt tokens fed per forward pass while a prompt is read."""
    max_cache_bytes: int = 8 << 30
    """Upper limit of one key/value cache; a larger request is refused before it starts."""

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= MAX_DEPTH:
            raise InvalidSetting(
                f"depth is {self.depth}; give 0 (plain decoding) to {MAX_DEPTH}, 3 to 8 is usual"
            )
        for name in ("max_batch", "prefill_chunk", "max_cache_bytes"):
            if getattr(self, name) < 1:
                raise InvalidSetting(f"{name} is {getattr(self, name)}; give at least 1")
