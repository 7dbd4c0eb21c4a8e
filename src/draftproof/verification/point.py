"""The one-draw point rule: draw y ~ p, descend if a child is y, else emit y.

For tokens fixed without chance. Equal in law to accepting a sibling x with probability p(x) and
removing it from p after a rejection, with one draw a node; accepts with probability p(children),
and no lossless rule accepts more.
"""

from __future__ import annotations

import torch

from draftproof.core import Draft, Proposal, Purpose, Verdict
from draftproof.sampling.noise import Noise
from draftproof.verification.base import follow


class Point:
    name = "point"
    accepts = frozenset({Proposal.POINT})
    greedy = False
    keyed = False
    trees = True

    def verify(self, draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
        return follow(
            draft, lambda row, depth: noise.draw(p[row], position + depth, Purpose.TARGET)
        )
