"""Blockwise: judge the whole chain at once; never accepts less than tokenwise.

With b[0] = 1 and b[i] = min(1, b[i-1] p(x_i) / q(x_i)), the joint ratio capped along the way:

    R[i](v) = (b[i] p[i](v) - q[i](v))+     m[i] = sum R[i]
    h[i] = m[i] / (m[i] + 1 - b[i]) for i < g,   h[g] = b[g],   h[0] = 1
    tau = the largest i whose own coin, of probability h[i], shows heads
    next ~ p[g] if tau = g, else N(R[tau])

P(tau >= i | draft) = b[i], at least the product of min(1, p/q) that tokenwise reaches.
Sun et al. 2024, arXiv 2403.10444.
"""

from __future__ import annotations

import torch

from draftproof.core import Draft, Proposal, Purpose, Verdict
from draftproof.sampling.draw import residual
from draftproof.sampling.noise import Noise
from draftproof.verification.base import drafted_law


class Blockwise:
    name = "blockwise"
    accepts = frozenset({Proposal.POINT, Proposal.SAMPLED})
    greedy = False
    keyed = False
    trees = False

    def verify(self, draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
        assert draft.is_chain, "blockwise judges chains; trees need a tree rule"
        depth = len(draft.tokens)
        b = capped_ratios(draft, p)
        if depth and noise.accepts(b[depth], 1.0, position, depth):
            tau = depth
        else:
            # From the far end, so that the first head found is the largest.
            tau = depth - 1
            while tau > 0 and not _stops(draft, p, b[tau], tau, position, noise):
                tau -= 1
        if tau == depth or depth == 0:
            bonus = noise.draw(p[depth], position, Purpose.CORRECTION)
            return Verdict(tuple(range(depth)), bonus, all_accepted=True)
        left = residual(p[tau], drafted_law(draft, tau, p), b[tau])
        weights = left if bool(left.sum() > 0) else p[tau]
        y = noise.draw(weights, position, Purpose.CORRECTION)
        return Verdict(tuple(range(tau)), y, all_accepted=False)


def capped_ratios(draft: Draft, p: torch.Tensor) -> list[float]:
    """b[0..g], each in [0, 1]."""
    b = [1.0]
    for i, x in enumerate(draft.tokens):
        q = float(drafted_law(draft, i, p)[x])
        b.append(min(1.0, b[-1] * float(p[i, x]) / q) if q > 0 else 0.0)
    return b


def _stops(draft: Draft, p: torch.Tensor, b: float, i: int, position: int, noise: Noise) -> bool:
    """The coin of position i; where p equals q and b is 1 a later coin shows heads anyway."""
    m = float(residual(p[i], drafted_law(draft, i, p), b).sum(dtype=torch.float64))
    return m > 0 and noise.accepts(m, m + 1.0 - b, position, i)
