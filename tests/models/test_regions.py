"""Regions of a pool: never two owners, nothing lost, whatever the order of comings and goings."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from draftproof.models.cache import KVCache
from draftproof.models.regions import Region, Regions
from tests.tiny import assert_row_is_a_prefill, prompt, shared_target

POOL = 60


def test_the_first_gap_that_fits_is_taken_and_gaps_are_closed() -> None:
    regions = Regions(10)
    first, second, third = regions.take(3), regions.take(4), regions.take(2)
    assert (first, second, third) == (Region(0, 3), Region(3, 4), Region(7, 2))
    assert regions.take(2) is None
    regions.give_back(second)
    assert regions.num_free == 5
    assert regions.take(5) is None, "5 tokens are free, in two gaps"
    assert regions.close_gaps() == [(first, first), (third, Region(3, 2))]
    assert regions.take(5) == Region(5, 5)
    assert regions.num_free == 0


@given(st.lists(st.tuples(st.sampled_from("ocmg"), st.integers(0, 3), st.integers(1, 40))))
def test_rows_of_a_pool_keep_their_tokens_through_everything(orders) -> None:
    """Open, close, move and grow, with moves of the store in between; a model of one number."""
    cache, held = KVCache(rows=4, capacity=POOL, pool=True), {}
    for order, row, size in orders:
        if order == "o" and row not in held:
            if cache.open(row, size):
                held[row] = write(cache, row, size)
        elif order == "c" and row in held:
            cache.close(row)
            del held[row]
        elif order == "m" and row in held:
            target = (row + size) % 4
            if target != row:
                held[target] = held.pop(row)
                cache.move(row, target)
        elif order == "g" and row in held and cache.grow(row, cache.size(row) + size):
            assert cache.size(row) == len(held[row]) + size
            held[row] = write(cache, row, cache.size(row), len(held[row]))
        taken = sum(cache.size(row) for row in range(4))
        assert cache.num_free == POOL - taken
        assert {row for row in range(4) if cache.size(row)} == held.keys()
        for row, numbers in held.items():
            assert cache._row(cache._keys, 0, row)[0, :, 0].tolist() == numbers


def write(cache: KVCache, row: int, size: int, done: int = 0) -> list[float]:
    """Fill slots `done` to `size` - 1 of a row; what the row then holds."""
    new = torch.rand(1, 1, size - done, 1, dtype=torch.float64)
    cache.lengths[row] = done
    cache.write(0, new, new, cache.slots(row, 1, size - done))
    cache.keep(row, range(size - done))
    return cache._row(cache._keys, 0, row)[0, :, 0].tolist()


def test_a_model_reads_ragged_rows_of_a_pool() -> None:
    for name in ("llama", "gpt2"):
        target, cache = shared_target(name), KVCache(rows=3, capacity=POOL, pool=True)
        texts = [prompt(9), prompt(14, seed=1), prompt(3, seed=2)]
        for row, text in enumerate(texts):
            assert cache.open(row, len(text) + 3)
            target.prefill(text, cache, row, chunk=4)
        cache.move(2, 0)
        assert cache.open(2, 30), "only when the gap at the front is closed"
        target.prefill(texts[0], cache, 2, chunk=512)
        for row, text in enumerate([texts[2], texts[1], texts[0]]):
            assert_row_is_a_prefill(target, cache, row, text)
