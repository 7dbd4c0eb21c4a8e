"""Names of look-up drafters to look-up drafters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftproof.drafters.corpus import read_corpus
from draftproof.drafters.lookahead import LookaheadDrafter
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.recycling import RecyclingDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.errors import InvalidSetting

LOOKUP_HELP = {
    "ngram": "what followed the last time the same tokens were seen",
    "suffix": "what most often followed them, here and in what was generated before",
    "suffix:FILE": "the same, in a text file or .jsonl too",
    "recycling": "the target's own runners-up for each token, from earlier rounds",
    "lookahead": "n-grams of what the target said while it verified",
}


def is_lookup(spec: str) -> bool:
    """Whether `spec` names a look-up drafter."""
    return spec.startswith("suffix:") or spec in ("ngram", "suffix", "recycling", "lookahead")


def check_lookup(spec: str) -> None:
    """Refuse a corpus that is not named or holds nothing; `spec` is a look-up's."""
    name, colon, path = spec.partition(":")
    if colon and not path:
        raise InvalidSetting(
            f"drafter is {spec!r}; give a file of text, suffix:notes.txt, or leave the colon away"
        )
    if name == "suffix" and path:
        read_corpus(path)


def make_lookup(spec: str, tokenizer: Any, vocab_size: int) -> LookupDrafter:
    """The look-up drafter that `spec` names, for a target of V = `vocab_size`."""
    name, _, path = spec.partition(":")
    if name == "suffix" and path:
        return _suffix_drafter(path, tokenizer)
    if name == "suffix":
        return SuffixDrafter()
    if name == "recycling":
        return RecyclingDrafter(vocab_size)
    return LookaheadDrafter() if name == "lookahead" else NgramDrafter()


def hybrid_parts(spec: str) -> tuple[str, str]:
    """(look-up, other drafter) of hybrid:A,B; the comma is the first one."""
    lookup, _, other = spec.partition(":")[2].partition(",")
    if not is_lookup(lookup) or not other:
        raise InvalidSetting(
            f"drafter is {spec!r}; give a look-up (ngram, suffix, suffix:FILE, recycling, "
            "lookahead) and another drafter: hybrid:suffix,self-int8"
        )
    if other.startswith("hybrid") or other == lookup:
        raise InvalidSetting(
            f"drafter is {spec!r}; the second drafter has to be another one and no hybrid, "
            "as in hybrid:suffix,self-int8"
        )
    return lookup, other


def _suffix_drafter(path: str, tokenizer: Any) -> SuffixDrafter:
    if tokenizer is None:
        raise InvalidSetting(
            f"drafter is 'suffix:{path}' and the model came without a tokenizer to read the file "
            "with; pass tokenizer=, or use drafter='suffix'"
        )
    texts = [tokenizer.encode(text, add_special_tokens=False) for text in read_corpus(path)]
    return SuffixDrafter(texts, name=f"suffix:{Path(path).name}")
