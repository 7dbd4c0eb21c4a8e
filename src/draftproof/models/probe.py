"""Asks a model, by running it on a few tokens, whether rejected drafts leave a trace.

A configuration can claim anything. What counts is that verifying a token tree behind other rows'
tokens, after a wrong draft was dropped, gives the logits of one pass over the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from draftproof.core import Draft, Proposal
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache
from draftproof.models.pack import pack

OnePass = Callable[[Sequence[int]], torch.Tensor]
"""ids -> logits f[n, V] by the model's own masks and positions, without any cache."""

_MOST_TOKENS = 8
# Half-precision kernels round by rows and width; recurrent state or a wrong mask moves logits by
# about their own spread.
_TOLERANCE = {8: 1e-6, 4: 0.05, 2: 0.5}


def find_fault(model: TargetModel, one_pass: OnePass, cache: KVCache) -> str | None:
    """What makes `model` unfit to verify drafts, or None; `cache` has two rows and is filled."""
    length = min(_MOST_TOKENS, cache.capacity, model.max_positions or _MOST_TOKENS)
    ids = [(5 * i + 3) % model.vocab_size for i in range(length)]
    alone = one_pass(ids)
    if not bool(alone.isfinite().all()):
        return "gives logits that are not finite numbers"
    if not _agree(one_pass(ids[:-1] or ids), alone[: length - 1 or 1]):
        if not _agree(one_pass(ids), alone):
            return "gives other logits when it is run again, so it keeps state between calls"
        return "attends to later tokens, so what it said before would change"
    start = max(0, length // 2 - 1)
    for row, logits in enumerate(_after_rejection(model, ids, start, cache)):
        if not _agree(logits, alone[max(0, start - 2 * row) :]):
            return (
                "gives other logits after a rejected draft than without it: it keeps state beyond "
                "keys and values, or does not follow the positions and mask it is given"
            )
    return None


def _after_rejection(
    model: TargetModel, ids: Sequence[int], start: int, cache: KVCache
) -> list[torch.Tensor]:
    """Logits of two rows that know ids[:start] and ids[:start-2], drafted wrongly once, then right.

    The first row's right draft has a wrong sibling in front, so slots and positions differ.
    """
    starts = [start, max(0, start - 2)]
    for row, known in enumerate(starts):
        model.prefill(ids[:known], cache, row, chunk=2)
    anchors = [ids[known] for known in starts]
    right = [ids[known + 1 :] for known in starts]
    wrong = [[(token + 1) % model.vocab_size for token in draft] for draft in right]
    chains = [Draft.chain(draft, Proposal.POINT) for draft in wrong]
    model.forward(pack(anchors, chains, starts, model.device), cache)
    tree = Draft.chain(right[0], Proposal.POINT)
    if right[0]:
        parents = (-1, -1, *range(1, len(right[0])))
        tree = Draft((wrong[0][0], *right[0]), parents, None, Proposal.POINT)
    drafts = [tree, Draft.chain(right[1], Proposal.POINT)]
    logits = model.forward(pack(anchors, drafts, starts, model.device), cache).logits
    columns = [0, *range(len(tree.tokens) - len(right[0]) + 1, len(tree.tokens) + 1)]
    return [logits[0, columns], logits[1, : 1 + len(right[1])]]


def _agree(logits: torch.Tensor, expected: torch.Tensor) -> bool:
    spread = expected.double().std(correction=0).clamp(min=1e-3)
    difference = (logits.double() - expected.double()).abs().max()
    return bool(difference <= _TOLERANCE[expected.dtype.itemsize] * spread)
