"""The user's model lends its weights and hooks and is found afterwards as it was left."""

from __future__ import annotations

import threading

import pytest
import torch

from draftproof.api import Speculator
from draftproof.kernels import FewRowLinear, is_available
from draftproof.models.hf import HFModel
from draftproof.sampling.params import SamplingParams
from tests.tiny import own_greedy, prompt, speculator, tiny_model

PARAMS = SamplingParams(max_tokens=12)
PROMPT = prompt(9)
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 48,
    },
    "original_max_position_embeddings": 48,
}


def state_of(model) -> dict:
    """Everything about a model that a guest could change."""
    modules = dict(model.named_modules())
    return {
        "weights": {
            name: (id(tensor), tensor.data_ptr(), tensor._version, tensor.detach().clone())
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        },
        "config": model.config.to_dict(),
        "attention": model.config._attn_implementation,
        "generation": model.generation_config.to_dict(),
        "types": {name: type(module) for name, module in modules.items()},
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "training": {name: module.training for name, module in modules.items()},
        "needs_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        "hooks": {
            name: [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
            for name, module in modules.items()
        },
    }


def assert_same(before: dict, after: dict) -> None:
    weights, others = before.pop("weights"), after.pop("weights")
    assert before == after
    assert weights.keys() == others.keys()
    for name, (*identity, values) in weights.items():
        assert identity == list(others[name][:3]), f"{name} was replaced or written to"
        assert torch.equal(values, others[name][3]), name


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {}),
        ("gpt2", {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}),
        ("gemma2", {}),
        ("qwen2", {"attn_implementation": "eager"}),
        ("phi3", LONGROPE),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_users_model_is_left_as_it_was(name: str, changes: dict, dtype: torch.dtype) -> None:
    model = tiny_model(name, dtype=dtype, **changes)
    expected = own_greedy(model, PROMPT, 12)
    model.train()
    model.config.use_cache = False
    before = state_of(model)
    made = Speculator.from_pretrained(model, depth=3)
    outputs = [made.generate(PROMPT, PARAMS), made.plain(PROMPT, PARAMS)]
    outputs.append(speculator(HFModel(model, name), "early-exit:1").generate(PROMPT, PARAMS))
    assert_same(before, state_of(model))
    if dtype is torch.float64:
        # Dropout of a model in training mode is not ours.
        assert [output.token_ids for output in outputs] == [expected] * 3
    assert own_greedy(model.eval(), PROMPT, 12) == expected


def test_long_texts_of_ones_own_do_not_disturb_ours() -> None:
    model = tiny_model("phi3", **LONGROPE)
    made = speculator(HFModel(model, "phi3"), "self-int8")
    expected = own_greedy(model, PROMPT, 12)
    own_greedy(model, prompt(30), 40)
    rewritten = model.model.rotary_emb.inv_freq.clone()
    assert not torch.equal(rewritten, model.model.rotary_emb.original_inv_freq)
    assert made.generate(PROMPT, PARAMS).token_ids == expected
    assert torch.equal(model.model.rotary_emb.inv_freq, rewritten)


def test_weights_are_shared_and_not_copied() -> None:
    model = tiny_model("llama", dtype=torch.float32)
    target = HFModel(model, "llama")
    own = {p.data_ptr() for p in model.parameters()}
    ours = [*target._module.parameters(), *target._module.buffers()]
    assert {tensor.data_ptr() for tensor in ours if tensor.dim() == 2} <= own
    if is_available():
        assert isinstance(target._module.lm_head, FewRowLinear)
        assert type(model.lm_head) is torch.nn.Linear


def test_training_the_model_in_place_is_followed_by_target_and_stays_lossless() -> None:
    model = tiny_model("llama")
    made = speculator(HFModel(model, "llama"), "self-int8")
    first = made.generate(PROMPT, PARAMS).token_ids
    with torch.no_grad():
        model.lm_head.weight.mul_(-1.0)
    expected = own_greedy(model, PROMPT, 12)
    assert expected != first
    assert made.generate(PROMPT, PARAMS).token_ids == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("place", ["model.layers.0", "model.layers.1.mlp.up_proj", "lm_head"])
def test_hooks_that_steer_the_model_steer_our_passes_too(place: str, dtype: torch.dtype) -> None:
    model = tiny_model("llama", dtype=dtype)
    unhooked = own_greedy(model, PROMPT, 12)
    ramp = torch.linspace(-9, 9, 97, dtype=dtype)
    steered = model.get_submodule(place)

    def steer(_module, _arguments, output):
        return output + ramp[: output.shape[-1]]

    handle = steered.register_forward_hook(steer)
    made = speculator(HFModel(model, "llama"), "self-int8")
    expected = own_greedy(model, PROMPT, 12)
    assert expected != unhooked
    assert made.generate(PROMPT, PARAMS).token_ids == expected
    handle.remove()
    assert own_greedy(model, PROMPT, 12) == unhooked


class Recorder:
    """A hook with a lock, which cannot be copied."""

    def __init__(self) -> None:
        self.lock, self.calls = threading.Lock(), 0

    def record(self, *_arguments) -> None:
        with self.lock:
            self.calls += 1


def test_a_hook_that_is_a_method_reports_to_its_own_object() -> None:
    model, recorder = tiny_model("llama"), Recorder()
    model.model.layers[1].register_forward_hook(recorder.record)
    model.model.layers[0].register_forward_pre_hook(recorder.record)
    made = speculator(HFModel(model, "llama"), "none")
    seen = recorder.calls
    made.generate(PROMPT, PARAMS)
    assert recorder.calls == seen + 2 * (1 + 12), "one prefill and twelve rounds"


def test_what_cannot_be_copied_is_named() -> None:
    model = tiny_model("llama")
    model.model.guard = threading.Lock()
    with pytest.raises(Exception, match=r"LlamaForCausalLM cannot be copied.*lock.*remove"):
        HFModel(model, "llama")


def test_tied_weights_stay_tied_for_the_user() -> None:
    model = tiny_model("qwen2")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    speculator(HFModel(model, "qwen2"), "self-int8").generate(PROMPT, PARAMS)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_end_ids_are_those_of_the_generation_config_that_can_come() -> None:
    model = tiny_model("llama")
    target = HFModel(model, "llama")
    assert target.end_ids() == frozenset()
    model.config.eos_token_id = 7
    assert target.end_ids() == {7}
    model.generation_config.eos_token_id = [5, 50256]
    assert target.end_ids() == {5}
    made = Speculator.from_pretrained(model, "ngram")
    made.generate(PROMPT, SamplingParams(max_tokens=4, min_tokens=3))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_half_precision_keeps_to_the_argmax_of_one_pass(name: str) -> None:
    model = tiny_model(name, dtype=torch.bfloat16)
    output = speculator(HFModel(model, name), "self-int8").generate(PROMPT, PARAMS)
    ids = torch.tensor([[*PROMPT, *output.token_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(PROMPT) - 1 : -1].float()
    chosen = logits[torch.arange(len(logits)), list(output.token_ids)]
    # bfloat16 rounds to 1/256; a near tie may fall either way.
    assert bool((logits.amax(dim=-1) - chosen <= logits.std() / 8).all())
