"""Deliberately wrong rules and drafts that bring them out; the audit's test has to reject them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from draftproof.core import Context, Draft, Plan, Proposal, Purpose, Verdict
from draftproof.drafters.base import Drafting
from draftproof.drafters.shared import SharedCacheDrafting
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache
from draftproof.sampling.noise import Noise
from draftproof.sampling.warp import Warp
from draftproof.verification.base import Verifier

CONTROL_DEPTH = 3
"""Most tokens are then accepted or corrected, and few are bonuses, which wrong rules get right."""
CONTROL_SHARPNESS = 4.0
"""The target's temperature over the control drafter's."""


class FullRedraw:
    """Wrong: accept a fixed token x with probability p(x), else draw from all of p.

    A widespread teaching version. x comes out with p(x) + (1 - p(x)) p(x) instead of p(x); right
    would be to draw from p with x removed.
    """

    name = "full-redraw (wrong on purpose)"
    accepts = frozenset({Proposal.POINT})
    greedy = False
    keyed = False
    trees = False

    def verify(self, draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
        for i, x in enumerate(draft.tokens):
            if not noise.accepts(float(p[i, x]), 1.0, position, i):
                y = noise.draw(p[i], position, Purpose.CORRECTION)
                return Verdict(tuple(range(i)), y, all_accepted=False)
        return _bonus(draft, p, position, noise)


class ScalarResidual:
    """Wrong: after a rejection of x, draw from (p - q(x))+, the one number q(x) for every token.

    The other widespread teaching version. Right is the vector: (p(v) - q(v))+ for every v.
    """

    name = "scalar-residual (wrong on purpose)"
    accepts = frozenset({Proposal.SAMPLED})
    greedy = False
    keyed = False
    trees = False

    def verify(self, draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
        for i, x in enumerate(draft.tokens):
            assert draft.q is not None
            q = float(draft.q[i, x])
            if not noise.accepts(float(p[i, x]), q, position, i):
                left = (p[i] - q).clamp_(min=0)
                weights = left if bool(left.sum() > 0) else p[i]
                y = noise.draw(weights, position, Purpose.CORRECTION)
                return Verdict(tuple(range(i)), y, all_accepted=False)
        return _bonus(draft, p, position, noise)


WRONG_RULES: tuple[Verifier, ...] = (FullRedraw(), ScalarResidual())


class ControlDrafter:
    """The target as its own drafter, at another temperature than it is judged by.

    At a fraction of it, its likeliest token is still the target's and its law far enough away for
    many rejections, so a wrong rule shows whatever the user's own drafter can do.
    """

    name = "control"
    proposals = frozenset({Proposal.POINT, Proposal.SAMPLED})

    def __init__(self, target: TargetModel, warp: Warp) -> None:
        self._target = target
        self._warp = warp

    def begin(self, target_cache: KVCache) -> _ControlDrafting:
        return _ControlDrafting(SharedCacheDrafting(self._target, target_cache), self._warp)


class _ControlDrafting(Drafting):
    def __init__(self, drafting: Drafting, warp: Warp) -> None:
        self._drafting = drafting
        self._warp = warp

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        changed = [replace(context, warp=self._warp) for context in contexts]
        return self._drafting.propose(changed, plans)

    def move(self, source: int, target: int) -> None:
        self._drafting.move(source, target)


def _bonus(draft: Draft, p: torch.Tensor, position: int, noise: Noise) -> Verdict:
    depth = len(draft.tokens)
    bonus = noise.draw(p[depth], position, Purpose.CORRECTION)
    return Verdict(tuple(range(depth)), bonus, all_accepted=True)
