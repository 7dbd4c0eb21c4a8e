"""Linear layers for inference that are cheap for few rows; they know no models and no drafts.

Up to `MAX_ROWS` float32 rows on a CPU go through the compiled product of `matmul`, where a row's
result has the same bits whatever rows stand beside it. Everything else is torch's own product.
numba is imported when the first such row arrives; without it, torch does all the work. Calls keep
the interpreter's lock, since not every threading layer of numba bears two callers at once.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftproof.kernels.quantization import dequantize, quantize

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ROWS = 16
# An int8 matrix is read back in blocks of this many weights, so a copy never stands in full.
_WEIGHTS_PER_BLOCK = 1 << 22


_Product: TypeAlias = "Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]"


def is_available() -> bool:
    """Whether the compiled product can be used here; the first call imports numba."""
    return _compiled_product() is not None


@cache
def _compiled_product() -> _Product | None:
    """The product of `matmul` on tensors, or None where numba is missing.

    numba refuses NumPy releases newer than itself with an ImportError too, so it is tried.
    """
    threads = torch.get_num_threads()
    try:
        import numba

        from draftproof.kernels.matmul import multiply
    except ImportError:
        return None
    # This starts numba's threads, which sets the number of torch's, in the same OpenMP pool, too.
    numba.get_num_threads()
    torch.set_num_threads(threads)
    nothing = np.empty(0, np.float32)

    def product(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
        shape = x.shape
        y = torch.empty(x.numel() // shape[-1], weight.shape[0], dtype=torch.float32, device="cpu")
        multiply(
            (x.detach() if x.requires_grad else x).contiguous().numpy().reshape(-1, shape[-1]),
            weight.numpy(),
            nothing if scale is None else scale.numpy(),
            nothing if bias is None else bias.numpy(),
            y.numpy(),
            torch.get_num_threads(),
        )
        return y.view(*shape[:-1], -1)

    return product


def _product_for(x: Tensor, weight: Tensor, bias: Tensor | None) -> _Product | None:
    """The compiled product if x, f[..., K], is few float32 rows on the CPU, outside autograd."""
    columns = weight.shape[1]
    if (
        x.dtype is torch.float32
        and 0 < x.numel() <= MAX_ROWS * columns
        and x.shape[-1] == columns
        and x.device.type == "cpu"
        and weight.device.type == "cpu"
        and weight.is_contiguous()
        and (bias is None or (bias.dtype is torch.float32 and bias.is_contiguous()))
        and not (x.requires_grad and torch.is_grad_enabled())
    ):
        return _compiled_product()
    return None


class FewRowLinear(nn.Module):
    """`nn.Linear` over somebody's weights, which it shares and never changes.

    The weights are buffers and views: moving or converting this layer leaves the owner's alone,
    and no gradient reaches them.
    """

    weight: Tensor
    bias: Tensor | None
    torch_rows: frozenset[int]
    """Numbers of rows that are left to torch (`choice.py`); none by default."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: f[O, K]; bias: f[O]."""
        super().__init__()
        assert weight.dim() == 2, f"weight has shape {tuple(weight.shape)}; expected [O, K]"
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight.detach())
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.torch_rows: frozenset[int] = frozenset()

    def forward(self, x: Tensor) -> Tensor:
        """x: f[..., K] → f[..., O]"""
        if x.numel() // max(1, self.in_features) in self.torch_rows:
            return F.linear(x, self.weight, self.bias)
        return self.by_kernel(x)

    def by_kernel(self, x: Tensor) -> Tensor:
        """The same, whatever was chosen for this number of rows; by torch where it has to be."""
        weight, bias = self.weight, self.bias
        product = _product_for(x, weight, bias) if weight.dtype is torch.float32 else None
        return F.linear(x, weight, bias) if product is None else product(x, weight, None, bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class Int8Linear(nn.Module):
    """`nn.Linear` over an int8 copy of somebody's weights, one float32 scale per output row."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: f[O, K]; bias: f[O]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        copy = quantize(weight)
        self.register_buffer("weight", copy.weight)
        self.register_buffer("scale", copy.scale)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """x: f[..., K] → f[..., O]"""
        weight, scale, bias = self.weight, self.scale, self.bias
        product = _product_for(x, weight, bias) if scale.dtype is torch.float32 else None
        return self._blockwise(x) if product is None else product(x, weight, scale, bias)

    def _blockwise(self, x: Tensor) -> Tensor:
        """The same product by torch, reading back a block of output rows at a time."""
        rows = max(1, _WEIGHTS_PER_BLOCK // max(1, self.in_features))
        parts = [
            F.linear(x, dequantize(weight, scale, x.dtype))
            for weight, scale in zip(
                torch.split(self.weight, rows), torch.split(self.scale, rows), strict=True
            )
        ]
        y = torch.cat(parts, dim=-1)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"
