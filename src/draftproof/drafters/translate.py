"""A target's committed ids as a drafter of another vocabulary reads them, kept per row.

Both ways only ever append to what a row holds, or change its last few ids: the drafter's cache
follows by comparing, and a long prompt is translated once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from draftproof.models.lexicon import Lexicon
from draftproof.models.vocab import Overlap

LOOK_BEHIND = 8
"""Tokens on either side of a place that decide how text is cut into tokens there; a tokenizer
splits at words first, and a word or a run of spaces is hardly ever more tokens."""
_LONGEST_TAIL = 4 * LOOK_BEHIND


@dataclass(slots=True)
class _Settled:
    """What will not be translated again."""

    count: int = 0
    """Target ids, from the first on."""
    ids: list[int] = field(default_factory=list)
    """The drafter's ids for them."""


class Translation(ABC):
    """Target ids to drafter ids, for the rows of one decode loop."""

    def __init__(self, rows: int, target: Lexicon, drafter: Lexicon, overlap: Overlap) -> None:
        self._rows = [_Settled() for _ in range(rows)]
        self._target = target
        self._drafter = drafter
        self._shared = overlap.shared

    @abstractmethod
    def of(self, row: int, tokens: Sequence[int]) -> list[int]:
        """The drafter's ids for `tokens`, which continue what `row` was asked for before.

        Markers that the drafter does not have are left out; one that it expects first is there.
        """
        ...

    def settled(self, row: int, tokens: Sequence[int]) -> list[int]:
        """Those of the ids for `tokens` that stay, whatever continues the text."""
        self.of(row, tokens)
        return self._rows[row].ids

    def _opening(self, tokens: Sequence[int]) -> list[int]:
        """The drafter's ids before the first of `tokens`."""
        opening = self._drafter.opening
        return [] if [self._shared.get(tokens[0])] == opening else opening

    def release(self, row: int) -> None:
        self._rows[row] = _Settled()

    def move(self, source: int, target: int) -> None:
        self._rows[target] = self._rows[source]
        self.release(source)


class TokenByToken(Translation):
    """Each id on its own: its counterpart, else its text in the drafter's tokens.

    A counterpart is given as the target's own id and any other id d as V + d, so that what was
    drafted reads the same once it is committed.
    """

    def __init__(
        self, rows: int, target: Lexicon, drafter: Lexicon, overlap: Overlap, vocab_size: int
    ) -> None:
        super().__init__(rows, target, drafter, overlap)
        self._vocab_size = vocab_size
        self._parts: dict[int, list[int]] = {}

    def of(self, row: int, tokens: Sequence[int]) -> list[int]:
        settled = self._rows[row]
        if not settled.ids:
            settled.ids = [self._vocab_size + i for i in self._opening(tokens)]
        for token in tokens[settled.count :]:
            if token not in self._parts:
                self._parts[token] = self._part(token)
            settled.ids += self._parts[token]
        settled.count = len(tokens)
        return settled.ids

    def _part(self, token: int) -> list[int]:
        if token in self._shared:
            return [token]
        if token not in self._target.texts:
            return []
        written = self._drafter.write(b"", self._target.texts[token])
        return [self._vocab_size + i for i in written]


class WholeText(Translation):
    """The text as the drafter's own tokenizer would cut it; the end is cut anew in every round."""

    def of(self, row: int, tokens: Sequence[int]) -> list[int]:
        settled = self._rows[row]
        if not settled.ids:
            settled.ids = list(self._opening(tokens))
        for i in range(settled.count, len(tokens)):
            if (token := tokens[i]) not in self._target.texts:
                settled.ids += self._tail(settled.count, tokens[:i])
                settled.ids += [self._shared[token]] if token in self._shared else []
                settled.count = i + 1
        tail = self._tail(settled.count, tokens)
        if len(tokens) - settled.count > _LONGEST_TAIL:
            self._settle(settled, tokens, tail)
            tail = self._tail(settled.count, tokens)
        return settled.ids + tail

    def _tail(self, start: int, tokens: Sequence[int]) -> list[int]:
        """The drafter's ids for the text of `tokens` from index `start` on."""
        before = self._target.text_before(tokens, start, LOOK_BEHIND)
        return self._drafter.write(before, self._target.read(tokens[start:]))

    def _settle(self, settled: _Settled, tokens: Sequence[int], tail: Sequence[int]) -> None:
        """Settle up to the last place, a look-behind from the end, where both vocabularies cut."""
        end = len(tokens) - LOOK_BEHIND
        if self._drafter.read(tail) == self._target.read(tokens[settled.count :]):
            ends = self._places(self._drafter, tail)
            places = {place: count for count, place in enumerate(ends, start=1)}
            own = self._places(self._target, tokens[settled.count : end])
            common = [
                (count, places[place]) for count, place in enumerate(own, 1) if place in places
            ]
            if common:
                settled.count += common[-1][0]
                settled.ids += tail[: common[-1][1]]
                return
        # The drafter cannot write the text, or the two never cut alike: cut as the target does.
        settled.ids += self._tail(settled.count, tokens[:end])
        settled.count = end

    @staticmethod
    def _places(lexicon: Lexicon, ids: Sequence[int]) -> list[int]:
        """Bytes up to the end of each of `ids`."""
        return list(accumulate(len(lexicon.texts[i]) for i in ids))
