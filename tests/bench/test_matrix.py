"""The matrix of settings: what it spans, and what it refuses before anything is loaded."""

from __future__ import annotations

import pytest

from draftproof.errors import InvalidSetting
from draftproof.static_tree import StaticTree
from tests.bench.conftest import matrix


def test_cells_are_plain_every_drafter_at_every_depth_and_the_peers():
    many = matrix(
        drafters=("self-int8", "model:some/where"),
        depths=(2, 4),
        peers=("transformers", "transformers-assisted:some/where"),
    )
    assert [cell.label for cell in many.cells(0.0, 1)] == [
        "plain",
        "self-int8, depth 2",
        "self-int8, depth 4",
        "model:some/where, depth 2",
        "model:some/where, depth 4",
        "transformers",
        "transformers-assisted:some/where",
    ]


def test_every_fixed_depth_meets_every_width_and_auto_chooses_its_own():
    many = matrix(depths=(2, "auto"), widths=(1, 3), peers=())
    labels = ["plain", "ngram, depth 2", "ngram, depth 2, width 3", "ngram, auto depth"]
    assert [cell.label for cell in many.cells(0.0, 1)] == labels
    assert [cell.width for cell in many.cells(0.0, 1)] == [None, 1, 3, None]
    (path,) = (
        cell for cell in matrix(drafters=("model:a/b",), widths=(2,)).cells(0.0, 1) if cell.depth
    )
    assert path.short_label == "model:b, depth 4, width 2"


def test_static_trees_stand_beside_depths_or_alone():
    trees = (StaticTree.by_level(2, 1), StaticTree.parse("[(0,), (1,), (1, 0)]"))
    labels = ["ngram, tree 2,1", "ngram, tree [(0,), (1,), (1, 0)]"]
    alone = matrix(depths=(), trees=trees, peers=(), min_confidence=0.5)
    assert [cell.label for cell in alone.cells(0.0, 1)] == ["plain", *labels]
    beside = matrix(depths=("auto",), trees=trees, peers=())
    assert [cell.label for cell in beside.cells(0.0, 1)] == ["plain", "ngram, auto depth", *labels]


def test_every_temperature_meets_every_batch():
    many = matrix(temperatures=(0.0, 0.7), batches=(1, 3))
    assert list(many.settings()) == [(0.0, 1), (0.0, 3), (0.7, 1), (0.7, 3)]


def test_drafting_peers_sit_batches_out_and_say_why():
    peers = ("transformers", "transformers-lookup", "transformers-assisted:x")
    reasons = [cell.unsupported for cell in matrix(peers=peers).cells(0.0, 2) if cell.is_peer]
    assert reasons[0] is None
    assert all("one prompt at a time" in reason for reason in reasons[1:])
    assert not any(cell.unsupported for cell in matrix(peers=peers).cells(0.0, 1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"drafters": ()}, "drafters of the bench are empty"),
        ({"drafters": ("ngrams",)}, "'ngrams'"),
        ({"drafters": ("none",)}, "always run"),
        ({"depths": (0,)}, "always run"),
        ({"depths": (2, 65)}, "65"),
        ({"depths": (2, 2)}, "2 twice"),
        ({"widths": ()}, "widths of the bench are empty"),
        ({"widths": (0,)}, "width is 0"),
        ({"widths": (1, 65)}, "width is 65"),
        ({"depths": ("auto",), "widths": (3,)}, "chooses the width as well"),
        ({"depths": (), "widths": (3,), "trees": (StaticTree.by_level(2),)}, "the width as well"),
        ({"depths": ()}, "depths of the bench are empty"),
        ({"trees": (StaticTree.by_level(2),) * 2}, "name StaticTree.* twice"),
        ({"temperatures": (-1.0,)}, "temperature"),
        ({"batches": (0,)}, "at least 1"),
        ({"peers": ("vllm",)}, "peer is 'vllm'"),
        ({"peers": ("transformers:x",)}, "transformers-lookup"),
        ({"peers": ("transformers-assisted:",)}, "transformers-assisted:PATH"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(change, said):
    with pytest.raises(InvalidSetting, match=said):
        matrix(**change)
