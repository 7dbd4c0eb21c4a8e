"""Greedy: follow the target's argmax, for temperature 0.

At temperature 0 p is a point mass; the emitted tokens are argmax p after each prefix, whatever
was drafted. Leviathan et al. 2023, arXiv 2211.17192, section 2.2 with a standardised argmax.
"""

from __future__ import annotations

import torch

from draftproof.core import Draft, Proposal, Verdict
from draftproof.sampling.draw import argmax
from draftproof.sampling.noise import Noise
from draftproof.verification.base import follow


class Greedy:
    name = "greedy"
    accepts = frozenset(Proposal)
    greedy = True
    keyed = True
    trees = True

    def verify(
        self,
        draft: Draft,
        p: torch.Tensor,
        position: int,  # noqa: ARG002
        noise: Noise,  # noqa: ARG002
    ) -> Verdict:
        best = argmax(p).tolist()
        return follow(draft, lambda row, _depth: int(best[row]))
