"""A tree whose outline is fixed beforehand: which places get a token, whatever the tokens are.

The static trees of Medusa (arXiv 2401.10774) and Sequoia (arXiv 2402.12374). A place is named by
the way down to it: (1, 0) is the first child of the anchor's second child, in the order in which
a drafter draws siblings or prefers them.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field
from math import prod

from draftproof.config import MAX_DEPTH, MAX_NODES
from draftproof.errors import InvalidSetting

Place = tuple[int, ...]
"""Ranks from the anchor down; () is the anchor itself."""

_FORM = "expected are children by level, as '4,2,1', or places, as '[(0,), (1,), (0, 0)]'"


@dataclass(frozen=True, slots=True)
class StaticTree:
    """The places of a draft; a parent has to be among them, and so have a place's elder siblings.

    Raises `InvalidSetting` for places that are no such tree, or more than a draft can hold.
    """

    places: tuple[Place, ...]
    """N of them; kept in the order of their levels."""
    _children: Counter[Place] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        for place in self.places:
            if not place or not all(isinstance(rank, int) and rank >= 0 for rank in place):
                raise InvalidSetting(f"the tree has a place {place!r}; {_FORM}")
        known = set(self.places)
        if not known or len(known) > MAX_NODES or max(map(len, known)) > MAX_DEPTH:
            raise InvalidSetting(
                f"the tree has {len(known)} places; give 1 to {MAX_NODES}, at most {MAX_DEPTH} deep"
            )
        if len(known) < len(self.places):
            raise InvalidSetting("the tree names a place twice; give each once")
        for place in self.places:
            *parent, rank = place
            needed = (*parent, rank - 1) if rank else tuple(parent)
            if needed and needed not in known:
                raise InvalidSetting(f"the tree has place {place} and not {needed}; give both")
        ordered = tuple(sorted(known, key=lambda place: (len(place), place)))
        object.__setattr__(self, "places", ordered)
        object.__setattr__(self, "_children", Counter(place[:-1] for place in ordered))

    @classmethod
    def by_level(cls, *children: int) -> StaticTree:
        """`children[i]` children below every node of level i, the anchor being level 0: the
        expansions of SpecInfer (arXiv 2305.09781). `by_level(1, 1, 1)` is a chain."""
        if not children or any(not isinstance(count, int) or count < 1 for count in children):
            raise InvalidSetting(f"children by level are {children!r}; give 1 or more for each")
        size = sum(prod(children[: level + 1]) for level in range(min(len(children), MAX_DEPTH)))
        if size > MAX_NODES:
            raise InvalidSetting(f"children {children} by level make {size} nodes; {MAX_NODES} fit")
        places, level = list[Place](), [Place()]
        for count in children:
            level = [(*place, rank) for place in level for rank in range(count)]
            places += level
        return cls(tuple(places))

    @classmethod
    def parse(cls, text: str) -> StaticTree:
        """A tree from "4,2,1", the children by level, or from places as `str` gives them, which
        is also how vLLM writes its `speculative_token_tree`."""
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            value = None
        if isinstance(value, int):
            return cls.by_level(value)
        if isinstance(value, tuple) and all(isinstance(count, int) for count in value):
            return cls.by_level(*value)
        if isinstance(value, list) and all(isinstance(place, tuple) for place in value):
            return cls(tuple(value))
        raise InvalidSetting(f"the tree is {text!r}; {_FORM}")

    def __str__(self) -> str:
        counts = [
            {self.children(place) for place in (Place(), *self.places) if len(place) == level}
            for level in range(self.depth)
        ]
        if all(len(of_level) == 1 for of_level in counts):
            return ",".join(str(*of_level) for of_level in counts)
        return str(list(self.places))

    def children(self, place: Place) -> int:
        """How many children the node at `place` gets; () is the anchor."""
        return self._children[place]

    @property
    def depth(self) -> int:
        return max(map(len, self.places))

    @property
    def width(self) -> int:
        """Most children of a node."""
        return max(self._children.values())

    @property
    def nodes(self) -> int:
        return len(self.places)
