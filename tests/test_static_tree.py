"""Static trees: how they are named, what is refused, and how settings take them."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof import EngineSettings, StaticTree
from draftproof.errors import InvalidSetting
from draftproof.theory.trees import best_nodes, best_static_tree


@st.composite
def trees(draw):
    """Grown place by place below any place that is there already."""
    places = [()]
    for _ in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from(places))
        rank = sum(len(place) == len(parent) + 1 and place[:-1] == parent for place in places)
        places.append((*parent, rank))
    return StaticTree(tuple(draw(st.permutations(places[1:]))))


@given(trees())
def test_a_tree_is_read_back_as_it_was_written(tree):
    assert StaticTree.parse(str(tree)) == tree
    counted = [tree.children(place) for place in ((), *tree.places)]
    assert sum(counted) == tree.nodes == len(tree.places)
    assert max(counted) == tree.width
    assert tree.depth == max(len(place) for place in tree.places)


def test_children_by_level():
    tree = StaticTree.parse("3, 2, 1")
    assert (tree.depth, tree.width, tree.nodes) == (3, 3, 3 + 6 + 6)
    assert [tree.children(place) for place in ((), (2,), (0, 1), (0, 1, 0))] == [3, 2, 1, 0]
    assert str(tree) == "3,2,1"
    assert StaticTree.by_level(2) == StaticTree.parse("2") == StaticTree.parse("[(0,), (1,)]")
    assert str(StaticTree.parse("[(0,), (1,), (1, 0)]")) == "[(0,), (1,), (1, 0)]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected are children by level"),
        ("wide", "expected are children by level"),
        ("4,2,x", "expected are children by level"),
        ("{1: 2}", "expected are children by level"),
        ("[1, 2]", "expected are children by level"),
        ("4,0,1", "give 1 or more for each"),
        ("-3", "give 1 or more for each"),
        ("4,4,4", "make 84 nodes; 64 fit"),
        ("65", "make 65 nodes; 64 fit"),
        ("[]", "has 0 places; give 1 to 64"),
        ("[()]", "has a place ()"),
        ("[(0,), (-1,)]", "has a place (-1,)"),
        ("[(0,), ('a',)]", "has a place ('a',)"),
        ("[(0,), (0,)]", "names a place twice"),
        ("[(0,), (1, 0)]", "has place (1, 0) and not (1,)"),
        ("[(0,), (0, 1)]", "has place (0, 1) and not (0, 0)"),
        (str([(0,) * (i + 1) for i in range(65)]), "has 65 places"),
    ],
)
def test_what_is_no_tree_is_refused(text, said):
    with pytest.raises(InvalidSetting) as caught:
        StaticTree.parse(text)
    assert said in str(caught.value)


def test_settings_take_depth_width_and_nodes_from_a_tree():
    settings = EngineSettings(tree=StaticTree.by_level(3, 2))
    assert (settings.depth, settings.width, settings.nodes) == (2, 3, 9)
    assert settings.having(depth=2) == settings
    assert EngineSettings().having(tree=settings.tree) == settings
    for name, value in (("depth", 4), ("width", 2), ("nodes", 5)):
        with pytest.raises(InvalidSetting, match=f"{name} is {value} and that of the tree is"):
            settings.having(**{name: value})


def accepted(tree, rates, ranks):
    """Tokens of a tree that the target accepts, in the mean."""
    total = 0.0
    for place in tree.places:
        chance = 1.0
        for level, rank in enumerate(place):
            row = (rates[level], *ranks)
            chance *= row[rank] * prod(1 - better for better in row[:rank])
        total += chance
    return total


def every_tree(nodes, levels, width):
    """All trees of so many places."""
    found = {()}
    for _ in range(nodes):
        found = {
            tuple(sorted((*places, (*parent, rank))))
            for places in found
            for parent in ((), *places)
            if len(parent) < levels
            for rank in [sum(place[:-1] == parent for place in places)]
            if rank < width
        }
    return map(StaticTree, found)


@pytest.mark.parametrize(
    ("rates", "ranks"),
    [
        ((0.6, 0.6, 0.6), (0.4, 0.28)),
        ((0.5, 0.02), (0.9, 0.5)),
        ((0.6, 0.15, 0.15), (0.4, 0.1)),
        ((0.1, 0.9, 0.9), (0.3, 0.3)),
        ((0.0, 1.0), (1.0, 0.5)),
    ],
)
def test_no_static_tree_is_better_than_the_best(rates, ranks):
    """Second choices that are likelier than first ones included."""
    for nodes in range(1, 7):
        trees = every_tree(nodes, len(rates), 1 + len(ranks))
        best = max(accepted(tree, rates, ranks) for tree in trees)
        assert accepted(best_static_tree(rates, ranks, nodes), rates, ranks) == pytest.approx(best)


def test_the_best_static_tree_is_grown_by_chance_where_first_choices_are_likeliest():
    rates, ranks = (0.6,) * 4, (0.4, 0.28, 0.2)
    for nodes in (1, 8, 30, 64):
        tree = best_static_tree(rates, ranks, nodes)
        grown = sum(node.chance for node in best_nodes(rates, ranks, 64, nodes))
        assert accepted(tree, rates, ranks) == pytest.approx(grown)
    assert best_static_tree((0.9, 0.9), (), 5) == StaticTree.by_level(1, 1)
