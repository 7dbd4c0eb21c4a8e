"""Drafts that keep to a static tree: every place gets its token and no other does, and the law of
the text stays the target's."""

from __future__ import annotations

import pytest

from draftproof import EngineSettings, StaticTree
from draftproof.api import Speculator
from draftproof.core import Plan, Proposal
from draftproof.drafters.lookahead import LookaheadDrafter
from draftproof.drafters.lookup import grow
from draftproof.drafters.ngram import NgramDrafter
from draftproof.errors import InvalidSetting
from draftproof.models.toy import ToyModel
from draftproof.verification.registry import VERIFIERS
from tests.drafters.test_confidence import LAW, V, deviation, proposer, rolled
from tests.drafters.test_lookup import LAWS, successors_of
from tests.toys import EXACT

TREES = ["2,2,1", "3", "1,1,1", "[(0,), (1,), (1, 0), (1, 1), (1, 1, 0)]"]


def plan_of(tree, **limits):
    return Plan(tree.depth, tree.width, tree.nodes, tree=tree, **limits)


def places_of(draft):
    """Where each node is: its rank among its siblings, below its parent's place."""
    places = {-1: ()}
    for node, parent in enumerate(draft.parents):
        places[node] = (*places[parent], draft.children(parent).index(node))
    return tuple(sorted((places[n] for n in range(len(draft.tokens))), key=lambda p: (len(p), p)))


@pytest.mark.parametrize("proposal", Proposal)
@pytest.mark.parametrize("text", TREES)
def test_a_model_drafts_every_place_and_no_other(proposal, text):
    tree = StaticTree.parse(text)
    (draft,), passes = rolled(proposal, plan_of(tree))
    assert places_of(draft) == tree.places
    assert passes == tree.depth
    assert draft.proposal is proposal


@pytest.mark.parametrize("proposal", Proposal)
def test_rows_of_other_trees_and_of_none_do_not_notice(proposal):
    first, second = StaticTree.parse(TREES[0]), StaticTree.parse(TREES[3])
    plans = [plan_of(first), Plan(4), plan_of(second), Plan(0)]
    together, _ = rolled(proposal, *plans)
    for row, plan in enumerate(plans):
        alone, _ = rolled(proposal, *(p if p is plan else Plan(0) for p in plans))
        assert (together[row].tokens, together[row].parents) == (
            alone[row].tokens,
            alone[row].parents,
        )
    assert places_of(together[0]) == first.places
    assert places_of(together[2]) == second.places


@pytest.mark.parametrize("text", TREES)
def test_a_plan_that_is_less_deep_and_a_doubt_cut_the_tree(text):
    tree = StaticTree.parse(text)
    (draft,), _ = rolled(Proposal.DISTINCT, Plan(1, tree.width, tree.nodes, tree=tree))
    assert places_of(draft) == tuple(place for place in tree.places if len(place) == 1)
    (draft,), _ = rolled(Proposal.DISTINCT, plan_of(tree, min_confidence=1.0))
    assert places_of(draft) == tuple(place for place in tree.places if len(place) == 1)


@pytest.mark.parametrize("text", TREES)
def test_a_look_up_keeps_to_its_places(text):
    tree = StaticTree.parse(text)
    assert places_of(grow(0, successors_of(LAWS), plan_of(tree)).draft) == tree.places
    rare = grow(0, successors_of(LAWS), plan_of(tree, floor=0.25)).draft
    assert set(places_of(rare)) < set(tree.places)


@pytest.mark.parametrize("text", ["2,1", "[(0,), (1,), (1, 0), (1, 1)]"])
@pytest.mark.parametrize(
    ("rule", "proposal"),
    [
        ("tree", Proposal.SAMPLED),
        ("tree", Proposal.DISTINCT),
        ("traversal", Proposal.SAMPLED),
        ("traversal", Proposal.DISTINCT),
        ("coupled", Proposal.POINT),
        ("point", Proposal.POINT),
        ("greedy", Proposal.POINT),
    ],
)
def test_the_law_stays_the_targets(rule, proposal, text):
    propose = proposer(proposal, plan_of(StaticTree.parse(text)), set())
    assert deviation(VERIFIERS[rule], propose) < EXACT


@pytest.mark.parametrize("drafter", [NgramDrafter(), LookaheadDrafter()])
def test_a_drafter_that_would_not_heed_a_tree_is_refused(drafter):
    settings = EngineSettings(tree=StaticTree.by_level(2, 1))
    with pytest.raises(InvalidSetting, match=rf"{drafter.name}.* leave the tree out"):
        Speculator(ToyModel(LAW, V), drafter, settings=settings)
