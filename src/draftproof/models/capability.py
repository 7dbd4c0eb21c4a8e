"""Which models can be rolled back, as far as their configuration says; nothing is run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftproof.errors import UnsupportedModel

FULL = ("full_attention",)
_KNOWN_KINDS = ("full_attention", "sliding_attention")
_HINT = "use a decoder whose only state is the keys and values of full or sliding-window attention"


def check_decoder(model: Any) -> None:
    """Refuse what cannot be rolled back exactly, naming the cause."""
    config = model.config
    name = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(
            f"{name} is an encoder-decoder model, which Draftproof does not decode; {_HINT}"
        )
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModel(
            f"{name} keeps a recurrent state, which cannot be rolled back after a rejected draft; "
            f"{_HINT}"
        )
    if not model.can_generate():
        raise UnsupportedModel(
            f"{name} has no language-model head; load it with AutoModelForCausalLM"
        )
    attention_kinds(config.get_text_config(decoder=True))


def attention_kinds(config: Any) -> tuple[str, ...]:
    """Kinds of attention that the layers declare, each once; other kinds are refused."""
    if getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModel(
            "the model attends in both directions, so later tokens change earlier ones; " + _HINT
        )
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        has_window = getattr(config, "sliding_window", None) is not None
        kinds = ["sliding_attention" if has_window else "full_attention"]
    for layer, kind in enumerate(kinds):
        if kind not in _KNOWN_KINDS:
            raise UnsupportedModel(
                f"layer {layer} of the model is {kind!r}, whose state cannot be rolled back after "
                f"a rejected draft; {_HINT}"
            )
    return tuple(kind for kind in _KNOWN_KINDS if kind in kinds)


def longest_sequence(config: Any) -> int | None:
    """Most tokens for which a key, once computed, stays right; None without a limit.

    Rotary embeddings of these two types change all frequencies once a sequence outgrows the
    length of its pretraining, and with them the keys that are cached already.
    """
    limit: int | None = getattr(config, "max_position_embeddings", None)
    for rope in _rotary_parameters(config):
        if rope.get("rope_type") == "longrope":
            original = rope.get("original_max_position_embeddings")
            limit = min(filter(None, (limit, original)), default=None)
    return limit


def _rotary_parameters(config: Any) -> Iterator[Mapping[str, Any]]:
    """The rotary settings of a configuration: one mapping, or one per kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in found.values() if isinstance(value, Mapping)]
    yield from nested or [found]


def choose_attention(module: Any) -> bool:
    """Pick an attention that takes our masks, on the twin's own config; True if additive."""
    config = module.config
    # PyTorch's own attention has no soft cap, and leaves it out without a word.
    softcap = getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None)
    eager = config._attn_implementation == "eager" or softcap is not None
    if eager or not module._supports_sdpa:
        config._attn_implementation = "eager"
        return True
    config._attn_implementation = "sdpa"
    return False
