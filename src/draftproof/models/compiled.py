"""The whole step of a Llama-shaped decoder as one compiled call; stock modules stay beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from draftproof.core import TreeBatch
from draftproof.kernels import FewRowLinear, Int8Linear
from draftproof.models.cache import KVCache, Slots

MAX_STEP_ROWS = 64
_SHAPES = {"llama", "mistral", "qwen2", "qwen3"}
_ROTARY = {"default", "linear", "llama3", "yarn"}
_NOTHING = np.empty(0, np.float32)


class CompiledStep:
    """A decoder's weights as arrays; they are shared, not copied."""

    def __init__(self, module: Any, window: int | None, cache_layers: int) -> None:
        self._module = module
        self._cache_layers = cache_layers
        self._window = window
        config = module.config
        self._eps = float(config.rms_norm_eps)
        layers = module.model.layers
        attention = layers[0].self_attn
        self.head_dim: int = attention.head_dim
        self.kv_heads: int = config.num_key_value_heads
        parts = [[*_linears(layer)] for layer in layers]
        shapes = [(linear.out_features, linear.in_features) for linear in parts[0]]
        self._shapes = np.array(shapes, np.int64)
        self._like = np.empty((0, 0), _numpy(parts[0][0].weight).dtype)
        # The tensors behind the addresses are kept alive by the module.
        rows = [_addresses(layer, linears) for layer, linears in zip(layers, parts, strict=True)]
        self._places = np.array(rows, np.int64)
        self._cos, self._sin = self._rotary_table(256)

    @classmethod
    def of(
        cls, module: nn.Module, kinds: tuple[str, ...], window: int | None, cache_layers: int
    ) -> CompiledStep | None:
        """The compiled step, or None for a module that is not of this shape."""
        if not _fits(module) or len(kinds) != 1:
            return None
        return cls(module, window if kinds == ("sliding_attention",) else None, cache_layers)

    def __call__(self, batch: TreeBatch, cache: KVCache, slots: Slots) -> Tensor:
        """Logits f32[B, W, V] of every column; writes keys and values as the modules would."""
        from draftproof.kernels.decoder import run_layers

        rows, width = batch.tokens.shape
        positions = batch.positions.reshape(-1).numpy()
        if positions.max() >= len(self._cos):
            self._cos, self._sin = self._rotary_table(2 * int(positions.max()))
        keys, values = self.reserve(cache)
        x = self._module.model.embed_tokens(batch.tokens.reshape(-1))
        starts = np.array(slots.starts, np.int64)
        mask = batch.mask.reshape(-1, width).numpy()
        # The columns that a row sees, in order, in front of those that it does not.
        columns = np.argsort(~mask, axis=1, kind="stable")
        lows = np.zeros_like(positions)
        if self._window is not None:
            lows = positions - (self._window - 1)
        run_layers(
            x.numpy(),
            self._like,
            self._places,
            self._shapes,
            self._eps,
            keys.numpy(),
            values.numpy(),
            slots.first_row,
            starts,
            lows,
            columns,
            starts.repeat(width) + mask.sum(axis=1),
            self._cos[positions],
            self._sin[positions],
            torch.get_num_threads(),
        )
        return self._head(self._module.model.norm(x)).view(rows, width, -1)

    def _head(self, hidden: Tensor) -> Tensor:
        """Logits f32[R, V]; by our kernel for any number of rows, so that a row keeps its bits."""
        from draftproof.kernels.matmul import multiply

        head = self._module.lm_head
        logits = torch.empty(len(hidden), head.out_features)
        operands = _numpy(head.weight), _optional(head, "scale"), _optional(head, "bias")
        multiply(hidden.numpy(), *operands, logits.numpy(), torch.get_num_threads())
        return logits

    def reserve(self, cache: KVCache) -> tuple[Tensor, Tensor]:
        """The keys and values of all layers of the whole model, f32[L, rows, kv_heads, S, D]."""
        return cache.reserve(self._cache_layers, self.kv_heads, self.head_dim)

    def _rotary_table(self, length: int) -> tuple[Any, Any]:
        """cos and sin f32[length, D] of the model's own rotary embedding."""
        positions = torch.arange(length)[None]
        cos, sin = self._module.model.rotary_emb(torch.empty(1, 1, 1), positions)
        return cos[0].contiguous().numpy(), sin[0].contiguous().numpy()


def _linears(layer: Any) -> Iterator[Any]:
    attention, mlp = layer.self_attn, layer.mlp
    yield from (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    yield from (mlp.gate_proj, mlp.up_proj, mlp.down_proj)


def _addresses(layer: Any, linears: Sequence[Any]) -> list[int]:
    """Where the layer's numbers lie, in the order of `run_layers`; 0 for what it lacks."""
    norms = [layer.input_layernorm.weight, layer.post_attention_layernorm.weight]
    for name in ("q_norm", "k_norm"):
        norms.append(getattr(getattr(layer.self_attn, name, None), "weight", None))
    tensors = [
        *(linear.weight for linear in linears),
        *(getattr(linear, "scale", None) for linear in linears),
        *(linear.bias for linear in linears),
        *norms,
    ]
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def _fits(module: Any) -> bool:
    """Float32 on a CPU, of a known architecture, every product one of our kernels, no hooks."""
    config = module.config
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        getattr(config, "model_type", None) in _SHAPES
        and rope.get("rope_type", "default") in _ROTARY
        and getattr(config, "hidden_act", None) == "silu"
        and hasattr(module, "lm_head")
        and all(p.dtype is torch.float32 and p.device.type == "cpu" for p in module.parameters())
        and not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
        and all(
            isinstance(linear, (FewRowLinear, Int8Linear)) and linear.weight.is_contiguous()
            for layer in module.model.layers
            for linear in (*_linears(layer), module.lm_head)
        )
    )


def _numpy(tensor: Tensor) -> Any:
    return tensor.detach().numpy()


def _optional(linear: Any, name: str) -> Any:
    tensor = getattr(linear, name, None)
    return _NOTHING if tensor is None else _numpy(tensor)
