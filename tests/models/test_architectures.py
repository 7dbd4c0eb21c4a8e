"""Every architecture generates, token for token, what transformers generates by itself."""

from __future__ import annotations

import functools

import pytest
import torch
import transformers as tf

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.models.hf import HFModel
from draftproof.sampling.params import SamplingParams
from tests.tiny import (
    ARCHITECTURES,
    NEW_TOKENS,
    WINDOW,
    Saboteur,
    own_greedy,
    prompt,
    shared_model,
    shared_target,
    speculator,
    tiny_model,
)

GREEDY = SamplingParams(max_tokens=NEW_TOKENS)
PROMPTS = [prompt(1), prompt(20), prompt(7)]
DRAFTERS = ["self-int8", "early-exit:1", "ngram", "model", "close-model", "none"]


@functools.cache
def own_outputs(name: str) -> list[tuple[int, ...]]:
    return [own_greedy(shared_model(name), ids) for ids in PROMPTS]


def tokens_of(outputs) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_plain_is_transformers_own_greedy_output(name: str) -> None:
    plain = speculator(shared_target(name), "none").plain
    assert [plain(ids, GREEDY).token_ids for ids in PROMPTS] == own_outputs(name)
    assert tokens_of(plain(PROMPTS, GREEDY)) == own_outputs(name)
    assert max(len(set(tokens)) for tokens in own_outputs(name)) >= 5, "the texts are degenerate"


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_drafted_is_transformers_own_greedy_output(name: str, drafter: str) -> None:
    target = shared_target(name)
    together = speculator(target, drafter, depth=4).generate(PROMPTS, GREEDY)
    assert tokens_of(together) == own_outputs(name), "rows of one batch"
    alone = speculator(target, drafter, depth=1).generate
    assert [alone(ids, GREEDY).token_ids for ids in PROMPTS[:2]] == own_outputs(name)[:2]
    drafted = sum(output.stats.drafted for output in together)
    accepted = sum(output.stats.accepted for output in together)
    assert drafted == 0 if drafter == "none" else drafted > 0
    assert accepted > 0 or drafter not in ("self-int8", "close-model")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_seeded_samples_are_those_of_plain_in_any_batch(name: str) -> None:
    made = speculator(shared_target(name), "self-int8", depth=3)
    params = [SamplingParams(max_tokens=10, temperature=2.0, seed=s, n=2) for s in (5, 6, 7)]
    together = made.generate(PROMPTS, params)
    samples = [[sample.token_ids for sample in output.samples] for output in together]
    for ours, ids, wanted in zip(samples, PROMPTS, params, strict=True):
        assert ours == [sample.token_ids for sample in made.plain(ids, wanted).samples]
    assert any(first != second for first, second in samples)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "qwen2-mixed", "opt", "gpt2", "gpt-neox", "phi3"])
def test_both_attention_paths(name: str, attention: str) -> None:
    model = tiny_model(name, seed=2, attn_implementation=attention)
    target = HFModel(model, name)
    assert target._module.config._attn_implementation == attention
    expected = [own_greedy(model, ids) for ids in PROMPTS]
    assert tokens_of(speculator(target, "self-int8").generate(PROMPTS, GREEDY)) == expected


@pytest.mark.parametrize("loaded_with", ["flash_attention_2", "flex_attention"])
def test_an_attention_that_takes_no_masks_is_replaced_on_our_copy(loaded_with: str) -> None:
    model = tiny_model("llama", seed=3)
    expected = [own_greedy(model, ids) for ids in PROMPTS]
    # Without a GPU these cannot be loaded, and all that loading leaves is this field.
    model.config._attn_implementation_internal = loaded_with
    outputs = speculator(HFModel(model, "llama"), "self-int8").generate(PROMPTS, GREEDY)
    assert tokens_of(outputs) == expected
    assert model.config._attn_implementation == loaded_with


def test_soft_capped_attention_is_never_left_to_sdpa() -> None:
    expected = own_greedy(tiny_model("gemma2", seed=4), PROMPTS[1])
    model = tiny_model("gemma2", seed=4)
    # As earlier versions of transformers let it be loaded.
    model.config._attn_implementation_internal, model._supports_sdpa = "sdpa", True
    output = speculator(HFModel(model, "gemma2"), "ngram").generate(PROMPTS[1], GREEDY)
    assert output.token_ids == expected


def test_a_model_without_sdpa_gets_eager_attention() -> None:
    class NoSdpa(tf.LlamaForCausalLM):
        _supports_sdpa = False

    model = NoSdpa(tf.LlamaConfig(**ARCHITECTURES["llama"][2])).double()
    assert HFModel(model, "no-sdpa")._module.config._attn_implementation == "eager"


SLIDING = [
    ("mistral", "sdpa", {}),
    ("mistral", "eager", {}),
    ("gemma3", "sdpa", {}),
    ("gemma3", "eager", {}),
    ("gemma2", "eager", {}),
    ("gemma2", "eager", {"attn_logit_softcapping": None}),
    ("qwen2-mixed", "sdpa", {}),
]


@pytest.mark.parametrize(("name", "attention", "changes"), SLIDING)
def test_sliding_windows_with_forced_rejections(name: str, attention: str, changes: dict) -> None:
    model = tiny_model(name, seed=1, attn_implementation=attention, **changes)
    target = HFModel(model, name)
    prompts = [prompt(3), prompt(1), prompt(WINDOW), prompt(20)]
    texts = [[*ids, *own_greedy(model, ids, 40)] for ids in prompts]
    made = Speculator(target, Saboteur(texts, target.vocab_size), settings=EngineSettings(depth=4))
    # Whole lengths of one less than the window, the window, one more, and far beyond it.
    for budget in (WINDOW - 4, WINDOW - 3, WINDOW - 2, 40):
        params = SamplingParams(max_tokens=budget)
        outputs = made.generate(prompts, params)
        for output, text, ids in zip(outputs, texts, prompts, strict=True):
            assert list(output.token_ids) == text[len(ids) : len(ids) + budget]
        assert list(made.generate(prompts[0], params).token_ids) == texts[0][3 : 3 + budget]
    assert sum(output.stats.accepted for output in outputs) > 20
    assert sum(output.stats.drafted - output.stats.accepted for output in outputs) > 20


def test_a_window_that_the_model_ignores_limits_the_length_to_where_caches_agree() -> None:
    model = tiny_model("llama", seed=5)
    model.config.sliding_window = 16
    target = HFModel(model, "llama")
    assert target.max_positions == 16
    output = speculator(target, "self-int8").generate(prompt(4), GREEDY)
    assert output.token_ids == own_greedy(model, prompt(4), 12)
    assert output.finish_reason == "length"


def test_rotary_embeddings_that_change_with_length_end_where_they_change() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.5, 2.0, 2.5],
        "long_factor": [3.0, 4.0, 5.0, 6.0],
        "original_max_position_embeddings": 32,
    }
    fields = {"rope_parameters": rope, "original_max_position_embeddings": 32}
    model = tiny_model("phi3", seed=6, **fields)
    target = HFModel(model, "phi3")
    assert target.max_positions == 32
    ids = prompt(10)
    output = speculator(target, "self-int8").generate(ids, SamplingParams(max_tokens=60))
    assert output.token_ids == own_greedy(model, ids, 22)


def test_keys_and_values_of_different_widths() -> None:
    config = tf.DeepseekV3Config(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, intermediate_size=48, moe_intermediate_size=16,
        n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, q_lora_rank=16,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12,
        first_k_dense_replace=1, initializer_range=0.5, eos_token_id=None,
    )  # fmt: skip
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = tf.DeepseekV3ForCausalLM(config).double().eval()
    expected = [own_greedy(model, ids) for ids in PROMPTS]
    outputs = speculator(HFModel(model, "deepseek"), "self-int8").generate(PROMPTS, GREEDY)
    assert tokens_of(outputs) == expected


@pytest.mark.parametrize("drafter", ["self-int8", "ngram"])
def test_the_end_token_of_the_generation_config_ends_both(drafter: str) -> None:
    model = tiny_model("llama", seed=7)
    text = own_greedy(model, PROMPTS[1])
    for end in (text[0], text[5], [text[9], 2]):
        model.generation_config.eos_token_id = end
        pair = (model, None)
        made = Speculator.from_pretrained(pair, drafter=drafter)
        assert made.generate(PROMPTS[1], GREEDY).token_ids == own_greedy(model, PROMPTS[1])
