"""Tokenwise: accept x with probability min(1, p(x) / q(x)), else draw from N((p - q)+).

N normalises. Each emitted token has law q min(1, p/q) + (1 - sum min(p, q)) N((p - q)+) = p.
Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318.
"""

from __future__ import annotations

import torch

from draftproof.core import Draft, Proposal, Purpose, Verdict
from draftproof.sampling.draw import residual
from draftproof.sampling.noise import Noise
from draftproof.verification.base import drafted_law


class Tokenwise:
    name = "tokenwise"
    accepts = frozenset({Proposal.POINT, Proposal.SAMPLED})
    greedy = False
    keyed = False
    trees = False

    def verify(self, draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
        assert draft.is_chain, "tokenwise judges chains; trees need a tree rule"
        for i, x in enumerate(draft.tokens):
            q = drafted_law(draft, i, p)
            if noise.accepts(float(p[i, x]), float(q[x]), position, i):
                continue
            left = residual(p[i], q)
            # Only rounding can reject where p equals q; nothing is left then, and p is right.
            weights = left if bool(left.sum() > 0) else p[i]
            y = noise.draw(weights, position, Purpose.CORRECTION)
            return Verdict(tuple(range(i)), y, all_accepted=False)
        depth = len(draft.tokens)
        bonus = noise.draw(p[depth], position, Purpose.CORRECTION)
        return Verdict(tuple(range(depth)), bonus, all_accepted=True)
