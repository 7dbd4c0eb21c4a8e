"""Drafter names to drafters; the one place that knows all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftproof.config import EngineSettings
from draftproof.drafters.base import Drafter
from draftproof.drafters.foreign import ForeignPair, Method, foreign_drafter
from draftproof.drafters.hybrid import HybridDrafter
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.lookup_registry import (
    LOOKUP_HELP,
    check_lookup,
    hybrid_parts,
    is_lookup,
    make_lookup,
)
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.drafters.shared import SharedCacheDrafter
from draftproof.errors import InvalidSetting, VocabularyMismatch
from draftproof.models.base import TargetModel
from draftproof.models.lexicon import Lexicon
from draftproof.models.load import load
from draftproof.models.vocab import overlap, same_vocabulary

DRAFTER_HELP = {
    "self-int8": "the target's own linear layers in int8, on the target's cache",
    **LOOKUP_HELP,
    "model:PATH": "a smaller model, best of the same vocabulary: name, path or hub id",
    "model-tli:PATH": "the same, drafting only tokens that both vocabularies have",
    "model-slem:PATH": "the same, drafting text that the target's tokenizer cuts anew",
    "early-exit:N": "the target's first N layers, on the target's cache",
    "hybrid:A,B": "a look-up A where it is confident, any drafter B elsewhere",
    "none": "no drafts: plain decoding",
}
_FOREIGN_METHODS: dict[str, Method | None] = {
    "model": None,
    "model-tli": "tli",
    "model-slem": "slem",
}
"""How a drafter of another vocabulary drafts; None chooses."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a drafter is built for."""

    target: TargetModel
    tokenizer: Any
    """The target's tokenizer, or None."""
    dtype: Any
    device: Any
    settings: EngineSettings


def check_spec(spec: str) -> None:
    """Refuse a name that no drafter has; told before a model is loaded for it."""
    name, _, argument = spec.partition(":")
    if name == "hybrid":
        for part in hybrid_parts(spec):
            check_spec(part)
        return
    if is_lookup(spec):
        check_lookup(spec)
        return
    if name == "early-exit" and argument and not argument.isdecimal():
        raise InvalidSetting(f"drafter is {spec!r}; give a number of layers: early-exit:6")
    takes_argument = name in (*_FOREIGN_METHODS, "early-exit")
    if (argument == "") if takes_argument else (spec not in DRAFTER_HELP):
        raise InvalidSetting(f"drafter is {spec!r}; choose one of {', '.join(DRAFTER_HELP)}")


def make_drafter(spec: str, around: Surroundings) -> Drafter:
    """The drafter that `spec` names, built for `around.target`."""
    check_spec(spec)
    name, _, argument = spec.partition(":")
    if name == "hybrid":
        lookup, other = hybrid_parts(spec)
        return HybridDrafter(_lookup(lookup, around), make_drafter(other, around))
    if is_lookup(spec):
        return _lookup(spec, around)
    if name in _FOREIGN_METHODS:
        return _model_drafter(argument, around, _FOREIGN_METHODS[name])
    if name == "early-exit":
        return SharedCacheDrafter.early_exit(around.target, int(argument))
    if spec == "self-int8":
        return SharedCacheDrafter.int8(around.target)
    return NoDrafter()


def _lookup(spec: str, around: Surroundings) -> LookupDrafter:
    return make_lookup(spec, around.tokenizer, around.target.vocab_size)


def _model_drafter(path: str, around: Surroundings, method: Method | None) -> Drafter:
    from draftproof.models.hf import HFModel

    # A target that was given as an object may live elsewhere than "auto" would choose.
    device = around.target.device if around.device == "auto" else around.device
    loaded = load(path, dtype=around.dtype, device=device)
    model = HFModel(loaded.model, loaded.name, around.settings.kernels)
    own, its = around.tokenizer, loaded.tokenizer
    size, chunk = around.target.vocab_size, around.settings.prefill_chunk
    if own is None or its is None:
        if method is None and model.vocab_size == size:
            return ModelDrafter(model, size, chunk)
        raise VocabularyMismatch(
            f"{around.target.name} has {size} ids and {model.name} {model.vocab_size}, and without "
            "both tokenizers nothing says which mean the same; pass tokenizers, or use "
            "drafter='ngram' or 'self-int8'"
        )
    if method is None and same_vocabulary(own, its):
        return ModelDrafter(model, size, chunk)
    target, drafter = Lexicon(own, size), Lexicon(its, model.vocab_size)
    pair = ForeignPair(model, target, drafter, overlap(target, drafter), size, chunk)
    return foreign_drafter(pair, method)
