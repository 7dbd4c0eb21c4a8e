"""Token recycling: the target's own runners-up, kept in a table of each token's successors.

The target scores every drafted node, also those that are rejected, and each of its rows names
the likeliest successors of one token. The table keeps the last such row per token; a draft is
grown through it. Luo et al. 2024, arXiv 2408.08696. The paper's tree is the same in every round;
here it is grown anew by how often each rank of the table was right so far, so that it fits any
plan and a chain follows the first rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch

from draftproof.core import Context, Draft, Plan, Proposal, Step
from draftproof.drafters.lookup import NO_GUESS, Guess, LookupDrafting, grow
from draftproof.models.cache import KVCache

RANKS = 8
"""Successors that are kept of each token."""
_UNKNOWN = -1
_MEMORY = 32
"""Tokens over which the rates of the ranks are averaged."""


class RecyclingDrafter:
    name = "recycling"
    proposals = frozenset({Proposal.POINT})
    remembers = True
    takes_static_trees = True

    def __init__(self, vocab_size: int) -> None:
        """`vocab_size` is the target's V; a loop's table takes 32 V bytes."""
        self._vocab_size = vocab_size

    def begin(self, target_cache: KVCache) -> RecyclingDrafting:  # noqa: ARG002
        return RecyclingDrafting(self._vocab_size)


class RecyclingDrafting(LookupDrafting):
    """One table for all sequences of a loop; it holds nothing that belongs to one of them."""

    def __init__(self, vocab_size: int) -> None:
        self._table = np.full((vocab_size, RANKS), _UNKNOWN, np.int32)
        # Until something is counted, each rank is right half as often as the one before.
        self._rates = 0.5 ** np.arange(1, RANKS + 1)

    def guess(self, context: Context, plan: Plan) -> Guess:
        if plan.depth == 0:
            return NO_GUESS
        rates = self._rates.tolist()

        def successors(token: int, most: int) -> Iterator[tuple[int, float, int]]:
            for successor, rate in zip(self._table[token, :most].tolist(), rates, strict=False):
                if successor != _UNKNOWN:
                    yield successor, rate, successor

        return grow(context.tokens[-1], successors, plan)

    def observe(self, context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:
        before = context.tokens[-1 - len(step.tokens)]
        self._count([before, *step.tokens])
        kept = min(RANKS, logits.shape[-1])
        best = logits.topk(kept, dim=-1).indices.cpu().numpy()
        # A token that was fed several times keeps its last row.
        self._table[[before, *draft.tokens], :kept] = best

    def _count(self, text: list[int]) -> None:
        """See at which rank of the table each token of `text` stood under the one before it."""
        for token, successor in pairwise(text):
            row = self._table[token]
            if row[0] != _UNKNOWN:
                self._rates += ((row == successor) - self._rates) / _MEMORY
