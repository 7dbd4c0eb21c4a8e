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
_OPERANDS = ("weight", "scale", "bias")


class CompiledStep:
    """A decoder's weights as arrays; they are shared, not copied."""

    def __init__(self, module: Any, window: int | None, cache_layers: int) -> None:
        self._module = module
        self._cache_layers = cache_layers
        self._window = window
        config = module.config
        layers = module.model.layers
        self.head_dim: int = layers[0].self_attn.head_dim
        self.kv_heads: int = config.num_key_value_heads
        from draftproof.kernels.state import Weights
        from draftproof.kernels.step import Step

        parts = [[*_linears(layer)] for layer in layers]
        head = module.lm_head
        shapes = [(part.out_features, part.in_features) for part in (*parts[0], head)]
        # The tensors behind the addresses are kept alive by the module.
        rows = [_addresses(layer, linears) for layer, linears in zip(layers, parts, strict=True)]
        weights = Weights(
            places=np.array(rows, np.int64),
            shapes=np.array(shapes, np.int64),
            head=np.array([_address(getattr(head, name, None)) for name in _OPERANDS], np.int64),
            norm=module.model.norm.weight.detach().numpy(),
            like=np.empty((0, 0), parts[0][0].weight.detach().numpy().dtype),
            eps=float(config.rms_norm_eps),
        )
        self._step = Step(weights)
        self._cos, self._sin = self._rotary_table(256)

    @classmethod
    def of(
        cls, module: nn.Module, kinds: tuple[str, ...], window: int | None, cache_layers: int
    ) -> CompiledStep | None:
        """The compiled step, or None for a module that is not of this shape."""
        if not _fits(module) or len(kinds) != 1:
            return None
        return cls(module, window if kinds == ("sliding_attention",) else None, cache_layers)

    def __call__(self, batch: TreeBatch, cache: KVCache, slots: Slots, asked: Any) -> Tensor:
        """Logits f32[A, V] of the rows `asked`, i64[A], row b * W + w being column w of row b.

        Writes keys and values as the modules would.
        """
        from draftproof.kernels.state import Text

        width = batch.tokens.shape[1]
        positions = batch.positions.reshape(-1).numpy()
        if positions.max() >= len(self._cos):
            self._cos, self._sin = self._rotary_table(2 * int(positions.max()))
        keys, values = self.reserve(cache)
        x = self._module.model.embed_tokens(batch.tokens.reshape(-1))
        starts = np.array(slots.starts, np.int64)
        mask = batch.mask.reshape(-1, width).numpy()
        lows = np.zeros_like(positions)
        if self._window is not None:
            lows = positions - (self._window - 1)
        text = Text(
            first_row=slots.first_row,
            starts=starts,
            # The columns that a row sees, in order, in front of those that it does not.
            columns=np.argsort(~mask, axis=1, kind="stable"),
            lengths=starts.repeat(width) + mask.sum(axis=1),
            lows=lows,
        )
        rotary = self._cos[positions], self._sin[positions]
        cached = keys.numpy(), values.numpy()
        threads = torch.get_num_threads()
        return torch.from_numpy(self._step(x.numpy(), text, cached, rotary, asked, threads))

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
    operands = [getattr(linear, name, None) for name in _OPERANDS for linear in linears]
    return [_address(tensor) for tensor in (*operands, *norms)]


def _address(tensor: Tensor | None) -> int:
    """Where a tensor's numbers lie; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


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
