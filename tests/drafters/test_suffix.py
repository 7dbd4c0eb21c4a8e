"""Suffix decoding drafts what the counts say, from the best of its three sources."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core import Plan
from draftproof.drafters.suffix import MAX_MATCH, SuffixDrafter
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from tests.drafters.lookups import assert_within, begin, context, follow, paths
from tests.toys import remembered


def drafted(drafting, tokens, plan, row=0):
    (draft,) = drafting.propose([context(tokens, row)], [plan])
    return draft


def test_the_most_frequent_continuation_is_drafted_three_times_as_deep_as_was_matched():
    #        1 2 -> 3 twice, 1 2 -> 4 once, and the last is the newest
    text = [1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 4, 7, 1, 2]
    draft = drafted(begin(SuffixDrafter()), text, Plan(8))
    assert draft.tokens == (3, 6, 1, 2, 4, 7), "5 and 6 followed 3 once, and 6 is newer"


def test_a_wide_plan_drafts_the_other_continuations_too():
    text = [1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 4, 7, 1, 2]
    draft = drafted(begin(SuffixDrafter()), text, Plan(2, width=2))
    assert paths(draft) == {(3,), (4,), (3, 5), (3, 6), (4, 7)}
    few = drafted(begin(SuffixDrafter()), text, Plan(8, width=2, nodes=2))
    assert paths(few) == {(3,), (4,)}


@pytest.mark.parametrize(("floor", "wanted"), [(0.5, {(3,)}), (0.34, {(3,)}), (0.7, set())])
def test_paths_less_likely_than_the_floor_are_left(floor, wanted):
    text = [1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 4, 7, 1, 2]
    draft = drafted(begin(SuffixDrafter()), text, Plan(8, width=2, floor=floor))
    assert paths(draft) == wanted


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    plan=st.builds(
        Plan,
        depth=st.integers(0, 6),
        width=st.integers(1, 3),
        nodes=st.integers(1, 9),
        floor=st.sampled_from([0.0, 0.4]),
    ),
)
def test_every_draft_keeps_to_its_plan(text, plan):
    drafting = begin(SuffixDrafter())
    for length in range(1, len(text) + 1):
        draft = drafted(drafting, text[:length], plan)
        assert_within(draft, plan)
        # Every drafted path stood somewhere behind the anchor before.
        for path in paths(draft):
            string = [text[length - 1], *path]
            assert any(text[i : i + len(string)] == string for i in range(length))


# Finished requests --------------------------------------------------------------------------


def finish(drafting, prompt, generated, row=0):
    tokens = list(prompt)
    for token in generated:
        follow(drafting, tokens, token, row)
    drafting.release(row)


def test_what_an_earlier_request_generated_is_drafted_in_a_later_one():
    drafter = SuffixDrafter()
    first, second = begin(drafter), begin(drafter)
    assert drafted(second, [7, 8], Plan(4)).tokens == ()
    finish(first, [7, 8], [1, 2, 3])
    # The end of the prompt leads to the first generated token.
    assert drafted(second, [7, 8], Plan(4)).tokens == (1, 2, 3)
    assert drafted(second, [9, 1, 2], Plan(4), row=1).tokens == (3,)


def test_an_unfinished_or_empty_request_is_not_shared():
    drafter = SuffixDrafter()
    drafting = begin(drafter)
    tokens = [1, 2, 3]
    follow(drafting, tokens, 4)
    assert drafted(drafting, [2, 3], Plan(2), row=1).tokens == ()
    drafting.release(2)
    drafting.release(1)
    assert drafter._finished._index.num_tokens == 0


def test_a_request_that_was_broken_off_is_not_shared_and_its_row_starts_anew():
    drafter = SuffixDrafter()
    drafting = begin(drafter)
    follow(drafting, [1, 2, 3], 4)
    drafting.forget(0)
    assert drafter._finished._index.num_tokens == 0
    assert drafted(drafting, [2, 3], Plan(2)).tokens == ()
    drafting.release(0)
    assert drafter._finished._index.num_tokens == 0, "nothing was generated behind the prompt"


def test_a_moved_sequence_is_shared_from_its_new_row_and_reused_rows_start_anew():
    drafter = SuffixDrafter()
    drafting = begin(drafter)
    first, last = [1, 2], [3, 4]
    follow(drafting, first, 5, row=0)
    follow(drafting, last, 6, row=1)
    drafting.release(0)
    drafting.move(1, 0)
    follow(drafting, last, 7, row=0)
    assert drafted(drafting, [0], Plan(2), row=1).tokens == ()
    drafting.release(0)
    drafting.release(1)
    index = drafter._finished._index
    assert index.num_tokens == len(first) + len(last)
    assert drafted(begin(drafter), [3, 4], Plan(4)).tokens == (6, 7)


def test_a_thousand_requests_stay_within_the_cap():
    drafter, dice = SuffixDrafter(max_held=200), random.Random(0)
    drafting = begin(drafter)
    for _ in range(1000):
        prompt = dice.choices(range(9), k=dice.randint(1, 60))
        finish(drafting, prompt, dice.choices(range(9), k=dice.randint(1, 4)))
        assert drafter._finished._index.num_tokens <= 200
    assert drafter._finished._index.num_tokens > 200 - (MAX_MATCH + 4)
    assert not drafting._texts._rows
    assert not drafting._prompts


def test_two_loops_of_one_drafter_may_run_at_once():
    """Each thread's texts are its own; what they share stays whole."""
    from draftproof.api import Speculator

    law = remembered(random_law(6, seed=3))
    system = Speculator(ToyModel(law, 6), SuffixDrafter(max_held=40))
    params = [SamplingParams(max_tokens=12, temperature=1.0, seed=seed) for seed in range(5)]
    prompts = [[seed % 6, 1] for seed in range(5)]
    plain = [output.token_ids for output in system.plain(prompts, params)]
    wrong: list[object] = []

    def work():
        for _ in range(4):
            outputs = system.generate(prompts, params)
            wrong.extend(o for o, ids in zip(outputs, plain, strict=True) if o.token_ids != ids)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 0 < system.drafter._finished._index.num_tokens <= 40


# Corpus -------------------------------------------------------------------------------------


def test_a_corpus_is_asked_too_and_its_texts_do_not_run_together():
    drafter = SuffixDrafter(corpus=[[1, 2, 3], [4, 5]])
    drafting = begin(drafter)
    assert drafted(drafting, [9, 1, 2], Plan(4)).tokens == (3,)
    assert drafted(drafting, [1, 2, 3], Plan(4), row=1).tokens == ()


def test_the_source_that_expects_most_is_used():
    drafter = SuffixDrafter(corpus=[[1, 2, 3, 8, 8, 8]])
    draft = drafted(begin(drafter), [3, 7, 7, 1, 2, 3], Plan(4))
    assert draft.tokens == (8, 8, 8), "three tokens match in the corpus, one in the text itself"
