"""N-gram lookup: what followed the last time these words were seen.

The longest suffix of the sequence, up to `max_match` tokens, that occurs earlier is looked up;
of several occurrences of that length the most recent wins, and the tokens behind it are the
draft. Prompt lookup decoding (Saxena 2023). Costs no model at all. A corpus is looked up in where
it knows a longer suffix than the sequence itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.drafters.index import RowTexts, SuffixIndex
from draftproof.drafters.lookup import NO_GUESS, Guess, LookupDrafting
from draftproof.errors import InvalidSetting
from draftproof.models.cache import KVCache


class NgramDrafter:
    proposals = frozenset({Proposal.POINT})
    branches = False

    def __init__(
        self,
        max_match: int = 5,
        min_match: int = 1,
        corpus: Iterable[Sequence[int]] = (),
        name: str = "ngram",
    ) -> None:
        """`corpus` are token ids of texts to look up in; they are never forgotten."""
        if not 1 <= min_match <= max_match:
            raise InvalidSetting(
                f"min_match is {min_match} and max_match {max_match}; "
                "give 1 <= min_match <= max_match"
            )
        self.name = name
        self._max_match = max_match
        self._min_match = min_match
        self._corpus = SuffixIndex(max_match)
        for text in corpus:
            self._corpus.add(text)

    def begin(self, target_cache: KVCache) -> NgramDrafting:  # noqa: ARG002
        return NgramDrafting(self._max_match, self._min_match, self._corpus)


class NgramDrafting(LookupDrafting):
    def __init__(self, max_match: int, min_match: int, corpus: SuffixIndex) -> None:
        self._texts = RowTexts(max_match)
        self._min_match = min_match
        self._corpus = corpus

    def guess(self, context: Context, plan: Plan) -> Guess:
        """A chain as long as it is worth it.

        What follows m equal tokens is right in (m + 1) / (m + 2) of all cases, by Laplace's rule of
        succession, and then m + 1 are equal.
        """
        most = min(plan.depth, plan.nodes)
        if most == 0:
            return NO_GUESS
        own, corpus = self._texts.follow(context), self._corpus
        index, match = own, own.match(context.tokens)
        elsewhere = corpus.match(context.tokens)
        if elsewhere is not None and (match is None or elsewhere.length > match.length):
            index, match = corpus, elsewhere
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
