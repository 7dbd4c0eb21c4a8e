"""Which models can be rolled back; asked before anything is loaded onto a device or run."""

from __future__ import annotations

from typing import Any

from draftproof.errors import UnsupportedModel

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
    """Kinds of attention in the decoder's layers, each once; other kinds are refused."""
    if getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModel(
            "the model attends in both directions, so later tokens change earlier ones; " + _HINT
        )
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        kinds = [
            "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
        ]
    for layer, kind in enumerate(kinds):
        if kind not in _KNOWN_KINDS:
            raise UnsupportedModel(
                f"layer {layer} of the model is {kind!r}, whose state cannot be rolled back after "
                f"a rejected draft; {_HINT}"
            )
    return tuple(kind for kind in _KNOWN_KINDS if kind in kinds)
