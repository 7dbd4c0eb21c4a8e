"""Transformers decoders behind `TargetModel`: our cache and masks, the model's own layers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import Cache, PreTrainedModel

from draftproof.core import Draft, Proposal, TargetOutput, TreeBatch
from draftproof.errors import InvalidSetting, UnsupportedModel
from draftproof.kernels import FewRowLinear, Int8Linear, is_available
from draftproof.models.cache import KVCache, Slots
from draftproof.models.capability import attention_kinds, check_decoder
from draftproof.models.pack import pack
from draftproof.models.twin import keep_first_layers, replace_linears, twin


class HFModel:
    """A transformers decoder that shares the weights of the user's model and nothing else."""

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        check_decoder(model)
        self.name = name
        self._source = model
        self._setup(twin(model))
        if is_available() and self.device.type == "cpu":
            replace_float32_linears(self._module)
        self._check_rollback()

    def _setup(self, module: nn.Module) -> None:
        self._module: Any = module
        config = module.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
        self.vocab_size: int = config.vocab_size
        self.num_layers: int = config.num_hidden_layers
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        self.device: torch.device = self._source.device
        self._kinds = attention_kinds(config)
        self._window: int | None = getattr(config, "sliding_window", None)
        self._additive = _choose_attention(module.config)
        names = inspect.signature(self._source.forward).parameters
        # Transformers 5.24 renamed the argument.
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    def forward(self, batch: TreeBatch, cache: KVCache) -> TargetOutput:
        return TargetOutput(self._run(batch, cache, first_row=0, logits_to_keep=0))

    def prefill(self, tokens: Sequence[int], cache: KVCache, row: int, chunk: int) -> None:
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            chain = Draft.chain(part[1:], Proposal.POINT)
            batch = pack(part[:1], [chain], [cache.lengths[row]], self.device)
            self._run(batch, cache, first_row=row, logits_to_keep=1)
            cache.keep(row, range(len(part)))

    def end_ids(self, tokenizer: Any = None) -> frozenset[int]:
        """Ids that end a text: those of the generation config, else the tokenizer's."""
        generation = getattr(self._source, "generation_config", None)
        ends = getattr(generation, "eos_token_id", None)
        if ends is None:
            ends = getattr(self._source.config, "eos_token_id", None)
        if ends is None:
            ends = getattr(tokenizer, "eos_token_id", None)
        return frozenset([ends] if isinstance(ends, int) else ends or ())

    def int8_copy(self) -> HFModel:
        copied = self._share(f"{self.name} in int8")
        replaced = replace_linears(copied._module, Int8Linear)
        if replaced == 0:
            raise UnsupportedModel(
                f"{self.name} has no linear layers that can be copied to int8; "
                "use drafter='ngram' or 'model:PATH'"
            )
        return copied

    def first_layers(self, num_layers: int) -> HFModel:
        if not 1 <= num_layers < self.num_layers:
            raise InvalidSetting(
                f"early-exit:{num_layers} was given and the target has {self.num_layers} layers; "
                f"give 1 to {self.num_layers - 1}"
            )
        copied = self._share(f"{self.name}, first {num_layers} layers")
        keep_first_layers(copied._module, num_layers, self.num_layers)
        copied._module.config.get_text_config(decoder=True).num_hidden_layers = num_layers
        if is_available() and self.device.type == "cpu":
            replace_float32_linears(copied._module)
        return copied

    def _share(self, name: str) -> HFModel:
        """A second adapter around a fresh twin of the same source."""
        copied = object.__new__(HFModel)
        copied.name = name
        copied._source = self._source
        copied._setup(twin(self._source))
        return copied

    @torch.inference_mode()
    def _run(
        self, batch: TreeBatch, cache: KVCache, first_row: int, logits_to_keep: int
    ) -> torch.Tensor:
        """Logits f[B, W, V], or of the last `logits_to_keep` columns when that is not 0."""
        rows, width = batch.tokens.shape
        slots = cache.slots(first_row, rows, width)
        output = self._module(
            input_ids=batch.tokens,
            attention_mask=self._masks(batch, slots),
            position_ids=batch.positions,
            use_cache=True,
            logits_to_keep=logits_to_keep,
            **{self._cache_argument: _CacheView(cache, slots)},
        )
        logits: torch.Tensor = output.logits
        return logits

    def _masks(self, batch: TreeBatch, slots: Slots) -> torch.Tensor | dict[str, torch.Tensor]:
        """bool or additive f[B, 1, W, E]; one per kind of layer when a model mixes them."""
        full = torch.zeros(
            (*batch.tokens.shape, slots.extent), dtype=torch.bool, device=self.device
        )
        for b, start in enumerate(slots.starts):
            full[b, :, :start] = True
            full[b, :, start : start + slots.width] = batch.mask[b]
        masks = {"full_attention": full}
        if "sliding_attention" in self._kinds:
            masks["sliding_attention"] = full & self._in_window(batch, slots)
        formed = {kind: self._formed(masks[kind][:, None]) for kind in self._kinds}
        return formed if len(formed) > 1 else next(iter(formed.values()))

    def _in_window(self, batch: TreeBatch, slots: Slots) -> torch.Tensor:
        """bool[B, W, E]: the key lies less than a window before the query."""
        assert self._window is not None
        keys = torch.arange(slots.extent, device=self.device).repeat(len(slots.starts), 1)
        for b, start in enumerate(slots.starts):
            keys[b, start : start + slots.width] = batch.positions[b]
        return batch.positions[:, :, None] - keys[:, None, :] < self._window

    def _formed(self, mask: torch.Tensor) -> torch.Tensor:
        if not self._additive:
            return mask
        dtype: torch.dtype = self._module.dtype
        zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        return zeros.masked_fill_(~mask, torch.finfo(dtype).min)

    @torch.inference_mode()
    def _check_rollback(self) -> None:
        """Draft wrong tokens, drop them, go on: the logits must be those of a fresh pass."""
        ids = [(7 * i + 3) % self.vocab_size for i in range(8)]
        cache = KVCache(rows=1, capacity=16)
        self.prefill(ids[:3], cache, row=0, chunk=2)
        for draft in ([1, 2], ids[4:]):
            chain = Draft.chain(draft, Proposal.POINT)
            batch = pack([ids[3]], [chain], [cache.lengths[0]], self.device)
            logits = self.forward(batch, cache).logits[0]
        fresh = self._module(input_ids=torch.tensor([ids], device=self.device), use_cache=False)
        expected = fresh.logits[0, 3:].double()
        precise = expected.new_tensor(0.1 if self._module.dtype.itemsize >= 4 else 0.5)
        if (logits.double() - expected).abs().max() > precise * expected.std():
            raise UnsupportedModel(
                f"{self.name} ({type(self._source).__name__}) gives other logits after a rejected "
                "draft was dropped from its cache, so it keeps state that cannot be rolled back; "
                "a decoder whose only state is its keys and values would work"
            )


class _CacheView(Cache):
    """What a transformers layer sees of a `KVCache` during one forward pass."""

    def __init__(self, cache: KVCache, slots: Slots) -> None:
        super().__init__(layers=[])
        self._cache = cache
        self._slots = slots

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cache.write(layer_idx, key_states, value_states, self._slots)

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return max(self._slots.starts)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:  # noqa: ARG002
        return self._slots.extent, 0


def replace_float32_linears(module: nn.Module) -> None:
    """Give float32 linear layers the few-row kernels; other dtypes keep torch's."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.float32:
                bias = child.bias.detach() if child.bias is not None else None
                setattr(parent, name, FewRowLinear(child.weight.detach(), bias))


def _choose_attention(config: Any) -> bool:
    """Pick an attention that takes our masks, on the twin's own config; True if additive."""
    softcap = getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None)
    if softcap is not None or config._attn_implementation == "eager":
        config._attn_implementation = "eager"
        return True
    config._attn_implementation = "sdpa"
    return False
