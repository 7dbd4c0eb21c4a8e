"""Transformers decoders behind `TargetModel`: our cache and masks, the model's own layers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from platformdirs import user_cache_path
from torch import nn
from transformers import Cache, PreTrainedModel

from draftproof.config import Kernels
from draftproof.core import Draft, Proposal, TargetOutput, TreeBatch
from draftproof.errors import InvalidSetting, UnsupportedModel
from draftproof.kernels import FewRowLinear, Int8Linear, choose, is_available
from draftproof.models import capability
from draftproof.models.cache import KVCache, Slots
from draftproof.models.compiled import MAX_STEP_WIDTH, CompiledStep
from draftproof.models.pack import pack
from draftproof.models.probe import find_fault
from draftproof.models.twin import keep_first_layers, replace_all_linears, replace_linears, twin

_PROBE_WINDOW = 3


class HFModel:
    """A transformers decoder that shares the weights of the user's model and nothing else."""

    def __init__(self, model: PreTrainedModel, name: str, kernels: Kernels = "exact") -> None:
        capability.check_decoder(model)
        self._kernels = kernels
        self.name = name
        self._source = model
        self._setup(twin(model))
        self._kinds = capability.attention_kinds(self._config)
        self._use_few_row_kernels()
        self._check_rollback()
        self._compile()

    def _setup(self, module: nn.Module) -> None:
        self._module: Any = module
        config: Any = module.config
        self._config: Any = config.get_text_config(decoder=True)
        self.vocab_size: int = self._config.vocab_size
        self.num_layers: int = self._config.num_hidden_layers
        self.max_positions = capability.longest_sequence(self._config)
        self.device: torch.device = self._source.device
        self._window: int | None = getattr(self._config, "sliding_window", None)
        self._additive = capability.choose_attention(self._module)
        self._step: CompiledStep | None = None
        names = inspect.signature(self._source.forward).parameters
        # Transformers 5.24 renamed the argument.
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._can_select_logits = "logits_to_keep" in names

    @property
    def pads(self) -> bool:
        return self._step is None

    def forward(
        self, batch: TreeBatch, cache: KVCache, columns: Sequence[int] | None = None
    ) -> TargetOutput:
        return TargetOutput(self._run(batch, cache, 0, columns))

    def prefill(self, tokens: Sequence[int], cache: KVCache, row: int, chunk: int) -> None:
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            chain = Draft.chain(part[1:], Proposal.POINT)
            batch = pack(part[:1], [chain], [cache.lengths[row]], self.device)
            self._run(batch, cache, row, [len(part) - 1])
            cache.keep(row, range(len(part)))

    def end_ids(self, tokenizer: Any = None) -> frozenset[int]:
        """Ids that end a text: those of the generation config, else the tokenizer's."""
        generation = getattr(self._source, "generation_config", None)
        ends = getattr(generation, "eos_token_id", None)
        if ends is None:
            ends = getattr(self._source.config, "eos_token_id", None)
        if ends is None:
            ends = getattr(tokenizer, "eos_token_id", None)
        known = [ends] if isinstance(ends, int) else ends or ()
        # An id beyond the logits, as default configurations name, can never come.
        return frozenset(end for end in known if end < self.vocab_size)

    def int8_copy(self) -> HFModel:
        if getattr(self._source.config, "quantization_config", None) is not None:
            raise UnsupportedModel(
                f"{self.name} is quantised already, so there are no plain weights to copy to int8; "
                "load it unquantised, or use drafter='ngram' or 'model:PATH'"
            )
        copied = self._share(f"{self.name} in int8")
        if replace_all_linears(copied._module, Int8Linear) == 0:
            raise UnsupportedModel(
                f"{self.name} has no linear layers that can be copied to int8; "
                "use drafter='ngram' or 'model:PATH'"
            )
        copied._compile(wanted=self._step is not None)
        copied._check_it_runs()
        return copied

    def first_layers(self, num_layers: int) -> HFModel:
        if not 1 <= num_layers < self.num_layers:
            most = self.num_layers - 1
            raise InvalidSetting(
                f"early-exit:{num_layers} was given and the target's layers number "
                f"{self.num_layers}; "
                + (f"give 1 to {most}" if most else "use drafter='self-int8' or 'ngram'")
            )
        copied = self._share(f"{self.name}, first {num_layers} layers")
        keep_first_layers(copied._module, num_layers, self.num_layers)
        copied._config.num_hidden_layers = copied.num_layers = num_layers
        copied._use_few_row_kernels()
        copied._compile(wanted=self._step is not None)
        copied._check_it_runs()
        return copied

    def _share(self, name: str) -> HFModel:
        """A second adapter around a fresh twin of the same source."""
        copied = object.__new__(HFModel)
        copied.name = name
        copied._source = self._source
        copied._kernels = self._kernels
        copied._setup(twin(self._source))
        copied._kinds = self._kinds
        copied.max_positions = self.max_positions
        return copied

    def _compile(self, wanted: bool = True) -> None:
        """Run few rows as one compiled call where the model has the shape for it.

        Copies that share a cache with a target do as the target does: the two lay it out alike.
        """
        if wanted and is_available():
            layers = self._source.config.get_text_config(decoder=True).num_hidden_layers
            step = CompiledStep.of(self._module, self._kinds, self._window, layers)
            if step is not None and self._agrees(step):
                self._step = step
        if self._step is None and self._kernels == "fastest":
            few_row = [part for part in self._module.modules() if isinstance(part, FewRowLinear)]
            choose(few_row, user_cache_path("draftproof") / "kernels.json")

    @torch.inference_mode()
    def _agrees(self, step: CompiledStep) -> bool:
        """Whether the compiled step says what the modules say, on a few tokens."""
        chain = Draft.chain([id_ % self.vocab_size for id_ in (2, 3, 5, 7)], Proposal.POINT)
        batch = pack([1], [chain], [0], self.device)
        caches = KVCache(rows=1, capacity=8), KVCache(rows=1, capacity=8)
        slots = caches[0].slots(0, *batch.tokens.shape)
        found = step(batch, caches[0], slots, None)
        expected = self._by_modules(batch, caches[1], slots, None)
        # Four digits: rounding stays far below it, another computation does not.
        return bool((found - expected).abs().max() <= 1e-3 * expected.abs().max())

    def _use_few_row_kernels(self) -> None:
        if is_available() and self.device.type == "cpu":
            replace_linears(self._module, FewRowLinear, torch.float32)

    @torch.inference_mode()
    def _run(
        self, batch: TreeBatch, cache: KVCache, first_row: int, columns: Sequence[int] | None
    ) -> torch.Tensor:
        """Logits f[B, W, V], or f[B, 1, V] of the `columns`, one for each row."""
        rows, width = batch.tokens.shape
        slots = cache.slots(first_row, rows, width, batch.earlier.shape[1])
        if self._step is not None:
            self._step.reserve(cache)
            if width <= MAX_STEP_WIDTH:
                return self._step(batch, cache, slots, columns)
        return self._by_modules(batch, cache, slots, columns)

    def _by_modules(
        self, batch: TreeBatch, cache: KVCache, slots: Slots, columns: Sequence[int] | None
    ) -> torch.Tensor:
        """The same by the stock modules."""
        arguments: dict[str, Any] = {self._cache_argument: _CacheView(cache, slots)}
        chosen = None if columns is None else torch.tensor(columns, device=self.device)
        if chosen is not None and len(chosen) == 1 and self._can_select_logits:
            arguments["logits_to_keep"] = chosen
            chosen = None
        logits: torch.Tensor = self._module(
            input_ids=batch.tokens,
            attention_mask=self._masks(batch, slots),
            position_ids=batch.positions,
            use_cache=True,
            **arguments,
        ).logits
        if chosen is None:
            return logits
        return logits[torch.arange(len(chosen), device=self.device), chosen][:, None]

    def _masks(self, batch: TreeBatch, slots: Slots) -> torch.Tensor | dict[str, torch.Tensor]:
        """bool or additive f[B, 1, W, E]; one per kind of layer when a model mixes them."""
        full = torch.zeros(
            (*batch.tokens.shape, slots.extent), dtype=torch.bool, device=self.device
        )
        for b, start in enumerate(slots.starts):
            full[b, :, :start] = True
            full[b, :, start : start + batch.mask.shape[2]] = batch.mask[b]
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
            fed = torch.cat((batch.earlier[b], batch.positions[b]))
            keys[b, start : start + len(fed)] = fed
        return batch.positions[:, :, None] - keys[:, None, :] < self._window

    def _formed(self, mask: torch.Tensor) -> torch.Tensor:
        if not self._additive:
            return mask
        dtype: torch.dtype = self._module.dtype
        zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        return zeros.masked_fill_(~mask, torch.finfo(dtype).min)

    def _check_rollback(self) -> None:
        """Refuse a model that cannot verify drafts, and learn what its cache takes per token."""
        fault = self._find_fault()
        window = self._window
        if fault is not None and window is not None and self._kinds != capability.FULL:
            # The configuration names a window that the model's own masks ignore. The caches of
            # transformers do not: only as far as the window reaches do the two agree.
            self._kinds = capability.FULL
            self.max_positions = min(self.max_positions or window, window)
            fault = self._find_fault()
        if fault is not None:
            raise UnsupportedModel(
                f"{self.name} ({type(self._source).__name__}) {fault}; a decoder whose only state "
                "is the keys and values of its attention would work"
            )

    def _find_fault(self) -> str | None:
        """Probe the model with a narrow window, which shows itself on a few tokens."""
        window = self._window
        if window is not None:
            self._window = self._config.sliding_window = min(window, _PROBE_WINDOW)
        cache = KVCache(rows=2, capacity=16)
        try:
            fault = find_fault(self, self._one_pass, cache)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return f"cannot run on a token tree ({type(error).__name__}: {error})"
        finally:
            if window is not None:
                self._window = self._config.sliding_window = window
        self.cache_bytes_per_token = cache.bytes_per_token
        return fault

    @torch.inference_mode()
    def _one_pass(self, ids: Sequence[int]) -> torch.Tensor:
        tokens = torch.tensor([ids], device=self.device)
        mask = torch.ones_like(tokens)
        output = self._module(input_ids=tokens, attention_mask=mask, use_cache=False)
        return output.logits[0]  # type: ignore[no-any-return]

    def _check_it_runs(self) -> None:
        """Find out now, not in the first round, whether a changed copy still computes."""
        cache = KVCache(rows=1, capacity=1)
        empty = Draft.chain((), Proposal.POINT)
        try:
            logits = self.forward(pack([0], [empty], [0], self.device), cache).logits
        except RuntimeError as error:
            raise UnsupportedModel(
                f"{self.name} cannot be run ({error}); use drafter='ngram' or 'model:PATH'"
            ) from error
        assert logits.shape[-1] == self.vocab_size
        self.cache_bytes_per_token = cache.bytes_per_token


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
