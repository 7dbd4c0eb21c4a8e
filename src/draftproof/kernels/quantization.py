"""Writes a weight matrix as int8 numbers with one scale per output row, and reads it back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Quantized(NamedTuple):
    """A weight matrix in int8; row o stands for weight[o] * scale[o]."""

    weight: Tensor
    """i8[O, K], between -127 and 127."""
    scale: Tensor
    """f32[O]"""


def quantize(weight: Tensor) -> Quantized:
    """Round each row of weight, float[O, K], to multiples of its largest magnitude / 127."""
    assert weight.dim() == 2, f"weight has shape {tuple(weight.shape)}; expected [O, K]"
    exact = weight.detach().float()
    scale = exact.abs().amax(dim=1) / 127 if exact.shape[1] else exact.new_zeros(len(exact))
    # A row of zeros has no scale to divide by; any other leaves it zeros.
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    rounded = (exact / divisor[:, None]).round().clamp(-127, 127)
    return Quantized(rounded.to(torch.int8), scale)


def dequantize(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix that weight, i8[O, K], and scale, f32[O], stand for: dtype[O, K]."""
    return (weight.float() * scale[:, None]).to(dtype)
