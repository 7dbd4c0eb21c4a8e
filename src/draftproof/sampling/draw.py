"""Small pieces of probability that rules and drafters share."""

from __future__ import annotations

import torch


def residual(p: torch.Tensor, q: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """(scale * p - q)+ as unnormalised weights f[V]: what q leaves of p (Leviathan et al. 2023)."""
    return (scale * p - q).clamp_(min=0)


def point_mass(token: int, like: torch.Tensor) -> torch.Tensor:
    """The law of a token that was not drawn but fixed: f[V], 1 at `token`."""
    law = torch.zeros_like(like)
    law[token] = 1.0
    return law
