"""Speculation inside transformers' own `model.generate(..., custom_generate=...)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import GenerationMixin
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftproof.api import Speculator
from draftproof.config import DEFAULT_DRAFTER, Depth, EngineSettings
from draftproof.errors import InvalidSetting
from draftproof.sampling.params import SamplingParams

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

_UNSUPPORTED_OUTPUTS = (
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
)
# What generate prepares for its own loop and this one makes for itself.
_OWN_KWARGS = {
    "attention_mask",
    "cache",
    "cache_position",
    "logits_to_keep",
    "past_key_values",
    "position_ids",
    "use_cache",
}


def custom_generate(
    drafter: str = DEFAULT_DRAFTER,
    *,
    depth: Depth | None = None,
    verifier: str | None = None,
    tokenizer: Any = None,
    settings: EngineSettings | None = None,
) -> Callable[..., Any]:
    """A decoding method for `model.generate(custom_generate=...)`.

    Greedy or sampled as the generation config says; its logits processors, stopping criteria,
    streamer and padding are honoured. Sampling takes its seed from torch's global generator, so
    `torch.manual_seed` makes it repeatable. `settings` has what is not said here, trees among it:
    `EngineSettings(depth=3, width=3)`. Keep the returned object: the drafter is built on
    the first call with a model and used again.

    Transformers (5.24) loses `tokenizer=` before any decoding method but its own, and with it
    `stop_strings=`; give `stopping_criteria=[StopStringCriteria(tokenizer, strings)]` instead.
    """
    settings = (settings or EngineSettings()).having(depth=depth)
    return _DecodingMethod(drafter, verifier, tokenizer, settings)


class _DecodingMethod:
    """What `generate` calls in place of its own loop."""

    def __init__(
        self, drafter: str, verifier: str | None, tokenizer: Any, settings: EngineSettings
    ) -> None:
        self._drafter = drafter
        self._verifier = verifier
        self._tokenizer = tokenizer
        self._settings = settings
        self._built: tuple[PreTrainedModel, Speculator] | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.LongTensor,
        logits_processor: Sequence[Callable[..., Any]],
        stopping_criteria: Callable[..., Any],
        generation_config: GenerationConfig,
        streamer: Any = None,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        synced_gpus = synced_gpus or bool(_dropped_argument("synced_gpus"))
        _refuse_unsupported(generation_config, model_kwargs, synced_gpus)
        rows = _rows(input_ids, model_kwargs.get("attention_mask"))
        for row in rows:
            row.processors, row.criteria = logits_processor, stopping_criteria
        new_tokens = (generation_config.max_length or 0) - input_ids.shape[1]
        params = [_params(row, new_tokens, generation_config) for row in rows]
        prompts = [row.prompt for row in rows]
        streamer = streamer or _dropped_argument("streamer")
        generated = _run(self._speculator(model), prompts, params, streamer)
        return _result(input_ids, generated, generation_config)

    def _speculator(self, model: PreTrainedModel) -> Speculator:
        if self._built is None or self._built[0] is not model:
            made = Speculator.from_pretrained(
                model,
                self._drafter,
                tokenizer=self._tokenizer,
                verifier=self._verifier,
                settings=self._settings,
            )
            self._built = model, made
        return self._built[1]


def _dropped_argument(name: str) -> Any:
    """An argument of the `generate` call that called us.

    Transformers (5.24) replaces the arguments meant for the decoding method by those that only a
    callable names, and so drops the streamer. Reading it from the caller is the one way left to
    honour it; where it is passed on, this is not reached.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is inspect.unwrap(GenerationMixin.generate).__code__:
            return frame.f_locals.get(name)
        frame = frame.f_back
    return None


class _Row:
    """One row of the padded batch, which processors and criteria are shown as generate would.

    Some of them hold a number per row, so each is called with a whole batch of copies of this row
    and answers in its place. Being an object and no closure, it is copied with its processors.
    """

    def __init__(self, ids: list[int], padding: int, place: int, batch: int) -> None:
        self.prompt = ids[padding:]
        self._padding = ids[:padding]
        self._place = place
        self._batch = batch
        self.processors: Any = None
        self.criteria: Any = None

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The processed logits f[1, V]."""
        processed = self.processors(self._shown(ids), scores.repeat(self._batch, 1))
        chosen: torch.Tensor = processed[self._place : self._place + 1]
        return chosen

    def ends(self, ids: Sequence[int]) -> bool:
        """Whether a stopping criterion is met after `ids`."""
        done = self.criteria(self._shown(torch.tensor([ids])), None)
        return bool(done[self._place])

    def _shown(self, ids: torch.Tensor) -> torch.Tensor:
        padding = torch.tensor([self._padding], dtype=torch.long, device=ids.device)
        return torch.cat([padding, ids], dim=1).repeat(self._batch, 1)


def _rows(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[_Row]:
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    rows = []
    for place, (ids, seen) in enumerate(zip(input_ids.tolist(), mask.tolist(), strict=True)):
        padding = len(seen) - sum(seen)
        if any(seen[:padding]):
            raise InvalidSetting(
                "attention_mask hides tokens behind the first visible one; only left padding is "
                "supported, so set padding_side='left' on the tokenizer"
            )
        rows.append(_Row(ids, padding, place, len(input_ids)))
    return rows


def _params(row: _Row, new_tokens: int, config: GenerationConfig) -> SamplingParams:
    """The request of one row; everything but greed or chance is in processors and criteria."""
    return SamplingParams(
        max_tokens=max(0, new_tokens),
        temperature=1.0 if config.do_sample else 0.0,
        seed=int(torch.randint(2**62, (1,))) if config.do_sample else None,
        ignore_eos=True,  # the criteria hold the end tokens
        stop_rule=row.ends,
        logits_processors=(row,) if len(row.processors) else (),  # type: ignore[arg-type]
    )


def _run(
    speculator: Speculator,
    prompts: list[list[int]],
    params: list[SamplingParams],
    streamer: Any,
) -> list[tuple[int, ...]]:
    if streamer is None:
        return [output.token_ids for output in speculator.generate(prompts, params)]
    if len(prompts) != 1:
        raise InvalidSetting(f"a streamer shows one sequence and {len(prompts)} were given")
    ids = []
    for piece in speculator.stream(prompts[0], params[0]):
        streamer.put(torch.tensor([piece.token_id]))
        ids.append(piece.token_id)
    streamer.end()
    return [tuple(ids)]


def _result(
    input_ids: torch.Tensor, generated: list[tuple[int, ...]], config: GenerationConfig
) -> Any:
    """Ids i64[B, L], shorter rows padded on the right, as generate returns them."""
    longest = max(len(ids) for ids in generated)
    pad = getattr(config, "_pad_token_tensor", None)
    filler = int(pad) if pad is not None else 0
    padded = [[*ids, *[filler] * (longest - len(ids))] for ids in generated]
    new = torch.tensor(padded, dtype=input_ids.dtype, device=input_ids.device)
    sequences = torch.cat([input_ids, new.reshape(len(generated), longest)], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, sequences))


def _refuse_unsupported(
    config: GenerationConfig, model_kwargs: dict[str, Any], synced_gpus: bool
) -> None:
    if synced_gpus:
        raise InvalidSetting("synced_gpus was set; Draftproof decodes in one process")
    if (config.num_beams or 1) > 1:
        raise InvalidSetting(
            f"num_beams is {config.num_beams}; speculation keeps greedy search and sampling, "
            "not beams: set num_beams=1"
        )
    for name in _UNSUPPORTED_OUTPUTS:
        if config.return_dict_in_generate and getattr(config, name, None):
            raise InvalidSetting(f"{name} is set and not kept during speculation; unset it")
    cache = model_kwargs.get("cache") or model_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        raise InvalidSetting("a filled cache was passed; pass all the ids and no cache")
    unknown = {
        name
        for name, value in model_kwargs.items()
        if name not in _OWN_KWARGS and value is not None and value is not False
    }
    if unknown:
        raise InvalidSetting(
            f"generate was given {', '.join(sorted(unknown))}, which Draftproof does not pass on; "
            "leave it out or decode without custom_generate"
        )
