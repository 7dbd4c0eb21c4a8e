"""Vector instructions that the kernels are written in; what the vectoriser would make of loops
depends on how much of them fits the registers, and so would the order of their sums."""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]

from draftproof.kernels.team import cgutils

_WIDE = bool(binding.get_host_cpu_features().get("avx512f", False))
LANES = 16 if _WIDE else 8
# Sums kept in registers at once: 24 of AVX-512's 32, 12 of AVX2's 16; the rest hold operands.
MAX_SUMS = 24 if _WIDE else 12

F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
LANES_F32 = ir.VectorType(F32, LANES)


def load(builder: Any, pointer: Any, lanes: int) -> Any:
    """Read `lanes` numbers (one: a scalar) and make them float32."""

    def kind(element: Any) -> Any:
        return ir.VectorType(element, lanes) if lanes > 1 else element

    element = pointer.type.pointee
    place = builder.bitcast(pointer, kind(element).as_pointer())
    # Rows of any K start anywhere: promise LLVM the alignment of one number only.
    value = builder.load(place, align=4 if element == F32 else 1)
    if element == F32:
        return value
    return builder.sitofp(builder.sext(value, kind(I32)), kind(F32))


def spread(builder: Any, value: Any) -> Any:
    """The float32 `value` in every lane."""
    nothing = ir.Constant(LANES_F32, ir.Undefined)
    first = builder.insert_element(nothing, value, I32(0))
    return builder.shuffle_vector(
        first, nothing, ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    )


def multiply_add(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """a * b + total, fused where the machine can."""
    name = "llvm.fmuladd.f32" if a.type == F32 else f"llvm.fmuladd.v{LANES}f32"
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, total])


def fold(builder: Any, sums: list[Any]) -> Any:
    """Add the lanes of one, two or four vectors: a vector of one number for each, in order.

    Upper halves are added to lower ones until one number is left. Vectors are put together on the
    way, so that four cost little more than one; each is added in the same order either way.
    """
    vectors, held, width = sums, 1, LANES
    while width > 1:
        paired = len(vectors) > 1
        starts = [which * width for which in range(held)]
        if paired:
            starts += [LANES + start for start in starts]
        halves = [
            ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
            for offset in (0, width // 2)
            for lanes in [[start + offset + i for start in starts for i in range(width // 2)]]
        ]
        vectors = [
            builder.fadd(*(builder.shuffle_vector(first, second, half) for half in halves))
            for first, second in zip(
                vectors[:: 1 + paired], vectors[paired :: 1 + paired], strict=True
            )
        ]
        held, width = held * (1 + paired), width // 2
    return vectors[0]
