"""The layers: drop-in for nn.Linear, never touching its owner's weights."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from draftproof.kernels import MAX_ROWS, FewRowLinear, Int8Linear, dequantize, is_available, modules

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
LAYERS = [FewRowLinear, Int8Linear]


@pytest.fixture(autouse=True)
def _fixed_draws():
    torch.manual_seed(0)


@pytest.fixture(params=["numba", "torch only"])
def _either_way(request, monkeypatch):
    if request.param == "torch only":
        monkeypatch.setattr(modules, "_compiled_product", lambda: None)


def what_it_stands_for(layer):
    """The plain nn.Linear that a layer of ours must agree with."""
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    plain.to(layer.bias.dtype if layer.bias is not None else torch.float32)
    weight = layer.weight
    if isinstance(layer, Int8Linear):
        weight = dequantize(layer.weight, layer.scale, torch.float32)
    with torch.no_grad():
        plain.weight.copy_(weight)
        if layer.bias is not None:
            plain.bias.copy_(layer.bias)
    return plain


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(48,), (1, 48), (2, 3, 48), (MAX_ROWS, 48), (40, 48), (0, 48)])
@pytest.mark.parametrize("kind", LAYERS)
def test_layer_agrees_with_nn_linear(kind, shape, bias):
    owner = nn.Linear(48, 21, bias=bias)
    layer = kind(owner.weight, owner.bias)
    x = torch.randn(shape)
    expected = what_it_stands_for(layer)(x)
    y = layer(x)
    assert y.shape == expected.shape
    torch.testing.assert_close(y, expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", LAYERS)
def test_every_dtype_is_computed_in_its_own(kind, dtype, rows):
    owner = nn.Linear(48, 21).to(dtype)
    layer = kind(owner.weight, owner.bias)
    x = torch.randn(rows, 48).to(dtype)
    y = layer(x)
    assert y.dtype == dtype
    tolerance = 5e-2 if dtype == torch.bfloat16 else 1e-5
    plain = what_it_stands_for(layer)
    torch.testing.assert_close(y, plain(x).detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(not is_available(), reason="needs numba")
@pytest.mark.parametrize("kind", LAYERS)
def test_row_has_the_same_bits_in_any_batch_up_to_max_rows(kind):
    layer = kind(torch.randn(37, 100), torch.randn(37))
    x = torch.randn(MAX_ROWS, 100)
    whole = layer(x)
    for rows in range(1, MAX_ROWS + 1):
        assert torch.equal(layer(x[:rows].unsqueeze(0))[0], whole[:rows])
        assert torch.equal(layer(x[-rows:]), whole[-rows:])


@pytest.mark.skipif(not is_available(), reason="needs numba")
@pytest.mark.parametrize("kind", LAYERS)
def test_strided_input_is_read_right(kind):
    layer = kind(torch.randn(12, 20))
    x = torch.randn(4, 9, 40)[:, -1:, ::2]
    assert not x.is_contiguous()
    assert torch.equal(layer(x), layer(x.contiguous()))


@pytest.mark.parametrize("kind", LAYERS)
def test_transposed_weight_is_read_right(kind):
    weight = torch.randn(20, 12).t()
    x = torch.randn(3, 20)
    torch.testing.assert_close(kind(weight)(x), kind(weight.contiguous())(x))


def test_few_row_layer_shares_its_owner_s_weights():
    owner = nn.Linear(16, 8)
    layer = FewRowLinear(owner.weight, owner.bias)
    assert layer.weight.data_ptr() == owner.weight.data_ptr()
    assert layer.bias.data_ptr() == owner.bias.data_ptr()
    with torch.no_grad():
        owner.weight.mul_(2)
    x = torch.randn(2, 16)
    torch.testing.assert_close(layer(x), owner(x).detach())


@pytest.mark.parametrize("kind", LAYERS)
def test_converting_a_layer_leaves_its_owner_alone(kind):
    owner = nn.Linear(16, 8)
    before = copy.deepcopy(owner.state_dict())
    layer = kind(owner.weight, owner.bias).to(torch.float64)
    assert layer(torch.randn(2, 16).double()).dtype == torch.float64
    layer.to("meta")
    after = owner.state_dict()
    assert owner.weight.requires_grad
    assert all(after[k].dtype == torch.float32 and torch.equal(after[k], before[k]) for k in before)


@pytest.mark.parametrize("kind", LAYERS)
def test_gradient_reaches_the_input_and_not_the_weights(kind):
    owner = nn.Linear(16, 8)
    layer = kind(owner.weight, owner.bias)
    x = torch.randn(2, 16, requires_grad=True)
    layer(x).sum().backward()
    expected = what_it_stands_for(layer).weight.sum(0).expand(2, -1)
    torch.testing.assert_close(x.grad, expected.detach())
    assert owner.weight.grad is None
    with torch.no_grad():
        assert torch.equal(layer(x), layer(x.detach()))


def test_int8_layer_reads_back_in_blocks(monkeypatch):
    layer = Int8Linear(torch.randn(50, 30), torch.randn(50))
    x = torch.randn(20, 30)
    whole = layer(x)
    monkeypatch.setattr(modules, "_WEIGHTS_PER_BLOCK", 7 * 30)
    torch.testing.assert_close(layer(x), whole)


@pytest.mark.parametrize("kind", LAYERS)
def test_wrong_width_is_an_error_as_in_torch(kind):
    layer = kind(torch.randn(8, 16))
    with pytest.raises(RuntimeError):
        layer(torch.randn(2, 8))


def test_importing_the_room_does_not_import_numba():
    code = "import sys, draftproof.kernels; sys.exit('numba' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_without_numba_torch_does_the_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "draftproof.kernels.matmul", None)
    modules._compiled_product.cache_clear()
    try:
        assert not is_available()
        layer = FewRowLinear(torch.randn(8, 16))
        x = torch.randn(2, 16)
        assert torch.equal(layer(x), nn.functional.linear(x, layer.weight))
    finally:
        modules._compiled_product.cache_clear()


def test_starting_the_kernels_leaves_the_number_of_torch_threads() -> None:
    code = (
        "import torch; torch.set_num_threads(1);"
        "from draftproof.kernels import FewRowLinear, is_available; is_available();"
        "FewRowLinear(torch.ones(600, 600))(torch.ones(1, 600));"
        "raise SystemExit(torch.get_num_threads() != 1)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
