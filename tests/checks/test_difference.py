"""The first difference of two outputs, and how far from a tie it is."""

from __future__ import annotations

import json
import math

import pytest
import torch

from draftproof.checks.difference import TIE_GAP, first_difference, last_logits
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.noise import KeyedNoise
from draftproof.sampling.params import SamplingParams
from tests.tiny import VOCAB, prompt, shared_target, tiny_model
from tests.toys import constant_law

PROMPT = [0, 1]
GREEDY = SamplingParams()


def between(a, b, params=GREEDY, law=(0.5, 0.3, 0.2)):
    return first_difference(ToyModel(constant_law(*law), len(law)), PROMPT, a, b, params, len(law))


def test_equal_outputs_have_no_difference():
    assert between([0, 1, 2], (0, 1, 2)) is None
    assert between([], []) is None


def test_the_first_position_and_both_tokens_are_named():
    found = between([0, 0, 1, 2], [0, 0, 2, 1])
    assert (found.position, found.expected, found.found) == (2, 1, 2)


def test_gap_under_a_grammar_is_that_of_the_masked_law():
    """Tokens that the grammar forbids take no part, however likely they are."""
    pytest.importorskip("llguidance")
    from tests.grammars import AB, ABCD, PIECES, A, V, grammars

    loud = constant_law(*[0.9 if v == V - 2 else 0.1 / (V - 1) for v in range(V)])
    params = SamplingParams(grammar=ABCD)
    matcher = grammars().matcher(ABCD, frozenset())
    found = first_difference(ToyModel(loud, V), PROMPT, [A], [AB], params, len(PIECES), matcher)
    assert found.gap == pytest.approx(0.0, abs=1e-12)


def test_greedy_gap_is_the_distance_of_the_logits():
    assert between([0], [2]).gap == pytest.approx(math.log(0.5 / 0.2), abs=1e-12)
    assert not between([0], [2]).is_near_tie


def test_a_gap_of_rounding_size_is_a_near_tie():
    tiny = 1e-11
    found = between([0], [1], law=(0.4 + tiny, 0.4, 0.2 - tiny))
    assert found.is_near_tie
    assert 0 < found.gap == pytest.approx(tiny / 0.4, rel=1e-3)
    assert found.tolerance == TIE_GAP[torch.float64]


@pytest.mark.parametrize(
    ("params", "moved"),
    [
        (SamplingParams(logit_bias={2: 0.25}), -0.25),
        (SamplingParams(presence_penalty=0.5), -0.5),
        (SamplingParams(frequency_penalty=0.3), -0.6),
    ],
)
def test_greedy_gap_counts_what_the_request_adds_to_the_logits(params, moved):
    """The common output holds token 0 twice, so penalties lower its lead over token 2."""
    found = between([0, 0, 0], [0, 0, 2], params)
    assert found.gap == pytest.approx(math.log(0.5 / 0.2) + moved, abs=1e-9)


def test_a_repetition_penalty_can_make_the_tie():
    """Logits log(p) are negative; the penalty halves token 1's lead over the unseen token 2."""
    law = (0.3, 0.49, 0.21)
    params = SamplingParams(repetition_penalty=math.log(0.21) / math.log(0.49))
    assert not between([1, 1], [1, 2], law=law).is_near_tie
    assert between([1, 1], [1, 2], params, law=law).is_near_tie


def test_greedy_gap_ignores_what_greedy_decoding_ignores():
    cut = SamplingParams(top_k=1, top_p=0.1, min_p=0.9)
    assert between([0], [2], cut).gap == pytest.approx(between([0], [2]).gap, abs=1e-12)


def test_a_banned_token_is_no_near_tie():
    found = between([0], [1], SamplingParams(logit_bias={1: -math.inf}))
    assert found.gap == math.inf
    assert not found.is_near_tie


@pytest.mark.parametrize(("a", "b"), [([0, 1], [0]), ([0], [0, 1]), ([], [0])])
def test_an_output_that_ended_early_is_never_a_near_tie(a, b):
    found = between(a, b)
    assert found.position == min(len(a), len(b))
    assert [found.expected, found.found].count(None) == 1
    assert not found.is_near_tie
    assert found.as_dict()["gap"] is None
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_seeded_gap_is_the_distance_in_the_race(temperature):
    law = (0.5, 0.3, 0.2)
    params = SamplingParams(temperature=temperature, seed=7)
    p = torch.tensor(law, dtype=torch.float64) ** (1 / temperature)
    p /= p.sum()
    position = len(PROMPT) + 1
    noise = KeyedNoise(7)
    scores = (p.log() - noise.exponentials(position, p).log()) * temperature
    winner = noise.race(p, position)
    assert int(scores.argmax()) == winner
    for other in {0, 1, 2} - {winner}:
        found = between([0, winner], [0, other], params)
        assert found.position == 1
        assert found.gap == pytest.approx(float(scores[winner] - scores[other]), abs=1e-9)


def test_seeded_gap_is_what_the_logits_have_to_move_to_change_the_token():
    """Raising the loser's logit by a little more than the gap makes it the winner."""
    params = SamplingParams(temperature=1.0, seed=3)
    noise, law = KeyedNoise(3), torch.tensor((0.5, 0.3, 0.2), dtype=torch.float64)
    winner = noise.race(law, len(PROMPT))
    for loser in {0, 1, 2} - {winner}:
        gap = between([winner], [loser], params).gap
        for factor, expected in ((0.999, winner), (1.001, loser)):
            moved = law.clone()
            moved[loser] *= math.exp(gap * factor)
            if expected == winner:
                assert noise.race(moved, len(PROMPT)) != loser
            else:
                assert noise.race(moved, len(PROMPT)) == loser


@pytest.mark.parametrize("count", [1, 3, 9])
def test_last_logits_are_those_of_one_pass(count):
    ids = prompt(9)
    model = tiny_model("llama")
    expected = model(torch.tensor([ids])).logits[0, -count:]
    got = last_logits(shared_target("llama"), ids, count)
    assert got.shape == (count, VOCAB)
    assert torch.allclose(got, expected, atol=1e-9)


def test_last_logits_of_a_law_are_the_law():
    law = random_law(5, seed=1)
    logits = last_logits(ToyModel(law, 5), [1, 2, 3, 4], 2)
    for row, prefix in enumerate([(1, 2, 3), (1, 2, 3, 4)]):
        assert logits[row].exp().tolist() == pytest.approx(list(law(prefix)), abs=1e-12)
