"""Where two outputs of one request part, and whether rounding can be the cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from draftproof.core import Draft, Proposal
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache
from draftproof.models.pack import pack
from draftproof.sampling.matcher import Matcher
from draftproof.sampling.noise import KeyedNoise
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp

# Forward passes of different widths add up in different orders. Logits of deep models then differ
# by about this much; a smaller gap between two candidates can be decided by rounding alone.
TIE_GAP = {torch.float64: 1e-9, torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position at which two outputs differ."""

    position: int
    """Counted from the first generated token."""
    expected: int | None
    """Token of the reference; None where it had ended."""
    found: int | None
    gap: float
    """How far the two tokens are apart in the race that chose between them, in logits."""
    tolerance: float

    @property
    def is_near_tie(self) -> bool:
        """Rounding can decide it."""
        return self.gap <= self.tolerance

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; a gap that is not finite becomes None."""
        return {
            "position": self.position,
            "plain_token": self.expected,
            "token": self.found,
            "gap": self.gap if math.isfinite(self.gap) else None,
            "tolerance": self.tolerance,
            "near_tie": self.is_near_tie,
        }


def first_difference(
    target: TargetModel,
    prompt: Sequence[int],
    expected: Sequence[int],
    found: Sequence[int],
    params: SamplingParams,
    num_tokens: int,
    matcher: Matcher | None = None,
) -> Difference | None:
    """None when the ids are equal; else the first difference with its gap.

    The gap is recomputed by feeding the target the common ids: between the two tokens' logits,
    biases and penalties included, at temperature 0, and between their places in the seeded race
    log(p) - log(E) otherwise. `matcher` is that of the request's grammar.
    """
    if list(expected) == list(found):
        return None
    shorter = min(len(expected), len(found))
    position = next((i for i in range(shorter) if expected[i] != found[i]), shorter)
    a = expected[position] if position < len(expected) else None
    b = found[position] if position < len(found) else None
    ids = [*prompt, *expected[:position]]
    logits = last_logits(target, ids, 1)[0]
    tolerance = TIE_GAP.get(logits.dtype, 0.5)
    if a is None or b is None:
        # One has ended where the other goes on, on equal ids: rounding cannot do that.
        return Difference(position, a, b, float("inf"), tolerance)
    # At temperature 1 the law is the softmax of the very logits that greedy decoding compares.
    warmed = replace(params, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0)
    warp = Warp(
        warmed if params.is_greedy else params,
        prompt_length=len(prompt),
        num_tokens=num_tokens,
        matcher=matcher,
    )
    scores = _race_scores(logits, ids, params, warp)
    return Difference(position, a, b, abs(float(scores[a] - scores[b])), tolerance)


def last_logits(target: TargetModel, ids: Sequence[int], count: int) -> torch.Tensor:
    """The target's logits f[count, V] after each of the last `count` of `ids`, in a fresh cache."""
    cache = KVCache(1, len(ids) + 1)
    start = len(ids) - count
    target.prefill(ids[:start], cache, row=0, chunk=512)
    chain = Draft.chain(ids[start + 1 :], Proposal.POINT)
    batch = pack([ids[start]], [chain], cache.lengths, target.device)
    return target.forward(batch, cache).logits[0]


def _race_scores(
    logits: torch.Tensor, ids: Sequence[int], params: SamplingParams, warp: Warp
) -> torch.Tensor:
    """What argmax was taken of, in logits up to a constant: f64[V]."""
    p = warp.target_law(logits[None], ids, (), ())[0]
    if params.is_greedy:
        return p.double().log()
    noise = KeyedNoise(params.seed).exponentials(len(ids), p)
    return (p.double().log() - noise.log()) * params.temperature
