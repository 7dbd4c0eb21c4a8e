"""Whether two tokenizers number their tokens alike; knows no model and no library's tokenizer."""

from __future__ import annotations

from typing import Protocol

from draftproof.errors import VocabularyMismatch


class HasVocabulary(Protocol):
    """All that is asked of a tokenizer here; every Hugging Face tokenizer has it."""

    def get_vocab(self) -> dict[str, int]:
        """Token to id, added tokens included."""
        ...


def check_same_vocabulary(
    target_tokenizer: HasVocabulary, drafter_tokenizer: HasVocabulary
) -> None:
    """Refuse a pair in which one id means two different tokens.

    Only tokens count: two models of one family may pad their logits to different sizes.
    """
    target, drafter = target_tokenizer.get_vocab(), drafter_tokenizer.get_vocab()
    if target == drafter:
        return
    differing = {token_id for _, token_id in target.items() ^ drafter.items()}
    first = min(differing)
    raise VocabularyMismatch(
        f"the drafter numbers its tokens differently: id {first} is {_token(target, first)} to the "
        f"target and {_token(drafter, first)} to the drafter, {len(differing)} ids differ in all "
        f"(target {len(target)} tokens, drafter {len(drafter)}); both have to use one vocabulary. "
        "Take a smaller model of the target's own family, or a drafter that needs no second "
        "tokenizer: 'ngram' or 'self-int8'"
    )


def num_tokens(tokenizer: HasVocabulary | None, logits_size: int) -> int:
    """How many ids are tokens; logits from there on are padding of the embedding.

    Without a tokenizer nothing is known of padding, so every logit counts.
    """
    if tokenizer is None:
        return logits_size
    highest = max(tokenizer.get_vocab().values(), default=logits_size - 1)
    return min(highest + 1, logits_size)


def _token(vocabulary: dict[str, int], token_id: int) -> str:
    """The token as shown to a reader, or the words for having none."""
    names = sorted(token for token, known in vocabulary.items() if known == token_id)
    return " and ".join(map(repr, names)) if names else "no token"
