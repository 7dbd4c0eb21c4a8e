"""Logits to distribution: the same numbers as transformers' own processors, at every prefix."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftproof.errors import InvalidSetting
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp

V = 12
PROMPT = [1, 4, 4]
CLOSE = 1e-6


def random_logits(seed, rows=1, size=V, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn((rows, size), generator=generator)).to(dtype)


def warp(params, **others):
    return Warp(params, prompt_length=len(PROMPT), num_tokens=V, **others)


def theirs(params, end_ids=()):
    """What generate() of transformers would build for these settings, in its order."""
    processors = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.min_tokens:
        processors.append(
            MinNewTokensLengthLogitsProcessor(len(PROMPT), params.min_tokens, list(end_ids))
        )
    processors.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k is not None:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        processors.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        processors.append(MinPLogitsWarper(params.min_p))
    return processors


SETTINGS = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"top_k": 1},
    {"top_k": 2},
    {"top_k": 50},
    {"top_p": 0.1},
    {"top_p": 0.7},
    {"top_p": 0.95},
    {"min_p": 0.05},
    {"min_p": 0.5},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"min_tokens": 2},
    {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2},
    {"temperature": 1.5, "top_k": 4, "top_p": 0.6, "min_tokens": 3, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_law_is_the_one_transformers_would_sample_from(settings):
    """Every field acts, in the same order, at every drafted prefix; unset top_k keeps all."""
    params = SamplingParams(**{"temperature": 1.0, **settings})
    drafted = [7, 0, 4]
    for seed in range(8):
        logits = random_logits(seed, rows=4)
        p = warp(params, end_ids=frozenset({0, 5})).target_law(
            logits, [*PROMPT, 9], [-1, 0, 1], drafted
        )
        for row in range(4):
            ids = torch.tensor([[*PROMPT, 9, *drafted[:row]]])
            scores = theirs(params, (0, 5))(ids, logits[row : row + 1].clone())
            assert torch.allclose(p[row], torch.softmax(scores, -1)[0], atol=CLOSE)
            assert torch.equal(p[row] > 0, torch.softmax(scores, -1)[0] > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_logits_are_left_as_they_are_and_the_law_sums_to_one(dtype):
    params = SamplingParams(
        temperature=0.9, top_k=8, top_p=0.9, min_p=0.01, repetition_penalty=1.1,
        presence_penalty=0.5, frequency_penalty=0.5, logit_bias={3: 2.0}, min_tokens=4,
    )  # fmt: skip
    logits = random_logits(3, rows=3, dtype=dtype)
    before = logits.clone()
    shaping = warp(params, end_ids=frozenset({2}))
    p = shaping.target_law(logits, PROMPT, [-1, 0], [5, 6])
    shaping.draft_law(logits[0], PROMPT)
    assert torch.equal(logits, before)
    assert p.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    assert torch.allclose(p.sum(-1), torch.ones(3, dtype=p.dtype))


def test_draft_is_shaped_as_the_target_so_that_q_is_the_law_it_is_drawn_from():
    params = SamplingParams(temperature=0.7, top_k=5, top_p=0.8, repetition_penalty=1.4)
    logits = random_logits(1, rows=2)
    p = warp(params).target_law(logits, PROMPT, [-1], [8])
    assert torch.equal(warp(params).draft_law(logits[0], PROMPT), p[0])
    assert torch.equal(warp(params).draft_law(logits[1], [*PROMPT, 8]), p[1])


# Penalties ----------------------------------------------------------------------------------


def test_presence_and_frequency_count_output_and_the_drafted_prefix_but_not_the_prompt():
    """The definition of the OpenAI API, written out: each drafted row sees its own ancestors."""
    params = SamplingParams(temperature=1.0, presence_penalty=0.6, frequency_penalty=0.25)
    logits = random_logits(5, rows=4, dtype=torch.float64)
    committed, drafted = [*PROMPT, 4, 9], [9, 4, 9]
    p = warp(params).target_law(logits, committed, [-1, 0, 1], drafted)
    for row in range(4):
        output = [4, 9, *drafted[:row]]
        wanted = logits[row].clone()
        for token in range(V):
            count = output.count(token)
            wanted[token] -= 0.25 * count + (0.6 if count else 0.0)
        assert torch.allclose(p[row], torch.softmax(wanted, -1))


def test_siblings_of_a_tree_do_not_see_each_other():
    params = SamplingParams(temperature=1.0, frequency_penalty=3.0)
    logits = random_logits(6, dtype=torch.float64).expand(4, V)
    p = warp(params).target_law(logits, PROMPT, [-1, -1, 1], [7, 8, 7])
    chain = warp(params).target_law(logits[:3], PROMPT, [-1, 0], [8, 7])
    assert torch.equal(p[2], chain[1])
    assert torch.equal(p[3], chain[2])
    alone = warp(params).target_law(logits[:2], PROMPT, [-1], [7])
    assert torch.equal(p[1], alone[1])


def test_bias_acts_at_every_position_and_can_ban():
    params = SamplingParams(temperature=1.0, logit_bias={3: 100.0, 4: float("-inf")})
    p = warp(params).target_law(random_logits(2, rows=5), PROMPT, [-1, 0, 1, 2], [3, 3, 3, 3])
    assert torch.allclose(p[:, 3], torch.ones(5))
    assert torch.equal(p[:, 4], torch.zeros(5))


def test_min_tokens_six_bans_the_end_for_six_tokens_and_no_longer():
    """Counted per drafted token, not per round: the seventh token may be the end."""
    params = SamplingParams(temperature=1.0, min_tokens=6, max_tokens=20)
    drafted = [7, 8, 9, 7, 8]
    logits = random_logits(4, rows=6)
    p = warp(params, end_ids=frozenset({2})).target_law(
        logits, [*PROMPT, 5, 6, 7], [-1, 0, 1, 2, 3], drafted
    )
    assert p[:, 2].tolist()[:3] == [0.0, 0.0, 0.0]
    assert bool((p[3:, 2] > 0).all())


# Edges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6, 1e-40, 1e-46, 5e-324])
def test_tiny_temperatures_are_a_point_on_the_argmax(temperature, dtype):
    """Neither NaN nor a silent fall back to greedy where sampling was asked for."""
    logits = random_logits(8, rows=3, dtype=dtype)
    p = warp(SamplingParams(temperature=temperature)).target_law(logits, PROMPT, [-1, 0], [1, 2])
    assert torch.equal(p.argmax(-1), logits.float().argmax(-1))
    assert torch.allclose(p.amax(-1), torch.ones(3, dtype=p.dtype))


def test_temperature_one_is_the_models_own_law_and_unset_is_greedy():
    logits = random_logits(9, dtype=torch.float64)
    p = warp(SamplingParams(temperature=1.0)).target_law(logits, PROMPT, [], [])
    assert torch.allclose(p, torch.softmax(logits, -1))
    greedy = warp(SamplingParams()).target_law(logits, PROMPT, [], [])
    assert greedy[0, logits.argmax()] == 1.0


def test_greedy_takes_the_first_of_equal_logits():
    logits = torch.zeros((1, V))
    logits[0, [5, 3, 9]] = 2.0
    assert warp(SamplingParams()).target_law(logits, PROMPT, [], []).argmax() == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
def test_ids_that_pad_the_embedding_are_impossible(temperature):
    """A logit beyond the tokenizer's ids is no token, however large."""
    logits = random_logits(1, rows=2, size=V + 4)
    logits[:, V:] = 1e4
    p = warp(SamplingParams(temperature=temperature)).target_law(logits, PROMPT, [-1], [1])
    assert p.shape == (2, V + 4)
    assert torch.equal(p[:, V:], torch.zeros((2, 4)))
    assert torch.allclose(p.sum(-1), torch.ones(2))


def test_top_k_above_the_number_of_tokens_keeps_only_real_ones():
    logits = random_logits(1, size=V + 4)
    p = warp(SamplingParams(temperature=1.0, top_k=V + 2)).target_law(logits, PROMPT, [], [])
    assert int((p > 0).sum()) == V


def test_impossible_logits_of_the_model_stay_impossible():
    logits = random_logits(2)
    logits[0, [0, 3]] = -torch.inf
    params = SamplingParams(temperature=0.3, repetition_penalty=2.0, frequency_penalty=-1.0)
    p = warp(params).target_law(logits, [*PROMPT, 3, 0], [], [])
    assert p[0, [0, 3]].tolist() == [0.0, 0.0]
    assert bool(p.isfinite().all())


def test_banning_every_token_is_refused_in_words():
    bans = dict.fromkeys(range(V), float("-inf"))
    for temperature in (0.0, 1.0):
        shaping = warp(SamplingParams(temperature=temperature, logit_bias=bans))
        with pytest.raises(InvalidSetting, match="no token is possible"):
            shaping.target_law(random_logits(0), PROMPT, [], [])


@pytest.mark.parametrize(("field", "value"), [("logit_bias", {V: 1.0}), ("stop_token_ids", [V])])
def test_ids_beyond_the_vocabulary_are_refused(field, value):
    with pytest.raises(InvalidSetting, match=f"{V}.*{field}"):
        warp(SamplingParams(**{field: value}))
