"""Who owns which part of a store that is counted in tokens: bookkeeping only."""

from __future__ import annotations

from typing import NamedTuple


class Region(NamedTuple):
    """`size` tokens from token `offset` on."""

    offset: int
    size: int


class Regions:
    """Takes regions out of `num_tokens` tokens, first fit, and puts them back."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._taken: list[Region] = []
        """In the order of their offsets; they never overlap."""

    @property
    def num_free(self) -> int:
        return self.num_tokens - sum(region.size for region in self._taken)

    def take(self, size: int) -> Region | None:
        """The first gap of `size` tokens, or None where no gap is that large."""
        offset = 0
        for place, region in enumerate([*self._taken, Region(self.num_tokens, 0)]):
            if region.offset - offset >= size:
                taken = Region(offset, size)
                self._taken.insert(place, taken)
                return taken
            offset = region.offset + region.size
        return None

    def give_back(self, region: Region) -> None:
        if region.size:
            self._taken.remove(region)

    def close_gaps(self) -> list[tuple[Region, Region]]:
        """Move all regions to the front, in their order; where each was and is."""
        before, offset = self._taken, 0
        self._taken = []
        for region in before:
            self._taken.append(Region(offset, region.size))
            offset += region.size
        return list(zip(before, self._taken, strict=True))
