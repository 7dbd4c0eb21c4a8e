"""Draft token by token with a model: the loop that every model-based drafter shares."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from draftproof.core import Context, Draft, Plan, Proposal, Purpose
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache
from draftproof.models.pack import pack
from draftproof.sampling.draw import argmax


def roll_out(
    model: TargetModel,
    cache: KVCache,
    contexts: Sequence[Context],
    plans: Sequence[Plan],
    vocab_size: int,
) -> list[Draft]:
    """One chain per context, drawn as its proposal says.

    `cache` row b holds a prefix of context b's tokens, a few tokens short of them. On return a
    row that drafted holds every context token and every drafted token but the last. `vocab_size`
    is the target's V, to which laws are cut or padded.
    """
    depths = [plan.depth for plan in plans]
    drawn: list[list[int]] = [[] for _ in contexts]
    laws: list[list[torch.Tensor]] = [[] for _ in contexts]
    feeds = [
        list(context.tokens[cache.lengths[b] :]) if depths[b] else []
        for b, context in enumerate(contexts)
    ]
    for step in range(max(depths, default=0)):
        logits = _feed(model, cache, feeds)
        for b, context in enumerate(contexts):
            if not feeds[b]:
                continue
            cache.keep(b, range(len(feeds[b])))
            feeds[b] = []
            q = context.warp.draft_law(_fit(logits[b], vocab_size), [*context.tokens, *drawn[b]])
            if not float(q.max()) > 0:
                continue  # decided by the prefix alone: the drafter knows no possible token
            drawn[b].append(_draw(context, q, len(drawn[b])))
            if context.proposal is Proposal.SAMPLED:
                laws[b].append(q)
            if step + 1 < depths[b]:
                feeds[b] = drawn[b][-1:]
    return [
        Draft.chain(tokens, context.proposal, torch.stack(law) if law else None)
        for context, tokens, law in zip(contexts, drawn, laws, strict=True)
    ]


def _feed(model: TargetModel, cache: KVCache, feeds: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logits f[B, V] after the last token of each ragged feed; commits nothing.

    A row with nothing to feed gets scratch behind its end: id 0 at position 0, which every model
    can embed, however long the row is and whatever its tokens are.
    """
    fed = [feed or [0] for feed in feeds]
    positions = [cache.lengths[b] if feed else 0 for b, feed in enumerate(feeds)]
    chains = [Draft.chain(feed[1:], Proposal.POINT) for feed in fed]
    batch = pack([feed[0] for feed in fed], chains, positions, model.device)
    return model.forward(batch, cache, [len(feed) - 1 for feed in fed]).logits[:, 0]


def _draw(context: Context, q: torch.Tensor, drawn: int) -> int:
    """The next token by q f[V], `drawn` tokens behind the anchor's successor."""
    start = len(context.tokens)
    if context.proposal is Proposal.POINT:
        return int(argmax(q[None])[0])
    if context.proposal is Proposal.COUPLED:
        return context.noise.race(q, start + drawn)
    return context.noise.draw(q, start, Purpose.DRAFT, drawn)


def _fit(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Logits f[V] of the target's width; ids only one of the two pads with are impossible."""
    missing = vocab_size - logits.shape[-1]
    return pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[:vocab_size]
