"""A deliberately wrong rule, for one purpose: the audit's test has to reject it."""

from __future__ import annotations

import torch

from draftproof.core import Draft, Proposal, Purpose, Verdict
from draftproof.sampling.noise import Noise


class FullRedraw:
    """Wrong: accept a fixed token x with probability p(x), else draw from all of p.

    A widespread teaching version. x comes out with p(x) + (1 - p(x)) p(x) instead of p(x); right
    would be to draw from p with x removed.
    """

    name = "full-redraw (wrong on purpose)"
    accepts = frozenset({Proposal.POINT})
    greedy = False
    keyed = False

    def verify(self, draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
        for i, x in enumerate(draft.tokens):
            if not noise.accepts(float(p[i, x]), 1.0, position, i):
                y = noise.draw(p[i], position, Purpose.CORRECTION)
                return Verdict(tuple(range(i)), y, all_accepted=False)
        depth = len(draft.tokens)
        bonus = noise.draw(p[depth], position, Purpose.CORRECTION)
        return Verdict(tuple(range(depth)), bonus, all_accepted=True)
