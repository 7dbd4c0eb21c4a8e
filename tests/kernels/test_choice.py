"""Torch's product takes over where it was measured to be faster, and only when asked for."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("numba")

import draftproof as dp
from draftproof.errors import InvalidSetting
from draftproof.kernels import MAX_ROWS, FewRowLinear, choice, choose
from draftproof.models import hf
from draftproof.models.hf import HFModel
from tests.tiny import tiny_model


def layers(*shapes: tuple[int, int]) -> list[FewRowLinear]:
    generator = torch.Generator().manual_seed(1)
    return [FewRowLinear(torch.randn(shape, generator=generator)) for shape in shapes]


def timings(monkeypatch, faster: set[int]) -> list[int]:
    """Make torch the faster one at these numbers of rows; returns what is measured, as it is."""
    measured: list[int] = []

    def measure(_layers, rows):
        measured.append(rows)
        return (2.0, 1.0) if rows in faster else (1.0, 2.0)

    monkeypatch.setattr(choice, "_measure", measure)
    return measured


def test_by_default_every_number_of_rows_is_ours() -> None:
    (layer,) = layers((8, 8))
    assert layer.torch_rows == frozenset()


def test_rows_go_to_whoever_was_faster(monkeypatch, tmp_path) -> None:
    timings(monkeypatch, {2, 8})
    (layer,) = layers((40, 64))
    assert choose([layer], tmp_path / "kernels.json") == 2
    assert layer.torch_rows == {2, 5, 6, 7, 8}
    called = []
    monkeypatch.setattr(layer, "by_kernel", lambda x: called.append(len(x)))
    for rows in range(1, MAX_ROWS + 1):
        x = torch.randn(rows, 64)
        y = layer(x)
        if rows in layer.torch_rows:
            assert torch.equal(y, F.linear(x, layer.weight))
    assert called == [rows for rows in range(1, MAX_ROWS + 1) if rows not in layer.torch_rows]


def test_a_shape_is_measured_once_per_machine(monkeypatch, tmp_path) -> None:
    path = tmp_path / "deep" / "kernels.json"
    measured = timings(monkeypatch, {1})
    choose(layers((8, 16), (8, 16)), path)
    assert measured == list(choice.MEASURED_ROWS)
    again = layers((8, 16), (4, 16))
    choose(again, path)
    assert measured == 2 * list(choice.MEASURED_ROWS)
    assert [layer.torch_rows for layer in again] == [{1}, {1}]
    monkeypatch.setattr(choice, "_machine", lambda: "another")
    choose(again, path)
    assert len(measured) == 4 * len(choice.MEASURED_ROWS)
    assert len(json.loads(path.read_text())) == 2


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_file_that_cannot_be_read_is_written_anew(monkeypatch, tmp_path, text) -> None:
    path = tmp_path / "kernels.json"
    path.write_text(text)
    timings(monkeypatch, {4})
    (layer,) = layers((8, 16))
    choose([layer], path)
    assert layer.torch_rows == {3, 4}
    assert json.loads(path.read_text())


def test_a_real_measurement_gives_seconds_of_both(tmp_path) -> None:
    path = tmp_path / "kernels.json"
    choose(layers((64, 32), (64, 32)), path)
    ((shape, rows),) = next(iter(json.loads(path.read_text()).values())).items()
    assert shape == "64x32"
    assert set(rows) == {str(number) for number in choice.MEASURED_ROWS}
    assert all(0 < seconds < 10 for pair in rows.values() for seconds in pair)


def test_only_a_model_without_a_compiled_step_has_something_to_choose(
    monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(hf, "user_cache_path", lambda _name: tmp_path)
    measured = timings(monkeypatch, set(choice.MEASURED_ROWS))
    HFModel(tiny_model("llama", dtype=torch.float32), "llama", "fastest")
    HFModel(tiny_model("gemma2", dtype=torch.float32), "gemma2", "exact")
    assert measured == []
    made = HFModel(tiny_model("gemma2", dtype=torch.float32), "gemma2", "fastest")
    assert measured
    few_row = [part for part in made._module.modules() if isinstance(part, FewRowLinear)]
    assert all(len(layer.torch_rows) == MAX_ROWS for layer in few_row)


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="kernels is 'quick'; give 'exact' or 'fastest'"):
        dp.EngineSettings(kernels="quick")
