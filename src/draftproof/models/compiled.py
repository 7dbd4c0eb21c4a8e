"""The whole step of a Llama-shaped decoder as one compiled call; stock modules stay beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from draftproof.config import MAX_NODES
from draftproof.core import TreeBatch
from draftproof.kernels import FewRowLinear, Int8Linear
from draftproof.models.cache import KVCache, Slots

MAX_STEP_WIDTH = MAX_NODES + 1
"""Columns of a pass that the step takes: an anchor and the largest draft."""
_COLUMNS_AT_ONCE = 64
_MODEL_TYPES = {"llama", "mistral", "qwen2", "qwen3"}
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
        from draftproof.kernels.step import Step, products_with

        parts = [[*_linears(layer)] for layer in layers]
        head = module.lm_head
        shapes = [(part.out_features, part.in_features) for part in (*parts[0], head)]
        # Converting the user's model gives its parameters other storage; what the addresses mean
        # stays ours. The layers' own weights are buffers of the twin.
        self._embedding = module.model.embed_tokens.weight.detach()
        self._norms = [
            norm.detach() for layer in layers for norm in _norms(layer) if norm is not None
        ]
        rows = [_addresses(layer, linears) for layer, linears in zip(layers, parts, strict=True)]
        weights = Weights(
            places=np.array(rows, np.int64),
            shapes=np.array(shapes, np.int64),
            head=np.array([_address(getattr(head, name, None)) for name in _OPERANDS], np.int64),
            norm=module.model.norm.weight.detach().numpy(),
            eps=np.array([config.rms_norm_eps], np.float32),
            products=products_with(parts[0][0].weight.detach().numpy().dtype),
        )
        self._step = Step(weights)
        self._rotary = self._rotary_table(256)

    @classmethod
    def of(
        cls, module: nn.Module, kinds: tuple[str, ...], window: int | None, cache_layers: int
    ) -> CompiledStep | None:
        """The compiled step, or None for a module that is not of this shape."""
        if not _fits(module) or len(kinds) != 1:
            return None
        return cls(module, window if kinds == ("sliding_attention",) else None, cache_layers)

    def __call__(
        self, batch: TreeBatch, cache: KVCache, slots: Slots, columns: Sequence[int] | None
    ) -> Tensor:
        """Logits f32[B, W, V], or f32[B, 1, V] of the `columns`, one for each row.

        Writes keys and values as the modules would. Padding costs nothing, and its logits are no
        numbers to rely on. However many columns there are, each has the same bits; a wide batch
        takes several calls.
        """
        width = batch.tokens.shape[1]
        real = np.arange(width) < np.array(batch.counts)[:, None]
        parts = [
            self._columns(batch, real, cache, slots, some, columns) for some in _parts(batch.counts)
        ]
        found = parts[0] if len(parts) == 1 else torch.cat(parts)
        if columns is not None:
            real = real[:, :1]
        if real.all():
            return found.view(*real.shape, -1)
        logits = torch.empty((*real.shape, found.shape[-1]))
        logits[torch.from_numpy(real)] = found
        return logits

    def _columns(
        self,
        batch: TreeBatch,
        real: Any,
        cache: KVCache,
        slots: Slots,
        some: slice,
        columns: Sequence[int] | None,
    ) -> Tensor:
        """Logits f32[A, V] of the columns of `some` rows that are no padding, or of `columns`."""
        from draftproof.kernels.state import Text

        mine = torch.from_numpy(real[some])
        counts = real[some].sum(axis=1)
        firsts = np.concatenate([[0], counts.cumsum()])
        positions = batch.positions[some][mine].numpy()
        mask = batch.mask[some][mine].numpy()
        starts = np.array(slots.starts[some], np.int64)
        text = Text(
            earlier=np.array([slots.earlier]),
            firsts=firsts,
            starts=starts,
            places=np.array(cache.places(slots.first_row + some.start, len(starts)), np.int64),
            # The columns that a row sees, in order, in front of those that it does not.
            columns=np.argsort(~mask, axis=1, kind="stable"),
            lengths=starts.repeat(counts) + mask.sum(axis=1),
            lows=np.zeros_like(positions)
            if self._window is None
            else positions - (self._window - 1),
        )
        asked = np.arange(len(positions))
        if columns is not None:
            asked = (firsts[:-1] + np.array(columns[some]))[counts > 0]
        x = embedding(batch.tokens[some][mine], self._embedding)
        cos, sin = self._rotary_up_to(int(positions.max()))
        rotary = cos[positions], sin[positions]
        keys, values = self.reserve(cache)
        cached = keys.numpy(), values.numpy()
        threads = torch.get_num_threads()
        return torch.from_numpy(self._step(x.numpy(), text, cached, rotary, asked, threads))

    def reserve(self, cache: KVCache) -> tuple[Tensor, Tensor]:
        """The keys and values of all layers of the whole model, f32[L, T * kv_heads * D]."""
        return cache.reserve(self._cache_layers, self.kv_heads, self.head_dim)

    def _rotary_up_to(self, position: int) -> tuple[Any, Any]:
        """The table, made longer where it ends before `position`; several threads may ask."""
        table = self._rotary
        if position >= len(table[0]):
            table = self._rotary_table(2 * position)
            if len(table[0]) > len(self._rotary[0]):
                self._rotary = table
        return table

    def _rotary_table(self, length: int) -> tuple[Any, Any]:
        """cos and sin f32[length, D] of the model's own rotary embedding."""
        like = torch.empty(1, 1, 1, dtype=torch.float32, device="cpu")
        positions = torch.arange(length, device="cpu")[None]
        cos, sin = self._module.model.rotary_emb(like, positions)
        return cos[0].contiguous().numpy(), sin[0].contiguous().numpy()


def _parts(counts: Sequence[int]) -> Iterator[slice]:
    """Rows of a batch whose columns are few enough to be computed together; none without any."""
    first = columns = 0
    for row, count in enumerate(counts):
        if columns and columns + count > _COLUMNS_AT_ONCE:
            yield slice(first, row)
            first, columns = row, 0
        columns += count
    if columns:
        yield slice(first, len(counts))


def _linears(layer: Any) -> Iterator[Any]:
    for part, names in (
        (layer.self_attn, ("q_proj", "k_proj", "v_proj", "o_proj")),
        (layer.mlp, ("gate_proj", "up_proj", "down_proj")),
    ):
        yield from (getattr(part, name, None) for name in names)


def _addresses(layer: Any, linears: Sequence[Any]) -> list[int]:
    """Where the layer's numbers lie, in the order of `Weights.places`; 0 for what it lacks."""
    operands = [getattr(linear, name, None) for name in _OPERANDS for linear in linears]
    return [_address(tensor) for tensor in (*operands, *_norms(layer))]


def _norms(layer: Any) -> list[Tensor | None]:
    """Weights of the norms before attention, before the MLP, of queries and of keys."""
    attention = layer.self_attn
    of_heads = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    norms = [layer.input_layernorm, layer.post_attention_layernorm, *of_heads]
    return [getattr(norm, "weight", None) for norm in norms]


def _address(tensor: Tensor | None) -> int:
    """Where a tensor's numbers lie; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def _fits(module: Any) -> bool:
    """Float32 on a CPU, transformers' own modules of a known architecture, products of ours."""
    config = module.config
    kind = getattr(config, "model_type", None)
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        kind in _MODEL_TYPES
        and rope.get("rope_type", "default") in _ROTARY
        and getattr(config, "hidden_act", None) == "silu"
        and hasattr(module, "lm_head")
        and all(p.dtype is torch.float32 and p.device.type == "cpu" for p in module.parameters())
        and all(_is_known(part, kind) for part in module.modules())
        and _layers_are_alike(module)
    )


def _is_known(part: nn.Module, kind: str) -> bool:
    """A module that computes what its class in transformers, torch or ours says, and no more."""
    homes = (f"transformers.models.{kind}.", "transformers.activations", "torch.", "draftproof.")
    hooked = part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__
    return type(part).__module__.startswith(homes) and not hooked


def _layers_are_alike(module: Any) -> bool:
    """Every product is ours and of one type, every layer of the same shapes."""
    kinds: set[type] = {type(module.lm_head)}
    shapes = set()
    for layer in module.model.layers:
        linears = [*_linears(layer)]
        kinds.update(type(part) for part in linears)
        if kinds not in ({FewRowLinear}, {Int8Linear}):
            return False
        if not all(part.weight.is_contiguous() for part in linears):
            return False
        shapes.add(tuple(part.weight.shape for part in linears))
    return len(shapes) == 1
