"""A user's own processors, which may keep state, see exactly what plain decoding shows them."""

from __future__ import annotations

import threading

import pytest
import torch

from draftproof.errors import InvalidSetting
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp

V = 6


class Diary:
    """Writes down every prefix it is called with and bans the token it saw last."""

    def __init__(self):
        self.history = []

    def __call__(self, input_ids, scores):
        self.history.append(input_ids[0].tolist())
        scores = scores.clone()
        scores[0, input_ids[0, -1]] = -torch.inf
        return scores


def make_warp(*processors):
    params = SamplingParams(temperature=1.0, logits_processors=processors)
    return Warp(params, prompt_length=1, num_tokens=V)


def diary_of(warp):
    (diary,) = warp._processors
    return diary.history


def test_history_after_each_round_is_the_emitted_tokens():
    """Rejected drafts leave no trace: one call per position, as in plain decoding."""
    given = Diary()
    warp = make_warp(given)
    tokens = [0]
    rounds = [([1, 2, 3], 2), ([4, 5], 0), ([], 0), ([2, 2, 2], 3), ([1], 1)]
    for drafted, accepted in rounds:
        logits = torch.zeros((1 + len(drafted), V))
        warp.target_law(logits, tokens, range(-1, len(drafted) - 1), drafted)
        warp.settle(accepted - 1)
        tokens += [*drafted[:accepted], 3]
        assert diary_of(warp) == [tokens[:length] for length in range(1, len(tokens))]
    assert given.history == [], "the user's own object is never run"


def test_copy_that_judges_a_node_has_seen_its_ancestors_only():
    warp = make_warp(Diary())
    warp.target_law(torch.zeros((5, V)), [0], [-1, -1, 0, 1], [1, 2, 3, 4])
    warp.settle(3)
    assert diary_of(warp) == [[0], [0, 2], [0, 2, 4]]


def test_law_at_a_drafted_position_follows_the_processors_own_state():
    warp = make_warp(Diary())
    p = warp.target_law(torch.zeros((3, V)), [0], [-1, 0], [1, 2])
    assert [p[row].argmin().item() for row in range(3)] == [0, 1, 2]
    assert p.amin(-1).tolist() == [0.0, 0.0, 0.0]


def test_drafts_do_not_run_the_processors():
    warp = make_warp(Diary())
    warp.draft_law(torch.zeros(V), [0, 1])
    assert diary_of(warp) == []


def test_processors_run_before_temperature_and_cuts():
    """A processor sees the model's logits, so that its numbers mean what they mean plainly."""
    seen = []

    class Spy:
        def __call__(self, input_ids, scores):  # noqa: ARG002
            seen.append(scores.clone())
            return scores

        def __deepcopy__(self, memo):
            return self

    params = SamplingParams(temperature=0.5, top_k=1, logits_processors=[Spy()])
    logits = torch.arange(V, dtype=torch.float32)[None]
    Warp(params, prompt_length=1, num_tokens=V).target_law(logits, [0], [], [])
    assert torch.equal(seen[0], logits)


def test_processor_that_cannot_be_copied_is_refused():
    class Locked:
        def __init__(self):
            self.lock = threading.Lock()

        def __call__(self, input_ids, scores):  # noqa: ARG002
            return scores

    with pytest.raises(InvalidSetting, match="cannot be copied"):
        make_warp(Locked())


def test_two_sequences_of_one_request_share_no_state():
    params = SamplingParams(temperature=1.0, logits_processors=[Diary()])
    first, second = (Warp(params, prompt_length=1, num_tokens=V) for _ in range(2))
    first.target_law(torch.zeros((1, V)), [0], [], [])
    first.settle(-1)
    assert diary_of(first) == [[0]]
    assert diary_of(second) == []
