"""Lookahead keeps what the target says about wrong drafts and drafts from it."""

from __future__ import annotations

import pytest

from draftproof.core import Draft, Plan, Proposal
from draftproof.drafters.lookahead import LookaheadDrafter
from tests.drafters.lookups import assert_within, begin, context, follow, paths, saying, step_of


def observed(drafting, before, committed, draft, logits, row=0):
    tokens = [*before, *committed]
    drafting.observe(context(tokens, row), draft, step_of(committed, draft), logits)


def drafted(drafting, tokens, plan, row=0):
    (draft,) = drafting.propose([context(tokens, row)], [plan])
    return draft


def chain(*tokens):
    return Draft.chain(tokens, Proposal.POINT)


def test_before_anything_is_known_a_guess_is_begun_with_the_text():
    assert drafted(begin(LookaheadDrafter()), [4, 5, 6], Plan(2)).tokens == (5, 6)
    assert drafted(begin(LookaheadDrafter()), [4], Plan(3)).tokens == (4,)
    assert drafted(begin(LookaheadDrafter()), [4], Plan(0)).tokens == ()


def test_what_the_target_said_after_rejected_tokens_is_the_refined_guess():
    drafting = begin(LookaheadDrafter())
    # 1 was followed by 9, not by 2; after 2, 3 and 4 the target said 5, 6 and 7.
    said = saying([9], [5], [6], [7])
    observed(drafting, [0, 1], [9], chain(2, 3, 4), said)
    assert drafted(drafting, [0, 1, 9], Plan(4)).tokens == (5, 6, 7)
    # Accepted tokens are not guessed again: 2 is right, 3 is not.
    observed(drafting, [0, 1], [2, 9], chain(2, 3, 4), saying([2], [9], [6], [7]), row=1)
    assert drafted(drafting, [0, 1, 2, 9], Plan(4), row=1).tokens == (6, 7)


def test_the_guess_follows_the_first_rejected_branch_of_a_tree():
    drafting = begin(LookaheadDrafter())
    tree = Draft((2, 3, 4), (-1, -1, 1), None, Proposal.POINT)
    observed(drafting, [0, 1], [3, 9], tree, saying([3], [5], [9], [7]))
    assert drafted(drafting, [0, 1, 3, 9], Plan(4)).tokens == (7,)


def test_n_grams_of_right_and_wrong_paths_are_found_by_their_first_token():
    drafting = begin(LookaheadDrafter())
    observed(drafting, [0, 1], [9], chain(2, 3, 4), saying([9], [5], [6], [7]))
    #          0 1 2 -> 5   1 2 3 -> 6   2 3 4 -> 7
    tokens = [0, 1, 9, 8]
    observed(drafting, [0, 1, 9], [8], chain(), saying([8]))  # leaves no guess
    assert drafted(drafting, [*tokens, 2], Plan(3)).tokens == (3, 4, 7)
    assert drafted(drafting, [*tokens, 1], Plan(2)).tokens == (2, 3)


def test_a_repeated_text_is_drafted_whole():
    after = {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 2}
    drafting, tokens = begin(LookaheadDrafter()), [0, 1]
    for _ in range(8):
        draft = drafted(drafting, tokens, Plan(4))
        step = [after[tokens[-1]]]
        while len(step) <= len(draft.tokens) and draft.tokens[len(step) - 1] == step[-1]:
            step.append(after[step[-1]])
        said = saying(*[[after[token]] for token in (tokens[-1], *draft.tokens)])
        observed(drafting, tokens, step, draft, said)
        tokens += step
    assert len(step) == 5, "all four drafted tokens are right, and one more is the target's"


@pytest.mark.parametrize("plan", [Plan(3, 2), Plan(3, 3, nodes=4), Plan(2, 2, 64, 0.2), Plan(5, 9)])
def test_trees_hold_other_n_grams_within_the_plan(plan):
    drafting = begin(LookaheadDrafter())
    for first in (2, 5, 8):
        observed(drafting, [7, 1, first, 3], [4], chain(), saying([4]))
    draft = drafted(drafting, [0, 1], plan)
    assert_within(draft, plan)
    assert (8, 3)[: plan.depth] in paths(draft), "the latest n-gram"
    if plan.nodes > 4:
        assert (5,) in paths(draft)


def test_the_floor_cuts_chains_by_how_often_the_pool_was_right():
    drafting, tokens = begin(LookaheadDrafter()), [0, 1]
    depths = []
    for token in [2, 3, 4, 5, 6, 7, 8, 9] * 8:
        follow(drafting, tokens, token, depth=1)
        depths.append(len(drafted(drafting, tokens, Plan(4, floor=0.6)).tokens))
    assert depths[0] == 0, "one half is assumed until something is counted"
    assert depths == sorted(depths)
    assert depths[-1] > 1
    assert drafted(drafting, tokens, Plan(4, floor=0.999)).tokens == ()


def test_a_pool_keeps_the_latest_few_n_grams_of_a_token():
    drafting = begin(LookaheadDrafter())
    for first in range(2, 10):
        for second in range(2, 10):
            observed(drafting, [1, first, second], [3], chain(), saying([3]))
    assert len(paths(drafted(drafting, [1], Plan(1, 64)))) <= 8
    assert len(drafting._rows[0].pool[1]) == 8


def test_rows_are_forgotten_and_moved():
    drafting = begin(LookaheadDrafter())
    for row in (0, 1):
        observed(drafting, [0, 1], [9], chain(2, 3), saying([9], [5 + row], [6]), row=row)
    drafting.release(0)
    drafting.move(1, 0)
    assert drafted(drafting, [0, 1, 9], Plan(2)).tokens == (6, 6)
    assert drafted(drafting, [0, 1, 9], Plan(2), row=1).tokens == (1, 9), "nothing is left here"
