"""N-gram lookup: what followed the last time these words were seen.

The longest suffix of the sequence, up to `max_match` tokens, that occurs earlier is looked up;
of several occurrences of that length the most recent wins, and the tokens behind it are the
draft. Prompt lookup decoding (Saxena 2023). Costs no model at all.
"""

from __future__ import annotations

from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.drafters.index import RowTexts
from draftproof.drafters.lookup import NO_GUESS, Guess, LookupDrafting
from draftproof.errors import InvalidSetting
from draftproof.models.cache import KVCache


class NgramDrafter:
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

    def begin(self, target_cache: KVCache) -> NgramDrafting:  # noqa: ARG002
        return NgramDrafting(self._max_match, self._min_match)


class NgramDrafting(LookupDrafting):
    def __init__(self, max_match: int, min_match: int) -> None:
        self._texts = RowTexts(max_match)
        self._min_match = min_match

    def guess(self, context: Context, plan: Plan) -> Guess:
        """A chain as long as it is worth it.

        What follows m equal tokens is right in (m + 1) / (m + 2) of all cases, by Laplace's rule of
        succession, and then m + 1 are equal.
        """
        most = min(plan.depth, plan.nodes)
        if most == 0:
            return NO_GUESS
        index = self._texts.follow(context)
        match = index.match(context.tokens)
        if match is None or match.length < self._min_match:
            return NO_GUESS
        known = match.length + 1
        chances = [known / (known + i) for i in range(1, most + 1)]
        worth = [chance for chance in chances if chance >= plan.floor]
        tokens = index.continuation(int(match.places[-1]), len(worth))
        return Guess(Draft.chain(tokens, Proposal.POINT), sum(worth[: len(tokens)]))

    def release(self, row: int) -> None:
        self._texts.release(row)

    def move(self, source: int, target: int) -> None:
        self._texts.move(source, target)
