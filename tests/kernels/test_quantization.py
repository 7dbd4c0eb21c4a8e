"""int8 weights: how far from the weights they stand for."""

import pytest
import torch

from draftproof.kernels import dequantize, quantize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_each_weight_is_within_half_a_step(dtype):
    weight = torch.randn(30, 50).to(dtype)
    copy = quantize(weight)
    assert copy.weight.dtype == torch.int8
    assert copy.scale.dtype == torch.float32
    error = (dequantize(copy.weight, copy.scale, torch.float64) - weight.double()).abs()
    assert (error <= 0.5001 * copy.scale[:, None].double()).all()


def test_largest_magnitude_of_a_row_becomes_127_and_the_least_is_not_minus_128():
    copy = quantize(torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]]))
    assert copy.weight.tolist() == [[64, -127, 32], [127, 0, -42]]


def test_row_of_zeros_stays_zeros():
    copy = quantize(torch.zeros(2, 3))
    assert torch.equal(dequantize(copy.weight, copy.scale, torch.float32), torch.zeros(2, 3))


def test_matrix_of_no_columns_or_rows_is_quantised():
    assert quantize(torch.zeros(2, 0)).weight.shape == (2, 0)
    assert quantize(torch.zeros(0, 2)).scale.shape == (0,)


def test_weight_is_left_alone():
    weight = torch.nn.Parameter(torch.randn(4, 4))
    before = weight.detach().clone()
    assert not quantize(weight).scale.requires_grad
    assert torch.equal(weight.detach(), before)
