"""Tiny random decoders of many architectures, transformers' own greedy output, odd drafters."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import torch
import transformers as tf
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Whitespace

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.core import Draft, Proposal
from draftproof.drafters.base import Drafting
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.registry import Surroundings, make_drafter
from draftproof.models.cache import KVCache
from draftproof.models.hf import HFModel

VOCAB = 97
WINDOW = 8
NEW_TOKENS = 24
# Norms of these families compute in float32 whatever the model's dtype is, so that a last bit
# before them can become a last bit of float32.
ROUGH = {"llama": 1e-5, "mistral": 1e-5, "gemma2": 1e-5}

_COMMON = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
_BODY = {
    **_COMMON,
    **_HEADS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": 96,
    "tie_word_embeddings": False,
}
_MIXED = ["sliding_attention", "full_attention"]
_OPT = {
    **_COMMON,
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "tie_word_embeddings": False,
}

ARCHITECTURES: dict[str, tuple[type, type, dict]] = {
    "llama": (tf.LlamaConfig, tf.LlamaForCausalLM, _BODY),
    "mistral": (tf.MistralConfig, tf.MistralForCausalLM, {**_BODY, "sliding_window": WINDOW}),
    "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM, {**_BODY, "tie_word_embeddings": True}),
    "qwen2-mixed": (
        tf.Qwen2Config,
        tf.Qwen2ForCausalLM,
        {**_BODY, "use_sliding_window": True, "sliding_window": WINDOW, "layer_types": _MIXED},
    ),
    "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM, _BODY),
    "gemma2": (
        tf.Gemma2Config,
        tf.Gemma2ForCausalLM,
        {
            **_BODY,
            "sliding_window": WINDOW,
            "layer_types": _MIXED,
            "attn_implementation": "eager",
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 8,
        },
    ),
    "gemma3": (
        tf.Gemma3TextConfig,
        tf.Gemma3ForCausalLM,
        {**_BODY, "sliding_window": WINDOW, "layer_types": _MIXED, "query_pre_attn_scalar": 8},
    ),
    "opt": (tf.OPTConfig, tf.OPTForCausalLM, {**_OPT, "word_embed_proj_dim": 32}),
    "opt-350m": (
        tf.OPTConfig,
        tf.OPTForCausalLM,
        {**_OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
    ),
    "gpt2": (
        tf.GPT2Config,
        tf.GPT2LMHeadModel,
        {**_COMMON, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96},
    ),
    "gpt-neox": (
        tf.GPTNeoXConfig,
        tf.GPTNeoXForCausalLM,
        {k: v for k, v in _BODY.items() if k not in ("head_dim", "num_key_value_heads")},
    ),
    "phi3": (tf.Phi3Config, tf.Phi3ForCausalLM, {**_BODY, "sliding_window": None}),
}


def tiny_model(name: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes):
    """A fresh model of an architecture whose greedy text wanders instead of repeating."""
    make_config, make_model, fields = ARCHITECTURES[name]
    config = make_config(**{**fields, **changes})
    model = make_model(config).to(dtype).eval()
    return randomise(model, seed)


def randomise(model, seed: int):
    """Draw all weights anew; layers speak louder than the embedding, so the context decides."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        if weight.dim() < 2:
            weight.data.add_(noise * 0.02)
        elif any(word in name for word in ("embed", "wte", "wpe")):
            weight.data.copy_(noise * 0.3)
        else:
            weight.data.copy_(noise * 5.0 / weight.shape[-1] ** 0.5)
    return model


@functools.cache
def shared_model(name: str, seed: int = 0):
    """One model of an architecture for tests that leave it as it is."""
    return tiny_model(name, seed)


@functools.cache
def shared_target(name: str, seed: int = 0) -> HFModel:
    return HFModel(shared_model(name, seed), name)


def prompt(length: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    return random.Random(seed).choices(range(3, vocab), k=length)


def own_greedy(model, ids: Sequence[int], new_tokens: int = NEW_TOKENS) -> tuple[int, ...]:
    """What transformers generates by itself."""
    tokens = torch.tensor([list(ids)])
    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        max_new_tokens=new_tokens,
        pad_token_id=0,
    )
    return tuple(output[0, len(ids) :].tolist())


def committed(cache: KVCache, row: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copies of the committed keys and values of `row`, f[heads, length, head_dim] a layer."""
    length = cache.lengths[row]
    return [
        tuple(
            cache._row(stores, layer, row)[:, :length].clone()
            for stores in (cache._keys, cache._values)
        )
        for layer in sorted(cache._keys)
    ]


def assert_row_is_a_prefill(target, cache: KVCache, row: int, tokens: Sequence[int]) -> None:
    """The row's keys and values are those of a fresh pass over `tokens`."""
    fresh = KVCache(rows=1, capacity=len(tokens) + 1)
    target.prefill(tokens, fresh, row=0, chunk=len(tokens) or 1)
    assert cache.lengths[row] == len(tokens)
    close = ROUGH.get(target.name, 1e-12)
    for layer, other in zip(committed(cache, row), committed(fresh, 0), strict=True):
        for ours, theirs in zip(layer, other, strict=True):
            assert ours.shape == theirs.shape
            assert torch.allclose(ours, theirs, rtol=close, atol=close)


def speculator(target: HFModel, drafter: str, depth: int = 4, **settings) -> Speculator:
    """`drafter` is a name of the registry, "model" (unlike the target) or "close-model"."""
    settings = EngineSettings(depth=depth, **settings)
    around = Surroundings(target, None, "auto", "auto", settings)
    if drafter == "model":
        made = ModelDrafter(shared_target("llama", seed=9), target.vocab_size, prefill_chunk=5)
    elif drafter == "close-model":
        made = ModelDrafter(target.int8_copy(), target.vocab_size, prefill_chunk=5)
    else:
        made = make_drafter(drafter, around)
    return Speculator(target, made, end_ids=target.end_ids(), settings=settings)


class Saboteur(Drafting):
    """Knows the right continuation of each prompt and spoils it at a random place each round."""

    name = "saboteur"
    proposals = frozenset({Proposal.POINT})

    def __init__(self, texts: Sequence[Sequence[int]], vocab: int, seed: int = 0) -> None:
        self._texts = [list(text) for text in texts]
        self._vocab = vocab
        self._random = random.Random(seed)

    def begin(self, target_cache):  # noqa: ARG002
        return self

    def propose(self, contexts, plans):
        return [
            Draft.chain(self._spoiled(list(context.tokens), plan.depth), Proposal.POINT)
            for context, plan in zip(contexts, plans, strict=True)
        ]

    def _spoiled(self, tokens: list[int], depth: int) -> list[int]:
        text = next((text for text in self._texts if text[: len(tokens)] == tokens), tokens)
        draft = text[len(tokens) : len(tokens) + self._random.randint(0, depth)]
        wrong = self._random.randint(0, len(draft))
        if wrong < len(draft):
            draft[wrong] = (draft[wrong] + 1) % self._vocab
        return draft


def word_tokenizer(words: Sequence[str]):
    """A tokenizer whose tokens are `words`, numbered in their order."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = Whitespace()
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=words[0])


def letter_tokenizer(
    letters: Sequence[str],
    *,
    chat_template: str,
    unknown: str | None = None,
    use_regex: bool = True,
):
    """A byte-level tokenizer without merges: behind <pad>, <s> and </s> each letter is a token."""
    words = ["<pad>", "<s>", "</s>", *letters]
    raw = Tokenizer(BPE({word: i for i, word in enumerate(words)}, [], unk_token=unknown))
    raw.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=use_regex)
    raw.decoder = decoders.ByteLevel()
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=chat_template,
    )
