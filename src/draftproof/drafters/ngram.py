"""N-gram lookup: what followed the last time these words were seen.

The longest suffix of the sequence, up to `max_match` tokens, that occurs earlier is looked up;
of several occurrences of that length the most recent wins, and the tokens behind it are the
draft. Prompt lookup decoding (Saxena 2023). Costs no model at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.drafters.base import Drafting
from draftproof.errors import InvalidSetting
from draftproof.models.cache import KVCache


class NgramDrafter(Drafting):
    name = "ngram"
    proposals = frozenset({Proposal.POINT})

    def __init__(self, max_match: int = 5, min_match: int = 1) -> None:
        if not 1 <= min_match <= max_match:
            raise InvalidSetting(
                f"min_match is {min_match} and max_match {max_match}; "
                "give 1 <= min_match <= max_match"
            )
        self._max_match = max_match
        self._min_match = min_match

    def begin(self, target_cache: KVCache) -> NgramDrafter:  # noqa: ARG002
        return self

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        return [
            Draft.chain(self._continuation(context.tokens, plan.depth), Proposal.POINT)
            for context, plan in zip(contexts, plans, strict=True)
        ]

    def _continuation(self, tokens: Sequence[int], depth: int) -> list[int]:
        if depth == 0 or len(tokens) < 2:
            return []
        ids = np.asarray(tokens)
        # Ends of earlier occurrences of the last token; each round asks for one token more.
        ends = np.flatnonzero(ids[:-1] == ids[-1])
        best, length = None, 0
        while len(ends):
            length += 1
            if length >= self._min_match:
                best = int(ends[-1])
            if length == self._max_match:
                break
            ends = ends[ends >= length]
            ends = ends[ids[ends - length] == ids[-1 - length]]
        return [] if best is None else list(tokens[best + 1 : best + 1 + depth])
