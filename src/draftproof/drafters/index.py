"""Where tokens stand in a growing set of texts: the longest match of a suffix, and what followed.

An inverted index: for every token the places where it stands, oldest first. A match starts from
the places of the last token and is narrowed backwards, so counts come from the places that are
left. It answers what a suffix tree with counts answers (Weiner 1973; the tree of SuffixDecoding,
arXiv 2411.04975), for less: a token costs one append and about 12 bytes where a tree of depth D
updates D nodes of a hundred bytes and more each, and forgetting a text only moves a border.
A look-up costs time in proportion to how often the last token occurs, in numpy.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np
import numpy.typing as npt

from draftproof.core import Context
from draftproof.drafters.base import num_shared

Places = npt.NDArray[np.intp]
"""Ascending positions in the index's own numbering."""

_END = -1
"""Stands before, between and behind the texts; no token is negative."""


@dataclass(frozen=True, slots=True)
class Match:
    """All places where the longest known suffix of a context was followed by a token."""

    length: int
    """Tokens of the suffix."""
    places: Places
    """Where the tokens stand that followed it, oldest first; at least one."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A token that stands at some of the places asked about."""

    token: int
    share: float
    """Its count / the count of all tokens that stand at those places."""
    places: Places
    """The places behind it."""


class SuffixIndex:
    """Texts over token ids; the newest can grow and shrink, the oldest is forgotten first."""

    _ids: npt.NDArray[np.int32]
    """Ends, then the texts with an end behind each; what stands behind the last is not read."""
    _end: int
    """The place behind the newest text."""
    _starts: deque[int]
    """Where each text begins, oldest first; what stands before the first is forgotten."""
    _places: defaultdict[int, array[int]]
    """Token -> where it stands, ascending, forgotten places included."""

    def __init__(self, max_match: int, max_tokens: int | None = None) -> None:
        """`max_match` is the longest suffix that is looked for, in tokens.

        More than `max_tokens` are never held: the oldest texts go first, and of a single text
        that is longer its beginning.
        """
        self._max_match = max_match
        self._max_tokens = max_tokens
        self._clear()

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts that are held."""
        if not self._starts:
            return 0
        return self._end - self._starts[0] - (len(self._starts) - 1)

    def add(self, tokens: Sequence[int]) -> None:
        """Begin a new text, which is the newest from now on."""
        self._end += 1
        self._starts.append(self._end)
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the newest text."""
        assert self._starts, "no text was begun"
        self._reserve(len(tokens))
        end = self._end + len(tokens)
        self._ids[self._end : end] = tokens
        self._ids[end] = _END
        for place, token in enumerate(tokens, self._end):
            self._places[token].append(place)
        self._end = end
        self._fit()

    def retract(self, count: int) -> None:
        """Take the last `count` tokens of the newest text back."""
        assert self._starts[-1] <= self._end - count
        for token in self._ids[self._end - count : self._end][::-1].tolist():
            self._places[token].pop()
        self._end -= count
        self._ids[self._end] = _END

    def forget(self) -> None:
        """Forget the oldest text; the index is then as if it had never been added."""
        self._starts.popleft()
        self._compact()

    def match(self, context: Sequence[int]) -> Match | None:
        """The longest suffix of `context`, up to `max_match`, that some token followed."""
        found = self._places.get(context[-1]) if context and self._starts else None
        if not found:
            return None
        ends: Places = np.array(found, np.intp)
        ends = ends[np.searchsorted(ends, self._starts[0]) :]
        ends = ends[self._ids[ends + 1] != _END]
        if not len(ends):
            return None
        wanted = np.array(context[-self._max_match :][::-1], np.int32)
        length = 1
        while length < len(wanted):
            # As many tokens more as match already; few are left when many are compared.
            back = np.arange(length, min(2 * length, len(wanted)))
            same = self._ids[ends[:, None] - back] == wanted[back]
            run = np.logical_and.accumulate(same, axis=1).sum(axis=1)
            longest = int(run.max())
            ends = ends[run == longest]
            length += longest
            if longest < len(back):
                break
        return Match(length, ends + 1)

    def followers(self, places: Places, most: int) -> list[Follower]:
        """The `most` tokens that stand most often at `places`; of equal ones the newest first.

        Places at the end of a text say nothing about what follows and are not counted.
        """
        tokens = self._ids[places]
        places = places[tokens != _END]
        tokens = tokens[tokens != _END]
        if len(places) == 1:
            return [Follower(int(tokens[0]), 1.0, places + 1)]
        distinct, age, counts = np.unique(tokens[::-1], return_index=True, return_counts=True)
        return [
            Follower(
                int(distinct[i]),
                float(counts[i]) / len(tokens),
                places[tokens == distinct[i]] + 1,
            )
            for i in np.lexsort((age, -counts))[:most]
        ]

    def continuation(self, place: int, most: int) -> list[int]:
        """Up to `most` tokens from `place` to the end of its text."""
        window = self._ids[place : min(place + most, self._end)].tolist()
        return list(takewhile(lambda token: token != _END, window))

    def _clear(self) -> None:
        # Ends in front, so that looking backwards never leaves the array.
        self._ids = np.full(2 * self._max_match + 16, _END, np.int32)
        self._end = self._max_match
        self._starts = deque()
        self._places = defaultdict(lambda: array("q"))

    def _reserve(self, count: int) -> None:
        needed = self._end + count + 1
        if needed > len(self._ids):
            larger = np.full(2 * needed, _END, np.int32)
            larger[: self._end] = self._ids[: self._end]
            self._ids = larger

    def _fit(self) -> None:
        while (
            self._max_tokens is not None
            and len(self._starts) > 1
            and self.num_tokens > self._max_tokens
        ):
            self.forget()
        if self._max_tokens is not None and self.num_tokens > self._max_tokens:
            self._starts[0] = self._end - self._max_tokens
            self._ids[self._starts[0] - 1] = _END
            self._compact()

    def _compact(self) -> None:
        """Give the memory of forgotten tokens back once they are as many as those held."""
        if self._starts and self._starts[0] - self._max_match <= self.num_tokens + 1:
            return
        borders = [*self._starts, self._end + 1]
        texts = [self._ids[start : after - 1].tolist() for start, after in pairwise(borders)]
        self._clear()
        for text in texts:
            self.add(text)


class RowTexts:
    """One index per row of a decode loop, which holds the committed tokens of its sequence."""

    def __init__(self, max_match: int) -> None:
        self._max_match = max_match
        self._rows: dict[int, tuple[SuffixIndex, list[int]]] = {}

    def follow(self, context: Context) -> SuffixIndex:
        """The index of the context's row, brought to exactly `context.tokens`."""
        if context.row not in self._rows:
            index = SuffixIndex(self._max_match)
            index.add(())
            self._rows[context.row] = (index, [])
        index, held = self._rows[context.row]
        tokens = context.tokens
        same = num_shared(held, tokens)
        index.retract(len(held) - same)
        del held[same:]
        index.extend(tokens[same:])
        held.extend(tokens[same:])
        return index

    def release(self, row: int) -> list[int]:
        """Forget a row; returns the tokens that it held."""
        return self._rows.pop(row, (None, []))[1]

    def move(self, source: int, target: int) -> None:
        """What row `source` holds is in row `target` from now on."""
        if source in self._rows:
            self._rows[target] = self._rows.pop(source)
