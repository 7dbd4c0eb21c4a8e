"""Suffix decoding: what most often followed the longest known suffix, here or in earlier texts.

Three sources are asked: the sequence itself, what earlier requests of the same drafter wrote, and
a corpus if one is given. Each finds its longest match of length m and grows a draft of at most
3 m tokens' depth. A token's probability is its share of the followers' count, times
(m + 1) / (m + 2) for m tokens that match already: Laplace's rule of succession, which makes a
long match worth more than a short one. The draft with the largest sum of path probabilities is
used. SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975, with one match (the longest) instead
of one of each length, with that rule, and with counts of an index instead of a tree.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from draftproof.core import Context, Draft, Plan, Proposal, Step
from draftproof.drafters.index import Places, RowTexts, SuffixIndex
from draftproof.drafters.lookup import NO_GUESS, Guess, LookupDrafting, grow
from draftproof.models.cache import KVCache

MAX_MATCH = 32
"""Longest suffix that is compared, in tokens."""
MAX_HELD = 1 << 18
"""Tokens of finished requests that a drafter keeps, a few MB."""
_FACTOR = 3.0
"""A match of m tokens vouches for a draft _FACTOR * m deep."""
_MIN_PROBABILITY = 0.1
"""Paths that are less likely by the counts are not drafted; the paper's own setting."""


_State = tuple[int, Places]
"""How many tokens match, and the places behind them."""


class SuffixDrafter:
    proposals = frozenset({Proposal.POINT})
    remembers = True
    takes_static_trees = True

    def __init__(
        self,
        corpus: Iterable[Sequence[int]] = (),
        name: str = "suffix",
        max_held: int = MAX_HELD,
    ) -> None:
        """`corpus` are token ids of texts to look up in; they are never forgotten.

        Of finished requests at most `max_held` tokens are kept, the latest.
        """
        self.name = name
        self._corpus = _SharedIndex(None)
        for text in corpus:
            self._corpus.add(text)
        self._finished = _SharedIndex(max_held)
        self._max_held = max_held

    def fresh(self) -> SuffixDrafter:
        """The same drafter without the requests that it has seen; the corpus is shared."""
        other = SuffixDrafter(name=self.name, max_held=self._max_held)
        other._corpus = self._corpus
        return other

    def begin(self, target_cache: KVCache) -> SuffixDrafting:  # noqa: ARG002
        return SuffixDrafting(self._finished, self._corpus)


class SuffixDrafting(LookupDrafting):
    def __init__(self, finished: _SharedIndex, corpus: _SharedIndex) -> None:
        self._texts = RowTexts(MAX_MATCH)
        self._prompts: dict[int, int] = {}
        """Row -> tokens of its prompt."""
        self._finished = finished
        self._corpus = corpus

    def guess(self, context: Context, plan: Plan) -> Guess:
        own = self._texts.follow(context)
        self._prompts.setdefault(context.row, context.prompt_length)
        if plan.depth == 0:
            return NO_GUESS
        guesses = [
            _speculate(own, context.tokens, plan),
            self._finished.speculate(context.tokens, plan),
            self._corpus.speculate(context.tokens, plan),
        ]
        return max(guesses, key=lambda guess: guess.score)

    def observe(self, context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:  # noqa: ARG002
        self._texts.follow(context)

    def release(self, row: int) -> None:
        """Hand what was generated, with as much of the prompt as a match can use, to the others."""
        tokens = self._texts.release(row)
        start = self._prompts.pop(row, 0)
        if len(tokens) > start:
            self._finished.add(tokens[max(0, start - MAX_MATCH) :])

    def forget(self, row: int) -> None:
        self._texts.release(row)
        self._prompts.pop(row, None)

    def move(self, source: int, target: int) -> None:
        self._texts.move(source, target)
        if source in self._prompts:
            self._prompts[target] = self._prompts.pop(source)


class _SharedIndex:
    """An index for several decode loops at once."""

    def __init__(self, max_tokens: int | None) -> None:
        self._index = SuffixIndex(MAX_MATCH, max_tokens)
        self._lock = threading.Lock()

    def add(self, tokens: Sequence[int]) -> None:
        with self._lock:
            self._index.add(tokens)

    def speculate(self, tokens: Sequence[int], plan: Plan) -> Guess:
        with self._lock:
            return _speculate(self._index, tokens, plan)


def _speculate(index: SuffixIndex, tokens: Sequence[int], plan: Plan) -> Guess:
    """The likeliest paths behind the longest suffix of `tokens` that `index` knows."""
    match = index.match(tokens)
    if match is None:
        return NO_GUESS

    def successors(state: _State, most: int) -> Iterator[tuple[int, float, _State]]:
        length, places = state
        again = (length + 1) / (length + 2)
        for follower in index.followers(places, most):
            yield follower.token, follower.share * again, (length + 1, follower.places)

    depth = min(plan.depth, int(_FACTOR * match.length))
    floor = max(plan.floor, _MIN_PROBABILITY)
    return grow((match.length, match.places), successors, replace(plan, depth=depth, floor=floor))
