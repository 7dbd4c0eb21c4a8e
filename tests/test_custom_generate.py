"""transformers' own `generate` with our decoding method inside: same ids, same manners."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

import draftproof as dp
from draftproof.checks.statistics import goodness_of_fit
from draftproof.drafters.shared import SharedCacheDrafting
from draftproof.errors import InvalidSetting
from tests.tiny import VOCAB, shared_model, tiny_model

DRAFTERS = ["self-int8", "ngram", "early-exit:1", "none"]


def ids(rows: int = 1, length: int = 7, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (rows, length), generator=generator)


def left_padded() -> dict[str, torch.Tensor]:
    tokens, mask = ids(3, 9, seed=1), torch.ones((3, 9), dtype=torch.long)
    tokens[0, :4] = 0
    mask[0, :4] = 0
    return {"inputs": tokens, "attention_mask": mask}


class Recorder:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.seen += value.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_greedy_ids_are_those_of_generate(name: str, drafter: str) -> None:
    model, speculate = shared_model(name), dp.custom_generate(drafter=drafter)
    expected = model.generate(ids(), max_new_tokens=24, do_sample=False)
    found = model.generate(ids(), max_new_tokens=24, do_sample=False, custom_generate=speculate)
    assert torch.equal(found, expected)
    # Rows one by one: in a left-padded batch transformers itself loses a row of Gemma 2 to NaN.
    padded = left_padded()
    batch = model.generate(**padded, max_new_tokens=24, do_sample=False, custom_generate=speculate)
    for row, mask, out in zip(padded["inputs"], padded["attention_mask"], batch, strict=True):
        alone = model.generate(row[mask == 1][None], max_new_tokens=24, do_sample=False)[0]
        assert torch.equal(out[-len(alone) :], alone)


def test_settings_reach_the_decoder(monkeypatch) -> None:
    seen = []
    propose = SharedCacheDrafting.propose

    def noting(self, contexts, plans):
        seen.extend(plans)
        return propose(self, contexts, plans)

    monkeypatch.setattr(SharedCacheDrafting, "propose", noting)
    settings = dp.EngineSettings(depth=2, width=3, nodes=7)
    model = shared_model("llama")
    speculate = dp.custom_generate(drafter="early-exit:1", settings=settings)
    found = model.generate(ids(), max_new_tokens=12, do_sample=False, custom_generate=speculate)
    assert torch.equal(found, model.generate(ids(), max_new_tokens=12, do_sample=False))
    assert {(plan.width, plan.nodes) for plan in seen} == {(3, 7)}
    assert max(plan.depth for plan in seen) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.4},
        {"min_new_tokens": 12, "eos_token_id": [5, 11, 40]},
        {"no_repeat_ngram_size": 2},
        {"eos_token_id": list(range(3, 30)), "pad_token_id": 0},
        {"suppress_tokens": list(range(40, 97))},
    ],
    ids=lambda options: "-".join(options),
)
def test_processors_and_end_tokens_act_as_in_generate(options: dict) -> None:
    model, speculate = shared_model("llama"), dp.custom_generate(drafter="self-int8")
    inputs = left_padded() | options
    expected = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    found = model.generate(**inputs, max_new_tokens=24, do_sample=False, custom_generate=speculate)
    assert torch.equal(found, expected)


class SumIsDivisible(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):  # noqa: ARG002
        return input_ids.sum(dim=-1) % 11 == 0


def test_a_stopping_criterion_cuts_inside_a_block() -> None:
    model, speculate = shared_model("llama"), dp.custom_generate(drafter="early-exit:1", depth=5)
    options = {
        "max_new_tokens": 40,
        "do_sample": False,
        "stopping_criteria": StoppingCriteriaList([SumIsDivisible()]),
    }
    for seed in range(5):
        expected = model.generate(ids(seed=seed), **options)
        found = model.generate(ids(seed=seed), **options, custom_generate=speculate)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("limit", [{"max_length": 20}, {"max_new_tokens": 1}, {"max_length": 8}])
def test_length_limits_are_exact(limit: dict) -> None:
    model, speculate = shared_model("llama"), dp.custom_generate(drafter="self-int8")
    expected = model.generate(ids(), **limit, do_sample=False)
    found = model.generate(ids(), **limit, do_sample=False, custom_generate=speculate)
    assert torch.equal(found, expected)


def test_a_streamer_sees_prompt_tokens_and_end_as_in_generate() -> None:
    model, speculate = shared_model("llama"), dp.custom_generate(drafter="self-int8")
    theirs, ours = Recorder(), Recorder()
    model.generate(ids(), max_new_tokens=20, do_sample=False, streamer=theirs)
    model.generate(
        ids(), max_new_tokens=20, do_sample=False, streamer=ours, custom_generate=speculate
    )
    assert ours.seen == theirs.seen
    assert ours.ended == theirs.ended == 1


def test_sampling_repeats_with_the_torch_seed_whatever_the_drafter() -> None:
    model, texts = shared_model("llama"), []
    for drafter in DRAFTERS:
        torch.manual_seed(7)
        texts.append(
            model.generate(
                ids(),
                max_new_tokens=20,
                do_sample=True,
                temperature=0.9,
                top_k=8,
                num_return_sequences=3,
                custom_generate=dp.custom_generate(drafter=drafter),
            )
        )
    assert all(torch.equal(text, texts[0]) for text in texts)
    assert len({tuple(row) for row in texts[0].tolist()}) == 3
    torch.manual_seed(8)
    speculate = dp.custom_generate(drafter="none")
    other = model.generate(ids(), max_new_tokens=20, do_sample=True, custom_generate=speculate)
    assert not torch.equal(other, texts[0][:1])


def test_sampled_pairs_have_the_law_of_the_processed_logits() -> None:
    """The first two tokens under top_k=2 against the exact law, error rate 1e-6."""
    model, prompt = shared_model("llama"), ids(seed=3)
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(2):
        following = {}
        for path, mass in law.items():
            fed = torch.cat([prompt, torch.tensor([list(path)], dtype=torch.long)], dim=1)
            top = torch.topk(model(fed).logits[0, -1], 2)
            for token, p in zip(
                top.indices.tolist(), torch.softmax(top.values, 0).tolist(), strict=True
            ):
                following[(*path, token)] = mass * p
        law = following
    torch.manual_seed(0)
    speculate = dp.custom_generate(drafter="early-exit:1", depth=2)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(20):
        out = model.generate(
            prompt,
            max_new_tokens=2,
            do_sample=True,
            top_k=2,
            num_return_sequences=32,
            custom_generate=speculate,
        )
        counts.update(tuple(row[-2:]) for row in out.tolist())
    assert goodness_of_fit(counts, law, 1e-6).passed
    flat = dict.fromkeys(law, 1 / len(law))
    assert not goodness_of_fit(counts, flat, 1e-6).passed


class Remembers(LogitsProcessor):
    """Bans the token it saw most often at the end; right only if called once per position."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.lasts: Counter[int] = Counter()

    def __call__(self, input_ids, scores):
        self.lengths.append(input_ids.shape[1])
        self.lasts[int(input_ids[0, -1])] += 1
        scores = scores.clone()
        scores[:, self.lasts.most_common(1)[0][0]] = -torch.inf
        scores[:, (len(self.lengths) * 7) % VOCAB] += 3.0
        return scores


def test_a_rejected_draft_leaves_no_trace_in_a_stateful_processor() -> None:
    model = shared_model("llama")
    for drafter in DRAFTERS:
        expected = model.generate(
            ids(),
            max_new_tokens=30,
            do_sample=False,
            logits_processor=LogitsProcessorList([Remembers()]),
        )
        given = Remembers()
        found = model.generate(
            ids(),
            max_new_tokens=30,
            do_sample=False,
            logits_processor=LogitsProcessorList([given]),
            custom_generate=dp.custom_generate(drafter=drafter),
        )
        assert torch.equal(found, expected)
        assert not given.lengths, "the user's own object is only copied"


def test_a_dictionary_is_returned_when_asked_for() -> None:
    out = shared_model("llama").generate(
        ids(),
        max_new_tokens=5,
        do_sample=False,
        return_dict_in_generate=True,
        custom_generate=dp.custom_generate(drafter="ngram"),
    )
    assert out.sequences.shape == (1, 12)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(options: dict, named: str) -> None:
    with pytest.raises(InvalidSetting, match=named):
        shared_model("llama").generate(
            ids(), max_new_tokens=4, custom_generate=dp.custom_generate(drafter="ngram"), **options
        )


def test_a_filled_cache_is_refused() -> None:
    model = shared_model("llama")
    cache = model(ids(), use_cache=True).cache
    with pytest.raises(InvalidSetting, match="filled cache"):
        model.generate(
            ids(length=9),
            cache=cache,
            max_new_tokens=4,
            do_sample=False,
            custom_generate=dp.custom_generate(drafter="ngram"),
        )


def test_the_model_stays_as_it_was() -> None:
    model = tiny_model("llama").train()
    before = copy.deepcopy(model.state_dict())
    config, generation = model.config.to_dict(), model.generation_config.to_dict()
    speculate = dp.custom_generate(drafter="self-int8")
    model.generate(ids(), max_new_tokens=6, do_sample=False, custom_generate=speculate)
    assert model.training
    assert model.config.to_dict() == config
    assert model.generation_config.to_dict() == generation
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
