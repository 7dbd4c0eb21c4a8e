"""The compiled product: right, and a row's bits depend on nothing beside it."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from draftproof.kernels.matmul import LANES, TOKENS_PER_TILE, multiply

NOTHING = np.empty(0, np.float32)
MAX_TOKENS = 16
# Output rows beside and off a multiple of 4; K below, beside and off one vector and one line.
SHAPES = [
    (1, 1),
    (3, LANES - 1),
    (4, LANES),
    (7, LANES + 1),
    (64, 64),
    (65, 100),
    (130, 576),
    (33, 1537),
    (9, 8960),
    (700, 896),
]


def make_weight(generator, shape, dtype):
    if dtype == np.int8:
        return generator.integers(-127, 128, shape).astype(np.int8)
    return generator.standard_normal(shape).astype(np.float32)


def product(x, weight, scale=NOTHING, bias=NOTHING, threads=2):
    y = np.full((len(x), len(weight)), np.nan, np.float32)
    multiply(np.ascontiguousarray(x), weight, scale, bias, y, threads)
    return y


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_have_the_same_bits_beside_any_number_of_rows(shape, dtype):
    generator = np.random.default_rng(0)
    weight = make_weight(generator, shape, dtype)
    scale, bias = generator.standard_normal((2, shape[0])).astype(np.float32)
    x = generator.standard_normal((MAX_TOKENS, shape[1])).astype(np.float32)
    alone = np.concatenate([product(row[None], weight, scale, bias) for row in x])
    for num_tokens in range(1, MAX_TOKENS + 1):
        for first in range(MAX_TOKENS - num_tokens + 1):
            together = product(x[first : first + num_tokens], weight, scale, bias)
            np.testing.assert_array_equal(together, alone[first : first + num_tokens])


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize("shape", [(65, 100), (33, 1537), (26, 8960)])
def test_rows_have_the_same_bits_among_many(shape, dtype):
    """More than share weights at a time, and K in parts."""
    generator = np.random.default_rng(4)
    weight = make_weight(generator, shape, dtype)
    x = generator.standard_normal((70, shape[1])).astype(np.float32)
    alone = np.concatenate([product(row[None], weight) for row in x])
    for num_tokens in (17, 18, 19, 37, 64, 70):
        np.testing.assert_array_equal(product(x[:num_tokens], weight), alone[:num_tokens])


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize("shape", SHAPES)
def test_thread_count_changes_no_bit(shape, dtype):
    generator = np.random.default_rng(1)
    weight = make_weight(generator, shape, dtype)
    x = generator.standard_normal((TOKENS_PER_TILE + 1, shape[1])).astype(np.float32)
    rows = [product(x, row[None], threads=1) for row in weight]
    whole = np.concatenate(rows, axis=1)
    for threads in (1, 2, 64):
        np.testing.assert_array_equal(product(x, weight, threads=threads), whole)


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize("num_tokens", [1, 5, 6, 7, 13, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_product_is_near_the_float64_product(shape, num_tokens, dtype):
    generator = np.random.default_rng(2)
    weight = make_weight(generator, shape, dtype)
    scale, bias = generator.standard_normal((2, shape[0])).astype(np.float32)
    x = generator.standard_normal((num_tokens, shape[1])).astype(np.float32)
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    # Rounding grows with the magnitudes summed, not with what is left of them.
    size = np.abs(x).astype(np.float64) @ np.abs(weight.T.astype(np.float64))
    assert (np.abs(product(x, weight) - exact) <= 1e-6 * size + 1e-12).all()
    finished = exact * scale + bias
    bound = 1e-6 * (size * np.abs(scale) + np.abs(bias)) + 1e-12
    assert (np.abs(product(x, weight, scale, bias) - finished) <= bound).all()


WIDE = """
from llvmlite import ir
from draftproof.kernels import vector

vector.LANES, vector.MAX_SUMS = 16, 24
vector.LANES_F32 = ir.VectorType(vector.F32, 16)
"""
PRODUCTS = """
import numpy as np
from draftproof.kernels.matmul import multiply

generator, nothing = np.random.default_rng(5), np.empty(0, np.float32)
weight = generator.standard_normal((27, 1000)).astype(np.float32)
x = generator.standard_normal((25, 1000)).astype(np.float32)
def product(x):
    y = np.empty((len(x), 27), np.float32)
    multiply(x, weight, nothing, nothing, y, 2)
    return y
alone = np.concatenate([product(row[None]) for row in x])
for size in (2, 3, 4, 5, 6, 9, 25):
    np.testing.assert_array_equal(product(x[:size]), alone[:size])
np.testing.assert_allclose(alone, x.astype(float) @ weight.T.astype(float), atol=1e-3)
print("equal")
"""


def test_machines_with_wider_vectors_have_the_same_bits_in_any_company(tmp_path):
    """Their instructions are put together from narrower ones where the machine has none."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", WIDE + PRODUCTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "equal\n", done.stderr


def test_strided_arrays_are_refused():
    """An address would not tell."""
    import numba

    x, y = np.ones((1, 8), np.float32), np.empty((1, 4), np.float32)
    with pytest.raises(numba.core.errors.TypingError):
        multiply(x, np.ones((8, 8), np.float32)[::2], NOTHING, NOTHING, y, 1)


def test_fewer_threads_than_numba_has_are_used_and_its_setting_is_restored():
    import numba

    before = numba.get_num_threads()
    x = np.ones((2, 8), np.float32)
    product(x, np.ones((4, 8), np.float32), threads=1)
    assert numba.get_num_threads() == before


def test_nan_and_infinity_stay_in_their_row():
    generator = np.random.default_rng(3)
    weight = make_weight(generator, (20, 70), np.float32)
    x = generator.standard_normal((5, 70)).astype(np.float32)
    clean = product(x, weight)
    x[1, 3], x[2, 69] = np.nan, np.inf
    y = product(x, weight)
    np.testing.assert_array_equal(y[[0, 3, 4]], clean[[0, 3, 4]])
    assert np.isnan(y[1]).all()
    assert np.isinf(y[2]).all()


def test_kernel_alternates_with_torch_products():
    x, weight = torch.randn(5, 256), torch.randn(256, 256)
    first = product(x.numpy(), weight.numpy())
    for _ in range(50):
        torch.nn.functional.linear(x, weight).softmax(-1)
        np.testing.assert_array_equal(product(x.numpy(), weight.numpy()), first)
