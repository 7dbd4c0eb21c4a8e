"""What a drafter is: something that proposes tokens and says how it drew them.

Two invariants keep every drafter lossless:
1. Decide whether to draft the next token before drawing it, or keep it.
2. Never throw away a drawn token because of what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.models.cache import KVCache


class Drafting(Protocol):
    """A drafter at work in one decode loop; all its state lives here and ends with the loop."""

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        """One draft per context, at most `plan.depth` deep; an empty draft is always allowed.

        `contexts[i].row` is i: the sequences fill the first rows of the target's cache.
        """
        ...

    def move(self, source: int, target: int) -> None:
        """The sequence in row `source` now lives in row `target`; what was there has ended."""
        ...


class Drafter(Protocol):
    """A way of proposing tokens, shared by any number of decode loops."""

    name: str
    proposals: frozenset[Proposal]
    """The ways in which it can draw."""

    def begin(self, target_cache: KVCache) -> Drafting:
        """Start drafting for a loop whose target keeps its state in `target_cache`."""
        ...
