"""Names of look-up drafters to look-up drafters."""

from __future__ import annotations

from typing import Any

from draftproof.drafters.base import shortened
from draftproof.drafters.corpus import read_corpus
from draftproof.drafters.lookahead import LookaheadDrafter
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.recycling import RecyclingDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.errors import InvalidSetting

LOOKUP_HELP = {
    "ngram": "what followed the last time the same tokens were seen",
    "ngram:FILE": "the same, in a text file or .jsonl too",
    "suffix": "what most often followed them, here and in what was generated before",
    "suffix:FILE": "the same, in a text file or .jsonl too",
    "recycling": "the target's own runners-up for each token, from earlier rounds",
    "lookahead": "n-grams of what the target said while it verified",
}

_READERS = ("ngram", "suffix")
"""Those that look up in a file as well."""


def is_lookup(spec: str) -> bool:
    """Whether `spec` names a look-up drafter."""
    name, colon, _ = spec.partition(":")
    return name in _READERS if colon else spec in LOOKUP_HELP


def check_lookup(spec: str) -> None:
    """Refuse a corpus that is not named or holds nothing; `spec` is a look-up's."""
    name, colon, path = spec.partition(":")
    if colon and not path:
        raise InvalidSetting(
            f"drafter is {spec!r}; give a file of text, {name}:notes.txt, or leave the colon away"
        )
    if path:
        read_corpus(path)


def make_lookup(spec: str, tokenizer: Any, vocab_size: int) -> LookupDrafter:
    """The look-up drafter that `spec` names, for a target of V = `vocab_size`."""
    name, _, path = spec.partition(":")
    if name == "recycling":
        return RecyclingDrafter(vocab_size)
    if name == "lookahead":
        return LookaheadDrafter()
    corpus = _corpus(spec, path, tokenizer) if path else []
    if name == "ngram":
        return NgramDrafter(corpus=corpus, name=shortened(spec))
    return SuffixDrafter(corpus, name=shortened(spec))


def hybrid_parts(spec: str) -> tuple[str, str]:
    """(look-up, other drafter) of hybrid:A,B; the comma is the first one."""
    lookup, _, other = spec.partition(":")[2].partition(",")
    if not is_lookup(lookup) or not other:
        raise InvalidSetting(
            f"drafter is {spec!r}; give a look-up (ngram, suffix, either with :FILE, "
            "recycling, lookahead) and another drafter: hybrid:suffix,self-int8"
        )
    if other.startswith("hybrid") or other == lookup:
        raise InvalidSetting(
            f"drafter is {spec!r}; the second drafter has to be another one and no hybrid, "
            "as in hybrid:suffix,self-int8"
        )
    return lookup, other


def _corpus(spec: str, path: str, tokenizer: Any) -> list[list[int]]:
    """The texts of a file as the target's ids."""
    if tokenizer is None:
        raise InvalidSetting(
            f"drafter is {spec!r} and the model came without a tokenizer to read the file with; "
            f"pass tokenizer=, or use drafter={spec.partition(':')[0]!r}"
        )
    return [tokenizer.encode(text, add_special_tokens=False) for text in read_corpus(path)]
