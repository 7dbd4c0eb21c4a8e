"""The table of successors holds what the target said last after each token."""

from __future__ import annotations

import pytest

from draftproof.core import Draft, Plan, Proposal
from draftproof.drafters.recycling import RANKS, RecyclingDrafter
from tests.drafters.lookups import assert_within, begin, context, paths, saying, step_of

CHAIN = Draft.chain((2, 3), Proposal.POINT)


def observed(drafting, before, committed, draft, logits):
    tokens = [*before, *committed]
    drafting.observe(context(tokens), draft, step_of(committed, draft), logits)


def drafted(drafting, tokens, plan):
    (draft,) = drafting.propose([context(tokens)], [plan])
    return draft


def test_the_anchor_and_every_node_teach_also_the_rejected_ones():
    drafting = begin(RecyclingDrafter(vocab_size=10))
    assert drafted(drafting, [1], Plan(3)).tokens == ()
    # After 1 comes 5, so both drafted tokens are rejected.
    observed(drafting, [0, 1], [5], CHAIN, saying([5, 4], [6, 7], [8, 9]))
    assert drafted(drafting, [1], Plan(1)).tokens == (5,)
    assert drafted(drafting, [2], Plan(1)).tokens == (6,)
    assert drafted(drafting, [3], Plan(1)).tokens == (8,)
    assert drafted(drafting, [5], Plan(1)).tokens == ()


def test_a_chain_follows_first_successors_through_the_table():
    drafting = begin(RecyclingDrafter(vocab_size=10))
    observed(drafting, [0, 1], [2, 3, 4], CHAIN, saying([2], [3], [4]))
    assert drafted(drafting, [1], Plan(5)).tokens[:3] == (2, 3, 4)
    assert drafted(drafting, [1], Plan(0)).tokens == ()


def test_a_later_row_of_the_same_token_replaces_the_earlier_one():
    drafting = begin(RecyclingDrafter(vocab_size=10))
    empty = Draft.chain((), Proposal.POINT)
    observed(drafting, [0, 1], [5], empty, saying([5]))
    observed(drafting, [0, 1], [6], empty, saying([6]))
    assert drafted(drafting, [1], Plan(1)).tokens == (6,)


@pytest.mark.parametrize("plan", [Plan(2, 3), Plan(3, 2, nodes=4), Plan(3, 8), Plan(2, 8, 64, 0.3)])
def test_trees_branch_into_the_runners_up_within_the_plan(plan):
    drafting = begin(RecyclingDrafter(vocab_size=10))
    observed(drafting, [0, 1], [2, 3, 4], CHAIN, saying([2, 3, 4, 5], [3, 1, 6], [4, 2, 1]))
    draft = drafted(drafting, [1], plan)
    assert_within(draft, plan)
    assert (2,) in paths(draft)
    if plan.nodes > 8 and not plan.floor:
        assert {(3,), (2, 3), (2, 1)} <= paths(draft)


def test_ranks_that_turn_out_right_are_drafted_first():
    drafting = begin(RecyclingDrafter(vocab_size=10))
    empty = Draft.chain((), Proposal.POINT)
    for _ in range(60):
        # The target always says 2 before 3 after 1, and sampling takes 3.
        observed(drafting, [1], [3], empty, saying([2, 3]))
    draft = drafted(drafting, [1], Plan(1, 2, nodes=1))
    assert draft.tokens == (3,)


def test_fewer_ids_than_ranks_leave_the_rest_unknown():
    drafting = begin(RecyclingDrafter(vocab_size=3))
    empty = Draft.chain((), Proposal.POINT)
    observed(drafting, [0, 1], [2], empty, saying([2, 1, 0], vocab=3))
    assert paths(drafted(drafting, [1], Plan(1, RANKS))) == {(2,), (1,), (0,)}


def test_two_loops_share_no_table():
    drafter = RecyclingDrafter(vocab_size=10)
    first, second = begin(drafter), begin(drafter)
    observed(first, [0, 1], [5], CHAIN, saying([5], [6], [8]))
    assert drafted(second, [1], Plan(1)).tokens == ()
