"""Coupled: the target's keyed draw y = argmin E[v] / p[v]; descend if a child is y, else emit y.

E is exponential noise that depends only on seed, sample and position, so y depends on nothing a
drafter did, and plain decoding with the same seed emits the same tokens. A COUPLED draft took
argmin E[v] / q[v] with the same E and agrees with probability
sum_i 1 / sum_j max(p[j] / p[i], q[j] / q[i]); Daliri, Musco, Suresh 2024, arXiv 2408.07978.
"""

from __future__ import annotations

import torch

from draftproof.core import Draft, Proposal, Verdict
from draftproof.sampling.noise import Noise
from draftproof.verification.base import follow


class Coupled:
    name = "coupled"
    accepts = frozenset(Proposal)
    greedy = False
    keyed = True
    trees = True

    def verify(self, draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
        return follow(draft, lambda row, depth: noise.race(p[row], position + depth))
