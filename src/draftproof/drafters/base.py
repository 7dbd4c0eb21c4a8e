"""What a drafter is: something that proposes tokens and says how it drew them.

Two invariants keep every drafter lossless:
1. Decide whether to draft the next token before drawing it, or keep it.
2. Never throw away a drawn token because of what it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from draftproof.config import EngineSettings
from draftproof.core import Context, Draft, Plan, Proposal, Step
from draftproof.errors import InvalidSetting
from draftproof.models.cache import KVCache


class Drafting(ABC):
    """A drafter at work in one decode loop; what it keeps of one sequence ends with the loop.

    Subclass it: only `propose` has to be written.
    """

    @abstractmethod
    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        """One draft per context, within its plan; an empty draft is always allowed.

        `contexts[i].row` is i: the sequences fill the first rows of the target's cache.
        """
        ...

    def observe(self, context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:
        """See how a round ended: `context.tokens` ends with `step.tokens` already.

        `logits` f[N+1, V] are the target's own, after the anchor and after each node of `draft`,
        rejected ones included; keep copies of what is needed, not the tensor.
        """

    def read(self, context: Context, length: int, most: int) -> int:  # noqa: ARG002
        """The target has read the first `length` tokens of a text: so may the drafter, `most` of
        them in this call. Returns how many are left, for which it is called again.

        One that reads prompts in `propose` only keeps all sequences of the loop waiting for it.
        """
        return 0

    def release(self, row: int) -> None:
        """The sequence in `row` has ended; called before another one moves or is admitted there."""

    def forget(self, row: int) -> None:
        """The same where the sequence was broken off, or another drafter drafted for it: nothing
        of its text may stay."""
        self.release(row)

    def move(self, source: int, target: int) -> None:
        """The sequence in row `source` now lives in row `target`, which was released."""


class DraftingFailed(Exception):
    """Of several drafters one has raised, and only its sequences lose their drafts; the cause is
    what it raised."""

    def __init__(self, rows: frozenset[int]) -> None:
        super().__init__(rows)
        self.rows = rows


class Drafter(Protocol):
    """A way of proposing tokens, shared by any number of decode loops.

    One whose drafts may depend on what other requests were answered, in the same loop or before,
    says so by an attribute `remembers = True`: rules are chosen accordingly. If the memory outlives
    a loop, its method `fresh()` gives the same drafter without it. One with a cache of its own says
    by `cache_bytes_per_token` what that takes. One that ends its drafts where it is less sure than
    `Plan.min_confidence` says so by `stops_in_doubt = True`, and one that keeps to the places of a
    `Plan.tree` by `takes_static_trees = True`. One that only drafts chains may say so by
    `branches = False`: nobody will try trees with it.
    """

    name: str
    proposals: frozenset[Proposal]
    """The ways in which it can draw."""

    def begin(self, target_cache: KVCache) -> Drafting:
        """Start drafting for a loop whose target keeps its state in `target_cache`."""
        ...


DrafterT = TypeVar("DrafterT", bound=Drafter)


def fresh(drafter: DrafterT) -> DrafterT:
    """The drafter without what it has learnt from earlier requests; itself if it learns nothing."""
    made: DrafterT = drafter.fresh() if hasattr(drafter, "fresh") else drafter
    return made


def remembers(drafter: Drafter) -> bool:
    """Whether its drafts may depend on what other requests were answered."""
    return bool(getattr(drafter, "remembers", False))


def dearest(drafter: Drafter) -> Drafter:
    """The part of a drafter that costs most, whose costs stand for the whole; mostly itself."""
    part: Drafter = getattr(drafter, "dearest", drafter)
    return part


def is_hybrid(drafter: Drafter) -> bool:
    """Whether it asks a look-up first, whose limits are in `Plan.lookup`."""
    return hasattr(drafter, "dearest")


def cache_bytes_per_token(drafter: Drafter) -> int:
    """What a drafter's own cache takes for each token of a text; it says so by an attribute."""
    return int(getattr(drafter, "cache_bytes_per_token", 0))


def stops_in_doubt(drafter: Drafter) -> bool:
    """Whether it heeds `Plan.min_confidence`."""
    return bool(getattr(drafter, "stops_in_doubt", False))


def branches(drafter: Drafter) -> bool:
    """Whether a node of its drafts may have several children."""
    return bool(getattr(drafter, "branches", True))


def takes_static_trees(drafter: Drafter) -> bool:
    """Whether it keeps to the places of a `Plan.tree`."""
    return bool(getattr(drafter, "takes_static_trees", False))


def check_plan(drafter: Drafter, settings: EngineSettings) -> None:
    """Refuse a threshold or a static tree for a drafter that would not heed it."""
    if settings.min_confidence > 0 and not stops_in_doubt(drafter):
        raise InvalidSetting(
            f"min_confidence is {settings.min_confidence:g} and the drafter {drafter.name!r} does "
            "not say how sure it is, as only models do; leave min_confidence out"
        )
    if settings.tree is not None and not takes_static_trees(drafter):
        raise InvalidSetting(
            f"a tree was given and the drafter {drafter.name!r} does not choose which places get a "
            "token; leave the tree out, or take a model, suffix or recycling"
        )


def shortened(label: str) -> str:
    """A label that begins with a drafter, its path cut down to the name."""
    name, _, path = label.partition(":")
    return f"{name}:{Path(path).name}" if path else name


def num_shared(held: Sequence[int], tokens: Sequence[int]) -> int:
    """How many ids two texts begin with in common; quick where one only goes on."""
    size = len(held)
    if held == tokens[:size]:
        return size
    pairs = zip(held, tokens, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
