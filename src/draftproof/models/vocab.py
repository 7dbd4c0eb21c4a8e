"""Whether two tokenizers number their tokens alike, and which tokens they have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftproof.models.lexicon import Lexicon


class HasVocabulary(Protocol):
    """All that is asked of a tokenizer here; every Hugging Face tokenizer has it."""

    def get_vocab(self) -> dict[str, int]:
        """Token to id, added tokens included."""
        ...


def same_vocabulary(target: HasVocabulary, drafter: HasVocabulary) -> bool:
    """Whether every id means the same token to both.

    Only tokens count: two models of one family may pad their logits to different sizes.
    """
    return target.get_vocab() == drafter.get_vocab()


@dataclass(frozen=True, slots=True)
class Overlap:
    """The tokens that mean the same in two vocabularies: the intersection of Timor et al. 2025."""

    shared: dict[int, int]
    """Target id to drafter id, one to one."""
    num_target: int
    """How many different tokens the target has."""
    num_drafter: int

    @property
    def share(self) -> float:
        """The part of the smaller vocabulary that the larger one has too, 0 to 1."""
        return len(self.shared) / max(1, min(self.num_target, self.num_drafter))

    def __str__(self) -> str:
        return (
            f"{len(self.shared)} tokens in common, of {self.num_target} that the target has and "
            f"{self.num_drafter} that the drafter has: {self.share:.0%} of the smaller vocabulary"
        )


def overlap(target: Lexicon, drafter: Lexicon) -> Overlap:
    """Which ids mean the same.

    Ordinary tokens do when they stand for the same bytes, however their vocabularies write spaces
    and bytes. A special token never equals an ordinary one of the same letters. Two special tokens
    of one name mean the same unless only one of them ends a text; ends of text mean the same, and
    so do beginnings, whatever they are called. What says nothing, padding and unknown text, is
    shared by nobody.
    """
    shared = {
        i: drafter.ids[meaning] for meaning, i in target.ids.items() if meaning in drafter.ids
    }
    taken = set(shared.values())

    def pair(i: int | None, j: int | None) -> None:
        if i is None or j is None or i in shared or j in taken:
            return
        if i in target.void or j in drafter.void:
            return
        shared[i] = j
        taken.add(j)

    for name, i in target.markers.items():
        j = drafter.markers.get(name)
        if (i == target.end) == (j == drafter.end):
            pair(i, j)
    for i, j in ((target.end, drafter.end), (target.start, drafter.start)):
        pair(i, j)
    return Overlap(shared, target.num_tokens, drafter.num_tokens)


def num_tokens(tokenizer: HasVocabulary | None, logits_size: int) -> int:
    """How many ids are tokens; logits from there on are padding of the embedding.

    Without a tokenizer nothing is known of padding, so every logit counts.
    """
    if tokenizer is None:
        return logits_size
    highest = max(tokenizer.get_vocab().values(), default=logits_size - 1)
    return min(highest + 1, logits_size)
