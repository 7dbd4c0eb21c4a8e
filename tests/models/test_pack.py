"""A packed batch gives every column its position and exactly its ancestors."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core import Draft, Proposal
from draftproof.models.pack import pack

CPU = torch.device("cpu")


@st.composite
def trees(draw) -> Draft:
    size = draw(st.integers(0, 7))
    tokens = draw(st.lists(st.integers(0, 50), min_size=size, max_size=size))
    parents = [draw(st.integers(-1, i - 1)) for i in range(size)]
    return Draft(tuple(tokens), tuple(parents), None, Proposal.POINT)


def test_a_tree_by_hand() -> None:
    #  anchor ── 0 ── 1 ── 3
    #            └─── 2
    tree = Draft((5, 6, 7, 8), (-1, 0, 0, 1), None, Proposal.POINT)
    batch = pack([4, 9], [tree, Draft.chain((3,), Proposal.POINT)], [10, 2], CPU)
    assert batch.tokens.tolist() == [[4, 5, 6, 7, 8], [9, 3, 0, 0, 0]]
    assert batch.positions.tolist() == [[10, 11, 12, 12, 13], [2, 3, 2, 2, 2]]
    assert batch.mask[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1],
    ]
    assert batch.mask[1].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(trees(), st.integers(0, 9)), min_size=1, max_size=3))
def test_every_column_sees_its_path_and_nothing_else(rows) -> None:
    drafts, lengths = [draft for draft, _ in rows], [length for _, length in rows]
    batch = pack([1] * len(rows), drafts, lengths, CPU)
    width = 1 + max(len(draft.tokens) for draft in drafts)
    assert batch.tokens.shape == batch.positions.shape == (len(rows), width)
    for b, draft in enumerate(drafts):
        for column in range(width):
            seen = set(batch.mask[b, column].nonzero()[:, 0].tolist())
            position = int(batch.positions[b, column])
            if column > len(draft.tokens):
                assert (seen, position) == ({column}, lengths[b])
                continue
            path = draft.path(column - 1)
            assert seen == {0, *(node + 1 for node in path)}
            assert position == lengths[b] + len(path)
            assert int(batch.tokens[b, column]) == (draft.tokens[column - 1] if column else 1)
