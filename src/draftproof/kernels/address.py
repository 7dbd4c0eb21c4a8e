"""Arrays by address: lists of arrays need methods that numba compiles anew in every process."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numba.core import types as numba_types
from numba.np.numpy_support import carray

from draftproof.kernels.team import inner, intrinsic

types: Any = numba_types


FLOATS = (np.dtype(np.float32),)
INTEGERS = (np.dtype(np.int64),)


def address_of(array: Any, kinds: Collection[Any]) -> int:
    """Where the numbers of a NumPy array lie; 0 for none of them.

    Raises ValueError unless they are of one of these dtypes and C-contiguous, since compiled code
    that has an address alone could not tell.
    """
    if array.dtype not in kinds or not array.flags.c_contiguous:
        expected = " or ".join(str(kind) for kind in kinds)
        given = f"an array of {array.dtype} with strides {array.strides}"
        raise ValueError(f"{given}; expected {expected}, C-contiguous")
    address: int = array.__array_interface__["data"][0]
    return address if array.size else 0


@intrinsic
def pointer(_typing: Any, address: Any, like: Any) -> Any:
    """The number `address` as a pointer to what the array `like` holds."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(address, like), generate


@intrinsic
def locate(_typing: Any, array: Any) -> Any:
    """`address_of` in compiled code: arrays that are not C-contiguous, or neither float32 nor int8,
    do not get past the compiler."""
    if array.layout != "C" or array.dtype not in (types.float32, types.int8):
        return None

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, values[0])
        address = builder.ptrtoint(made.data, made.nitems.type)
        none = builder.icmp_signed("==", made.nitems, made.nitems.type(0))
        return builder.select(none, address.type(0), address)

    return types.intp(array), generate


@inner()
def vector(address: int, size: int, floats: Any) -> Any:
    """f32[size] at `address`, or f32[0] for address 0."""
    return carray(pointer(address, floats), (size if address != 0 else 0,))
