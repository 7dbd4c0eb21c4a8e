"""Arrays by address: lists of arrays need methods that numba compiles anew in every process."""

from __future__ import annotations

from typing import Any

from numba.core import types as numba_types
from numba.np.numpy_support import carray

from draftproof.kernels.team import compiled, intrinsic

types: Any = numba_types


@intrinsic
def pointer(_typing: Any, address: Any, like: Any) -> Any:
    """The number `address` as a pointer to what the array `like` holds."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(address, like), generate


@compiled()
def vector(address: int, size: int, floats: Any) -> Any:
    """f32[size] at `address`, or f32[0] for address 0."""
    return carray(pointer(address, floats), (size if address != 0 else 0,))
