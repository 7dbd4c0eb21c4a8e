"""Drafters whose vocabulary is not the target's; Timor et al. 2025 (ICML, arXiv 2502.05202).

Token-level intersection (TLI): the drafter may only say what is a token of both. Its logits are
masked before anything is drawn, so q is a law over the target's ids like any other drafter's.

String-level exact match (SLEM): the drafter writes text in its own tokens, and what the target's
tokenizer makes of the text is the draft, a chain of fixed tokens.

Both are lossless for any pair: the rules need nothing of a draft but how it was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch

from draftproof.core import Context, Draft, Plan, Proposal, Step
from draftproof.drafters.base import Drafting
from draftproof.drafters.intersection import CommittedWarp, Intersection, ShiftedNoise
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.translate import LOOK_BEHIND, TokenByToken, Translation, WholeText
from draftproof.errors import VocabularyMismatch
from draftproof.models.base import TargetModel
from draftproof.models.cache import SCRATCH, KVCache
from draftproof.models.lexicon import Lexicon, whole_characters
from draftproof.models.vocab import Overlap
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp

Method = Literal["tli", "slem"]

ENOUGH_SHARED = 0.5
"""Of the smaller vocabulary; with more in common TLI is chosen, which can sample its drafts."""
_STRETCH = 2
"""Drafter tokens per target token that there is room for; a longer text is decoded plainly."""


@dataclass(frozen=True, slots=True)
class ForeignPair:
    """A drafter's model beside the vocabularies of both sides."""

    model: TargetModel
    target: Lexicon
    drafter: Lexicon
    overlap: Overlap
    vocab_size: int
    """The target's V."""
    prefill_chunk: int


def foreign_drafter(
    pair: ForeignPair, method: Method | None
) -> TokenLevelDrafter | StringLevelDrafter:
    """The drafter of one method; None is TLI where enough tokens are shared and SLEM elsewhere.

    VocabularyMismatch where the pair has nothing that the method could work with.
    """
    has_text = pair.target.has_text and pair.drafter.has_text
    if method is None:
        method = "slem" if has_text and pair.overlap.share < ENOUGH_SHARED else "tli"
    if has_text if method == "slem" else pair.overlap.shared:
        return StringLevelDrafter(pair) if method == "slem" else TokenLevelDrafter(pair)
    need = "tokens in common" if method == "tli" else "two tokenizers whose tokens are text"
    raise VocabularyMismatch(
        f"the drafter {pair.model.name} has another vocabulary than the target, and to draft with "
        f"it by {method.upper()} takes {need}; {pair.overlap}. Take a smaller model of the "
        "target's own family, or a drafter without a second tokenizer: 'ngram' or 'self-int8'"
    )


class TokenLevelDrafter:
    """Token-level intersection, TLI: section 4 of the paper."""

    proposals = ModelDrafter.proposals
    stops_in_doubt = True
    takes_static_trees = True

    def __init__(self, pair: ForeignPair) -> None:
        self.name = f"model-tli:{pair.model.name}"
        self._pair = pair
        model = Intersection(pair.model, pair.overlap.shared, pair.vocab_size)
        self._inner = ModelDrafter(model, pair.vocab_size, pair.prefill_chunk)
        self.cache_bytes_per_token = _STRETCH * pair.model.cache_bytes_per_token

    def begin(self, target_cache: KVCache) -> TokenLevelDrafting:
        pair = self._pair
        translation = TokenByToken(
            target_cache.rows, pair.target, pair.drafter, pair.overlap, pair.vocab_size
        )
        return TokenLevelDrafting(self._inner, translation, target_cache)


class StringLevelDrafter:
    """String-level exact match, SLEM: section 3 of the paper."""

    proposals = frozenset({Proposal.POINT})
    stops_in_doubt = True
    branches = False

    def __init__(self, pair: ForeignPair) -> None:
        self.name = f"model-slem:{pair.model.name}"
        self._pair = pair
        self._inner = ModelDrafter(pair.model, pair.model.vocab_size, pair.prefill_chunk)
        self.cache_bytes_per_token = _STRETCH * pair.model.cache_bytes_per_token

    def begin(self, target_cache: KVCache) -> StringLevelDrafting:
        pair = self._pair
        translation = WholeText(target_cache.rows, pair.target, pair.drafter, pair.overlap)
        return StringLevelDrafting(self._inner, translation, target_cache, pair)


class _ForeignDrafting(Drafting):
    """Lets a model draft behind translated contexts."""

    def __init__(self, drafter: ModelDrafter, texts: Translation, target_cache: KVCache) -> None:
        rows, capacity = target_cache.rows, _STRETCH * target_cache.capacity
        cache = KVCache(rows, capacity, target_cache.max_bytes, pool=target_cache.pool)
        self._inner = drafter.begin(cache)
        self._longest = capacity - SCRATCH
        self._translation = texts

    def read(self, context: Context, length: int, most: int) -> int:
        if length < 1:
            return 0
        ids = self._translation.settled(context.row, context.tokens)
        if not 0 < len(ids) <= self._longest:
            return 0
        return self._inner.read(replace(context, tokens=ids), len(ids), most)

    def release(self, row: int) -> None:
        self._translation.release(row)
        self._inner.release(row)

    def move(self, source: int, target: int) -> None:
        self._translation.move(source, target)
        self._inner.move(source, target)

    def _drafts(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        """What the model drafts behind `contexts`; nothing behind one of no or too many ids."""
        within = [
            plan
            if 0 < len(context.tokens) <= self._longest - plan.depth
            else replace(plan, depth=0)
            for context, plan in zip(contexts, plans, strict=True)
        ]
        return self._inner.propose(contexts, within)


class TokenLevelDrafting(_ForeignDrafting):
    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        return self._drafts([self._translated(context) for context in contexts], plans)

    def observe(self, context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:
        self._inner.observe(context, draft, step, logits)

    def _translated(self, context: Context) -> Context:
        """The same position to warp and noise, whatever its length in the drafter's ids."""
        ids = self._translation.of(context.row, context.tokens)
        warp = CommittedWarp(context.warp, context.tokens, len(ids))
        noise = ShiftedNoise(context.noise, len(context.tokens) - len(ids))
        return replace(context, tokens=ids, warp=cast(Warp, warp), noise=noise)


class StringLevelDrafting(_ForeignDrafting):
    def __init__(
        self, drafter: ModelDrafter, texts: Translation, target_cache: KVCache, pair: ForeignPair
    ) -> None:
        super().__init__(drafter, texts, target_cache)
        self._target = pair.target
        self._drafter = pair.drafter
        self._ends = {j: i for i, j in pair.overlap.shared.items() if i == pair.target.end}
        num_tokens = 1 + max([*pair.drafter.texts, *pair.drafter.markers.values()])
        self._warp = Warp(SamplingParams(), prompt_length=0, num_tokens=num_tokens)
        self._proposed: dict[int, tuple[Draft, Sequence[int]]] = {}
        """Per row, what was proposed behind which of the drafter's ids."""

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        translated = [
            replace(c, tokens=self._translation.of(c.row, c.tokens), warp=self._warp)
            for c in contexts
        ]
        # Text is one line: branches could not be told apart once they are cut anew.
        drafts = self._drafts(translated, [replace(plan, width=1) for plan in plans])
        proposed = [
            Draft.chain(
                self._cut_anew(context.tokens, draft.tokens)[: min(plan.depth, plan.nodes)],
                Proposal.POINT,
            )
            for context, draft, plan in zip(contexts, drafts, plans, strict=True)
        ]
        for context, draft in zip(translated, proposed, strict=True):
            self._proposed[context.row] = (draft, context.tokens)
        return proposed

    def observe(self, context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:  # noqa: ARG002
        """Keep what the drafter has computed of the text as it reads now."""
        proposed, before = self._proposed.pop(context.row, (None, ()))
        # Another drafter's draft may have been judged in this round.
        if proposed is draft:
            ids = self._translation.of(context.row, context.tokens)
            if ids[: len(before)] == before:
                self._inner.keep(context.row, ids[len(before) :])

    def _cut_anew(self, committed: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """The target's ids for the text of `drafted`, as they would follow the anchor.

        [] where the target's tokenizer would not have cut the text at the anchor: committed ids
        stay as they are, and it cannot say what follows them.
        """
        size = next(
            (n for n, i in enumerate(drafted) if i not in self._drafter.texts), len(drafted)
        )
        text = self._drafter.read(drafted[:size])
        before = self._target.text_before(committed, len(committed), LOOK_BEHIND)
        whole = whole_characters(before + text)[len(before) :]
        parts = self._target.split(before, whole)
        if parts is None or (before and parts[0][-1:] != [committed[-1]]):
            return []
        ends = [self._ends[i] for i in drafted[size : size + 1] if i in self._ends]
        return parts[1] + ends
