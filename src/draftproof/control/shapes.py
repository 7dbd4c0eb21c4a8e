"""Shapes of drafts that are worth a look, with the tokens that they promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftproof.theory.trees import Node

_MAX_TREE_LEVELS = 8
_TREE_SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)


def shapes(nodes: Sequence[Node], width: int) -> Iterator[tuple[int, int, float]]:
    """Yield levels, size and expected tokens of drafts made of the first of `nodes`.

    For a chain each length; for a tree each number of levels, in a few sizes.
    """
    if width == 1:
        yield from ((i, i, tokens) for i, tokens in enumerate(_expected(nodes), start=1))
        return
    for levels in range(1, min(_MAX_TREE_LEVELS, max(node.level for node in nodes)) + 1):
        expected = list(_expected([node for node in nodes if node.level <= levels]))
        for size in {*(size for size in _TREE_SIZES if size < len(expected)), len(expected)}:
            yield levels, size, expected[size - 1]


def _expected(nodes: Sequence[Node]) -> Iterator[float]:
    """Expected tokens of a round that drafts the first 1, 2, ... of `nodes`."""
    tokens = 1.0
    for node in nodes:
        tokens += node.chance
        yield tokens
