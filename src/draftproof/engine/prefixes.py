"""Beginnings of prompts that need not be read twice: the system prompt that all requests share.

What is shared is copied: on a CPU a thousand tokens take milliseconds to copy and seconds to read,
and every sequence's keys and values stay in one piece, which is faster to attend to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from draftproof.drafters.base import num_shared
from draftproof.engine.entry import Entry
from draftproof.models.cache import KVCache


class Prefixes:
    """Finds common beginnings in the prompts at hand, and in those of ended requests."""

    def __init__(self, cache: KVCache, first_row: int, chunk: int) -> None:
        """Rows from `first_row` on may keep prefixes, while nobody needs their room.

        Prompts are shared in whole chunks of reading, so that what is copied has the bits that
        reading it would have given.
        """
        self._cache = cache
        self._chunk = chunk
        self._free = list(range(first_row, cache.rows))
        self._kept: OrderedDict[int, list[int]] = OrderedDict()
        """Row -> tokens, least recently used first."""

    @property
    def num_tokens(self) -> int:
        """Tokens that kept prefixes hold."""
        return sum(len(tokens) for tokens in self._kept.values())

    def share(self, entry: Entry, entries: Iterable[Entry]) -> None:
        """Copy what another prompt has in common, or remember whom to wait for."""
        entry.leader, entry.leader_reads = None, 0
        best, source = entry.read, None
        for other in entries:
            most = min(entry.prompt_reads, other.prompt_reads)
            promises = most > entry.leader_reads and other.order < entry.order
            if other is entry or most <= best or not (promises or other.read > best):
                continue
            common = self._common(entry, other)
            if common > best and other.read >= common:
                best, source = common, other.sequence.row
            elif common > max(best, entry.leader_reads) and other.order < entry.order:
                entry.leader, entry.leader_reads = other, common
        for row, tokens in self._kept.items():
            common = self._whole_chunks(num_shared(tokens, entry.sequence.tokens[: len(tokens)]))
            common = min(common, self._whole_chunks(entry.prompt_reads))
            if common > best:
                best, source = common, row
        if source is None:
            return
        if source in self._kept:
            self._kept.move_to_end(source)
        self._cache.copy(source, entry.sequence.row, best)
        entry.read = entry.shared = best
        if entry.leader_reads <= best:
            entry.leader, entry.leader_reads = None, 0

    def _common(self, entry: Entry, other: Entry) -> int:
        """How many tokens two prompts have in common that one may copy from the other."""
        mine, theirs = entry.prompt_reads, other.prompt_reads
        tokens = entry.sequence.tokens[:mine]
        same = num_shared(other.sequence.tokens[:theirs], tokens)
        return same if same == mine == theirs else self._whole_chunks(same)

    def keep(self, entry: Entry) -> None:
        """Keep an ending entry's prompt, if it lies in free room and is not kept already."""
        length = self._whole_chunks(
            min(entry.prompt_reads, self._cache.lengths[entry.sequence.row])
        )
        tokens = entry.sequence.tokens[:length]
        if not length or not (self._free or self._kept):
            return
        for row, kept in self._kept.items():
            if num_shared(kept, tokens) == length:
                self._kept.move_to_end(row)
                return
        if not self._free and self._cache.num_free < length:
            return
        if not self._free:
            self.evict()
        row = self._free[-1]
        if self._cache.open(row, length):
            self._cache.copy(entry.sequence.row, row, length)
            self._kept[self._free.pop()] = tokens

    def evict(self) -> bool:
        """Forget the prefix that was not used for longest; False when none is left."""
        if not self._kept:
            return False
        row, _ = self._kept.popitem(last=False)
        self._cache.close(row)
        self._free.append(row)
        return True

    def _whole_chunks(self, length: int) -> int:
        return length // self._chunk * self._chunk
