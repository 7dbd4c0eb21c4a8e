"""One tile of a product of token rows with a weight matrix, written out in vector instructions.

A tile is `ROWS_PER_TILE` output rows by up to `TOKENS_PER_TILE` tokens, or one by one. Its sums
stay in registers, as many at a time as fit; the vectoriser would make their order depend on that.
The order of one sum, for lane l of LANES, whatever the tile is and however K is parted:

    lane[l] = x[l]*w[l], then + x[l+LANES]*w[l+LANES], ...     (fused, one step per LANES numbers)
    sum     = halves of the lanes added until one is left, then the last K mod LANES products
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from draftproof.kernels.team import LINE_BYTES, cgutils, intrinsic, prefetch_line
from draftproof.kernels.vector import I64, LANES, LANES_F32, MAX_SUMS, fold, load, multiply_add

ROWS_PER_TILE = 4
TOKENS_PER_TILE = 6
# How far ahead weights are asked for at least: what memory delivers while it takes to answer.
_AHEAD_BYTES = 4096


class _Tile(NamedTuple):
    """The operands of one tile while its code is written: LLVM values."""

    num_rows: int
    num_tokens: int
    row: Any
    """Pointer to the first row of weights; the others follow, `length` numbers each."""
    token: Any
    """Pointer to the first row of x, likewise."""
    results: list[Any]
    """Pointers to the first result of each token; those of the other rows follow it."""
    length: Any
    """K"""
    start: Any
    stop: Any
    """The part of K that is added now."""
    kept: Any
    """Pointer to where the sums are left between the parts."""
    weight_bytes: int


def _accumulate(
    builder: Any, tile: _Tile, sums: list[Any], span: tuple[Any, Any], step: tuple[int, int]
) -> None:
    """Add the products over `span` of K to `sums`, in `step` = (vectors a turn, lanes)."""
    vectors, lanes = step
    turn = I64(vectors * lanes)
    row_offsets = [builder.mul(tile.length, I64(r)) for r in range(tile.num_rows)]
    token_offsets = [builder.mul(tile.length, I64(t)) for t in range(tile.num_tokens)]
    ahead = builder.mul(tile.length, I64(ROWS_PER_TILE))
    least = I64(_AHEAD_BYTES // tile.weight_bytes)
    ahead = builder.select(builder.icmp_signed("<", ahead, least), least, ahead)
    # Two pointers that move and few distances: a pointer for each row would not fit the registers.
    row_place, token_place = (
        cgutils.alloca_once_value(builder, builder.gep(pointer, [span[0]]))
        for pointer in (tile.row, tile.token)
    )
    with cgutils.for_range_slice(builder, *span, turn, I64, inc=True):
        row, token = builder.load(row_place), builder.load(token_place)
        if vectors * lanes * tile.weight_bytes == LINE_BYTES:
            next_tile = builder.gep(row, [ahead])
            for offset in row_offsets:
                prefetch_line(builder, builder.gep(next_tile, [offset]))
        for vector in range(vectors):
            shift = I64(vector * lanes)
            numbers, factors = (
                [builder.gep(builder.gep(first, [offset]), [shift]) for offset in offsets]
                for first, offsets in ((token, token_offsets), (row, row_offsets))
            )
            # The fewer ones stay in registers, the others come one by one.
            held, passing = sorted((numbers, factors), key=len)
            values = [load(builder, pointer, lanes) for pointer in held]
            for j, pointer in enumerate(passing):
                value = load(builder, pointer, lanes)
                for i, other in enumerate(values):
                    r, t = (j, i) if passing is factors else (i, j)
                    place = sums[r * tile.num_tokens + t]
                    builder.store(multiply_add(builder, value, other, builder.load(place)), place)
        builder.store(builder.gep(row, [turn]), row_place)
        builder.store(builder.gep(token, [turn]), token_place)


def _multiply_tile(builder: Any, tile: _Tile) -> None:
    """Emit the inner products of every row with every token, over one part of K."""
    # A turn of the loop is a cache line of each row, then one vector, then one number.
    vectors = max(1, LINE_BYTES // (LANES * tile.weight_bytes))
    size = builder.sub(tile.stop, tile.start)
    lines = builder.add(tile.start, builder.and_(size, I64(-LANES * vectors)))
    whole = builder.add(tile.start, builder.and_(size, I64(-LANES)))
    # Stack places of the entry block: LLVM turns them into registers.
    count = tile.num_rows * tile.num_tokens
    sums = [cgutils.alloca_once(builder, LANES_F32) for _ in range(count)]
    kept = builder.bitcast(tile.kept, LANES_F32.as_pointer())
    kept_places = [builder.gep(kept, [I64(i)]) for i in range(count)]
    is_first = builder.icmp_signed("==", tile.start, I64(0))
    with builder.if_else(is_first) as (then, otherwise):
        with then:
            for place in sums:
                builder.store(ir.Constant(LANES_F32, [0.0] * LANES), place)
        with otherwise:
            for place, before in zip(sums, kept_places, strict=True):
                builder.store(builder.load(before, align=4), place)
    _accumulate(builder, tile, sums, (tile.start, lines), (vectors, LANES))
    _accumulate(builder, tile, sums, (lines, whole), (1, LANES))
    is_last = builder.icmp_signed("==", tile.stop, tile.length)
    with builder.if_else(is_last) as (then, otherwise):
        with then:
            _finish(builder, tile, sums, whole)
        with otherwise:
            for place, after in zip(sums, kept_places, strict=True):
                builder.store(builder.load(place), after, align=4)


def _finish(builder: Any, tile: _Tile, sums: list[Any], whole: Any) -> None:
    """Emit the results: the lanes folded, then what is left of K behind `whole`."""
    num_rows, num_tokens = tile.num_rows, tile.num_tokens
    for t, result in enumerate(tile.results):
        row = 0
        while row < num_rows:
            taken = 1 << min(2, (num_rows - row).bit_length() - 1)
            folded = fold(
                builder,
                [builder.load(sums[r * num_tokens + t]) for r in range(row, row + taken)],
            )
            place = builder.bitcast(builder.gep(result, [I64(row)]), folded.type.as_pointer())
            builder.store(folded, place, align=4)
            row += taken
    rest = [builder.gep(result, [I64(r)]) for r in range(num_rows) for result in tile.results]
    _accumulate(builder, tile, rest, (whole, tile.length), (1, 1))


def _emit_tiles(context: Any, builder: Any, signature: Any, values: Any, num_rows: int) -> Any:
    """Emit a body for each number of tokens that a tile may have."""
    y, x, w, kept = (
        context.make_array(kind)(context, builder, value)
        for kind, value in zip(signature.args[2:6], values[2:6], strict=True)
    )
    num, (first_token, first_row, start, stop, place) = values[1], values[6:]
    length = cgutils.unpack_tuple(builder, x.shape)[1]
    stride = cgutils.unpack_tuple(builder, y.shape)[1]

    def line(array: Any, number: Any, width: Any) -> Any:
        return builder.gep(array.data, [builder.mul(number, width)])

    def tile(offset: int, rows: int, tokens: int) -> _Tile:
        """`rows` rows from `offset` on."""
        row = builder.add(first_row, I64(offset))
        numbers = [builder.add(first_token, I64(t)) for t in range(tokens)]
        return _Tile(
            rows,
            tokens,
            row=line(w, row, length),
            token=line(x, first_token, length),
            results=[builder.gep(line(y, number, stride), [row]) for number in numbers],
            length=length,
            start=start,
            stop=stop,
            kept=builder.gep(kept.data, [builder.add(place, I64(offset * tokens * LANES))]),
            weight_bytes=signature.args[4].dtype.bitwidth // 8,
        )

    def body(tokens: int) -> None:
        rows = num_rows if num_rows * tokens <= MAX_SUMS else num_rows // 2
        for offset in range(0, num_rows, rows):
            _multiply_tile(builder, tile(offset, rows, tokens))

    _switch(builder, num, TOKENS_PER_TILE if num_rows > 1 else 1, body)
    return context.get_dummy_value()


def _switch(builder: Any, number: Any, most: int, body: Callable[[int], None]) -> None:
    """Emit `body` for each number from 1 to `most`, of which `number` chooses one."""
    end = builder.append_basic_block("tiles.end")
    switch = builder.switch(number, end)
    for case in range(1, most + 1):
        block = builder.append_basic_block(f"tile.{case}")
        switch.add_case(I64(case), block)
        builder.position_at_end(block)
        body(case)
        builder.branch(end)
    builder.position_at_end(end)


@intrinsic
def multiply_tile(
    _typing: Any,
    rows: Any,
    _num: Any,
    y: Any,
    x: Any,
    w: Any,
    kept: Any,
    _token: Any,
    _row: Any,
    _start: Any,
    _stop: Any,
    _place: Any,
) -> Any:
    """y[token + t, row + r] = x[token + t] . w[row + r] for t below `num` and r below `rows`.

    y f32[T, O], x f32[T, K], w f32[O, K] or i8[O, K], C-contiguous; `rows` is a literal, and `num`
    at most 1 where that is 1. Only the part of K from `start` to `stop` is added: until the last
    part, sums stay in `kept`, f32, from `place` on. Parts begin at 0 and are multiples of 64
    numbers, but for the last one.
    """
    if any(array.layout != "C" for array in (y, x, w, kept)):
        return None
    num_rows = rows.literal_value

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _emit_tiles(context, builder, signature, values, num_rows)

    return types.void(rows, types.intp, y, x, w, kept, *[types.intp] * 5), generate
