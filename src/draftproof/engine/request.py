"""A prompt and its sampling parameters to sequences that can be decoded."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass

from draftproof.core import FinishReason, Proposal
from draftproof.decode.sequence import Sequence
from draftproof.decode.stop import StopRules
from draftproof.decode.text import Decoder, TextStream
from draftproof.engine.grammars import Grammars
from draftproof.errors import InvalidPrompt, InvalidSetting
from draftproof.models.base import TargetModel
from draftproof.sampling.matcher import Matcher
from draftproof.sampling.noise import KeyedNoise
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp
from draftproof.stats.counters import Stats
from draftproof.verification.base import Pairing, Verifier
from draftproof.verification.registry import choose


@dataclass(frozen=True, slots=True)
class Language:
    """What the target's tokenizer and generation config say about ids."""

    decoder: Decoder | None
    """None when only ids come and go; texts are empty then."""
    num_tokens: int
    """Ids below this are real tokens; the rest pads the embedding."""
    end_ids: frozenset[int]
    """The model's own end tokens; may be empty."""
    grammars: Grammars | None = None
    """Reads the tokenizer once for all requests; None without one."""

    def ends(self, params: SamplingParams) -> frozenset[int]:
        """Ids that end the texts of one request."""
        model = frozenset() if params.ignore_eos else self.end_ids
        return model | frozenset(params.stop_token_ids)

    def matcher(self, params: SamplingParams) -> Matcher | None:
        """For one sequence; None where the request has no grammar."""
        if params.grammar is None:
            return None
        if self.grammars is None:
            raise InvalidSetting(
                "a grammar needs a tokenizer and the model came without one; pass tokenizer="
            )
        return self.grammars.matcher(params.grammar, self.ends(params))


@dataclass(frozen=True, slots=True)
class Drafts:
    """What the drafter can do and which rule the user wants."""

    drafter: str
    proposals: frozenset[Proposal]
    verifier: str | Verifier | None
    width: int | None = 1
    """Of the drafts; None where that is settled from round to round."""
    remembers: bool = False
    """The drafter learns from other requests."""

    def pairing(self, params: SamplingParams) -> Pairing:
        """The rule for one request, with the way of drafting it will judge."""
        return choose(
            self.proposals, self.drafter, params, self.verifier, self.width, self.remembers
        )


def make_sequences(
    prompt: Ids[int],
    params: SamplingParams,
    target: TargetModel,
    language: Language,
    drafts: Drafts,
    first_id: int = 0,
) -> list[Sequence]:
    """One sequence per sample, numbered from `first_id`, everything about the request checked."""
    _check_prompt(prompt, target, language.num_tokens)
    if params.stop_strings and language.decoder is None:
        raise InvalidSetting("stop strings need a tokenizer and none was given; use stop_token_ids")
    pairing = drafts.pairing(params)
    max_length = _max_length(prompt, params, target)
    sequences = []
    for sample in range(params.n):
        matcher = language.matcher(params)
        warp = Warp(
            params,
            prompt_length=len(prompt),
            num_tokens=language.num_tokens,
            end_ids=language.end_ids | frozenset(params.stop_token_ids),
            matcher=matcher,
        )
        stream = TextStream(language.decoder, prompt)
        sequences.append(
            Sequence(
                seq_id=first_id + sample,
                tokens=list(prompt),
                prompt_length=len(prompt),
                params=params,
                pairing=pairing,
                warp=warp,
                noise=KeyedNoise(params.seed, sample),
                stop=StopRules(params, language.ends(params), stream, max_length, matcher),
                max_length=max_length,
                stats=Stats(prompt_tokens=len(prompt)),
                finish_reason=_over_at_once(params, matcher),
            )
        )
    return sequences


def _max_length(prompt: Ids[int], params: SamplingParams, target: TargetModel) -> int:
    wanted = len(prompt) + params.max_tokens
    return wanted if target.max_positions is None else min(wanted, target.max_positions)


def _over_at_once(params: SamplingParams, matcher: Matcher | None) -> FinishReason | None:
    if matcher is not None and matcher.after(()).is_over:
        return "stop"
    return "length" if params.max_tokens == 0 else None


def _check_prompt(prompt: Ids[int], target: TargetModel, num_tokens: int) -> None:
    if not prompt:
        raise InvalidPrompt(
            "the prompt has no tokens and the tokenizer adds none; give at least one token"
        )
    limit = target.max_positions
    if limit is not None and len(prompt) >= limit:
        raise InvalidPrompt(
            f"the prompt has {len(prompt)} tokens and {target.name} reads at most {limit}, the "
            f"answer included; shorten the prompt to {limit - 1} tokens or fewer"
        )
    if wrong := [token for token in prompt if not 0 <= token < num_tokens]:
        raise InvalidPrompt(
            f"the prompt holds token id {wrong[0]}; {target.name} knows ids 0 to {num_tokens - 1}"
        )


def spread(params: SamplingParams | Ids[SamplingParams] | None, count: int) -> Ids[SamplingParams]:
    """The parameters of each of `count` prompts; one serves them all, and None means the usual."""
    given = params if isinstance(params, (list, tuple)) else [params]
    if wrong := [one for one in given if not isinstance(one, SamplingParams | None)]:
        raise InvalidSetting(
            f"params holds a {type(wrong[0]).__name__}; give SamplingParams, as in "
            "generate(prompt, SamplingParams(max_tokens=64))"
        )
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidSetting(
            f"{len(params)} SamplingParams were given for {count} prompts; give one, or one each"
        )
    return params
