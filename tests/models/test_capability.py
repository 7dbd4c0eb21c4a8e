"""What cannot be rolled back is refused at construction, with its cause and what would work."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from torch import nn

from draftproof.api import Speculator
from draftproof.errors import InvalidSetting, UnsupportedModel
from draftproof.models.capability import attention_kinds, check_decoder, longest_sequence
from draftproof.models.hf import HFModel
from draftproof.sampling.params import SamplingParams
from tests.tiny import own_greedy, speculator, tiny_model

_SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

RECURRENT = {
    "mamba": lambda: tf.MambaForCausalLM(
        tf.MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, state_size=4)
    ),
    "jamba": lambda: tf.JambaForCausalLM(
        tf.JambaConfig(**_SMALL, num_experts=2, mamba_d_state=4, use_mamba_kernels=False)
    ),
    "qwen3-next": lambda: tf.Qwen3NextForCausalLM(
        tf.Qwen3NextConfig(
            **_SMALL,
            **_EXPERTS,
            head_dim=8,
            shared_expert_intermediate_size=16,
            linear_num_value_heads=2,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            layer_types=["linear_attention", "full_attention"],
        )
    ),
    "recurrent-gemma": lambda: tf.RecurrentGemmaForCausalLM(
        tf.RecurrentGemmaConfig(**_SMALL, head_dim=8, lru_width=32, attention_window_size=8)
    ),
    "falcon-h1": lambda: tf.FalconH1ForCausalLM(
        tf.FalconH1Config(
            **_SMALL, head_dim=8, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4
        )
    ),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_state_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"recurrent state.*rolled back.*use a decoder"):
        HFModel(RECURRENT[name](), name)


@pytest.mark.parametrize("kind", ["linear_attention", "conv", "chunked_attention", "mamba"])
def test_a_kind_of_layer_without_plain_keys_and_values_is_refused_with_its_number(kind) -> None:
    config = tf.LlamaConfig(num_hidden_layers=2)
    config.layer_types = ["full_attention", kind]
    with pytest.raises(UnsupportedModel, match=f"layer 1 .*'{kind}'.*use a decoder"):
        attention_kinds(config)


def test_an_encoder_decoder_is_refused() -> None:
    model = tf.T5ForConditionalGeneration(
        tf.T5Config(vocab_size=40, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    )
    with pytest.raises(UnsupportedModel, match=r"encoder-decoder.*use a decoder"):
        check_decoder(model)
    with pytest.raises(UnsupportedModel, match="decoders that continue a text"):
        Speculator.from_pretrained(model)


def test_a_body_without_a_language_model_head_is_refused() -> None:
    for make, config in ((tf.BertModel, tf.BertConfig), (tf.LlamaModel, tf.LlamaConfig)):
        model = make(config(**{**_SMALL, "num_key_value_heads": 4}))
        with pytest.raises(UnsupportedModel, match=r"no language-model head.*AutoModelForCausalLM"):
            check_decoder(model)


def test_a_model_that_looks_ahead_is_refused() -> None:
    bert = tf.BertLMHeadModel(tf.BertConfig(**_SMALL, initializer_range=0.5)).double()
    with pytest.raises(UnsupportedModel, match=r"attends to later tokens.*would work"):
        HFModel(bert, "bert")
    gemma = tiny_model("gemma3", use_bidirectional_attention=True)
    with pytest.raises(UnsupportedModel, match=r"both directions.*use a decoder"):
        HFModel(gemma, "gemma")


class Remembering(nn.Module):
    """A layer that adds an average over all tokens it was ever fed in one text."""

    def __init__(self, layer: nn.Module, per_call: bool) -> None:
        super().__init__()
        self.layer, self.per_call = layer, per_call
        self.register_buffer("state", torch.zeros(32, dtype=torch.float64), persistent=False)

    def __getattr__(self, name: str):
        if name == "attention_type":
            return super().__getattr__("layer").attention_type
        return super().__getattr__(name)

    def forward(self, hidden, *arguments, **named):
        begins = bool((named["position_ids"] == 0).any())
        if begins and not self.per_call:
            self.state.zero_()
        seen = self.state + hidden.cumsum(dim=1) / 10
        self.state.copy_(seen[-1, -1])
        return self.layer(hidden + seen, *arguments, **named)


@pytest.mark.parametrize(
    ("per_call", "cause"), [(False, "after a rejected draft"), (True, "when it is run again")]
)
def test_a_state_that_no_configuration_mentions_is_found_by_running(per_call, cause) -> None:
    model = tiny_model("llama")
    model.model.layers[0] = remembering = Remembering(model.model.layers[0], per_call)
    with pytest.raises(UnsupportedModel, match=f"{cause}.*would work"):
        HFModel(model, "remembering")
    assert not remembering.state.any(), "the user's own state was written to"


def test_a_forward_that_takes_no_token_trees_is_refused_with_its_own_words() -> None:
    bloom = tf.BloomForCausalLM(tf.BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(UnsupportedModel, match=r"cannot run on a token tree.*would work"):
        HFModel(bloom, "bloom")


def test_logits_that_are_no_numbers_are_refused() -> None:
    model = tiny_model("llama")
    model.lm_head.weight.data[3] = torch.nan
    with pytest.raises(UnsupportedModel, match="not finite"):
        HFModel(model, "broken")


class PackedLinear(nn.Linear):
    """As a quantised layer looks from outside: packed bytes, read back to compute."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(1, 1, bias=False)
        whole = linear.weight.detach()
        self.scale, self.low = float(whole.max() - whole.min()) / 255, float(whole.min())
        packed = ((whole - self.low) / self.scale).round().to(torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale + self.low)


def test_quantised_layers_can_be_verified_and_not_copied_to_int8() -> None:
    model = tiny_model("llama")
    model.model.layers[1].mlp.up_proj = PackedLinear(model.model.layers[1].mlp.up_proj)
    target = HFModel(model, "packed")
    with pytest.raises(UnsupportedModel, match=r"up_proj.*PackedLinear.*uint8.*'ngram'"):
        target.int8_copy()
    params = SamplingParams(max_tokens=12)
    for drafter in ("ngram", "early-exit:1"):
        output = speculator(target, drafter).generate([5, 6, 7], params)
        assert output.token_ids == own_greedy(model, [5, 6, 7], 12)


def test_a_model_that_says_it_is_quantised_is_not_copied_to_int8() -> None:
    model = tiny_model("llama")
    target = HFModel(model, "gptq")
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(UnsupportedModel, match=r"quantised already.*load it unquantised.*'ngram'"):
        target.int8_copy()


@pytest.mark.parametrize("layers", [0, 2, 5])
def test_early_exit_needs_fewer_layers_than_there_are(layers: int) -> None:
    with pytest.raises(InvalidSetting, match=f"early-exit:{layers} .* give 1 to 1"):
        speculator(HFModel(tiny_model("llama"), "llama"), f"early-exit:{layers}")


def test_early_exit_of_a_single_layer_names_other_drafters() -> None:
    target = HFModel(tiny_model("llama", num_hidden_layers=1), "llama")
    with pytest.raises(InvalidSetting, match="use drafter='self-int8' or 'ngram'"):
        target.first_layers(1)


@pytest.mark.parametrize("argument", ["x", "-1", "1.5"])
def test_early_exit_needs_a_number(argument: str) -> None:
    with pytest.raises(InvalidSetting, match="give a number of layers"):
        speculator(HFModel(tiny_model("llama"), "llama"), f"early-exit:{argument}")


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "opt"])
@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 2},
        {"vocab_size": 5},
        {"max_position_embeddings": 1},
        {"max_position_embeddings": 2},
        {"max_position_embeddings": 3},
        {"max_position_embeddings": 6},
        {"vocab_size": 10, "pad_token_id": 3, "bos_token_id": 3, "eos_token_id": 8},
        {"eos_token_id": 1000},
    ],
)
def test_the_probe_bears_small_and_odd_models(name: str, changes: dict) -> None:
    if name == "gpt2" and "max_position_embeddings" in changes:
        changes = {"n_positions": changes["max_position_embeddings"]}
    model = tiny_model(name, **changes)
    target = HFModel(model, name)
    if (limit := target.max_positions or 96) > 1:
        output = speculator(target, "self-int8").generate([0], SamplingParams(max_tokens=5))
        assert output.token_ids == own_greedy(model, [0], min(5, limit - 1))


def test_the_longest_sequence_of_each_rotary_type() -> None:
    config = tf.LlamaConfig(max_position_embeddings=64)
    assert longest_sequence(config) == 64
    long = {"rope_type": "longrope", "original_max_position_embeddings": 16}
    config.rope_parameters = long
    assert longest_sequence(config) == 16
    config.rope_parameters = {"full_attention": long, "sliding_attention": {"rope_type": "yarn"}}
    assert longest_sequence(config) == 16
    assert longest_sequence(tf.BloomConfig()) is None
