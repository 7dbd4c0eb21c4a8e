"""What was measured is kept, and a file that is no use is done without."""

from __future__ import annotations

import json

import pytest

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.control.costs import CostBook
from draftproof.drafters.ngram import NgramDrafter
from draftproof.engine import engine
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from tests.control.machines import MACHINES, machine
from tests.toys import remembered


class Measuring:
    def __init__(self):
        self.sizes = []

    def __call__(self, size):
        self.sizes.append(size)
        return machine(0.1 * size, 0.01, context=64, attention={1: 1e-6, 9: 2e-6})


def test_each_power_of_two_is_measured_once():
    book, measure = CostBook(), Measuring()
    for size in (1, 2, 3, 4, 5, 3, 8, 1):
        assert book.curves("here", size, measure).draft_seconds(1) > 0
    assert measure.sizes == [1, 2, 4, 8]
    book.curves("elsewhere", 1, measure)
    assert measure.sizes == [1, 2, 4, 8, 1]


def test_a_file_carries_costs_to_the_next_process(tmp_path):
    path, measure = tmp_path / "new" / "costs.json", Measuring()
    first = CostBook(path).curves("here", 2, measure)
    CostBook(path).curves("there", 1, measure)
    again = CostBook(path).curves("here", 2, pytest.fail)
    assert again == first
    assert again.verify_seconds(7, 200) == first.verify_seconds(7, 200)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"here": 3}', '{"here": {"1": {}}}'])
def test_a_broken_file_is_measured_anew(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    measure = Measuring()
    CostBook(path).curves("here", 1, measure)
    assert measure.sizes == [1]
    assert "here" in json.loads(path.read_text())


def test_a_file_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    CostBook(tmp_path / "file" / "costs.json").curves("here", 1, Measuring())


def test_curves_by_hand_hold_always():
    curves = MACHINES["lookup"]
    assert CostBook(by_hand=curves).curves("here", 5, pytest.fail) is curves


def test_what_the_next_process_measures_again_is_good_enough_for_this_one(tmp_path):
    path, measure = tmp_path / "costs.json", Measuring()
    book = CostBook(path)
    book.curves("here", 1, measure)
    book.forget("here", at_once=False)
    book.curves("here", 1, measure)
    book.curves("here", 2, measure)
    assert measure.sizes == [1, 2]
    assert json.loads(path.read_text()) == {}
    CostBook(path).curves("here", 1, measure)
    assert measure.sizes == [1, 2, 1]


def test_what_is_forgotten_is_measured_again_and_only_once(tmp_path):
    path, measure = tmp_path / "costs.json", Measuring()
    book = CostBook(path)
    for size in (1, 2):
        book.curves("here", size, measure)
    book.curves("there", 1, measure)
    book.forget("here")
    assert set(json.loads(path.read_text())) == {"there"}
    book.curves("here", 1, measure)
    book.forget("here")
    book.curves("here", 1, measure)
    assert measure.sizes == [1, 2, 1, 1]
    CostBook(path).curves("there", 1, pytest.fail)


def test_curves_that_were_measured_beside_other_work_are_measured_again(monkeypatch):
    measured = []

    def slowly(*_situation):
        measured.append(1)
        return machine(0.3, 0.02, context=64)  # 20 ms a pass, and a toy takes far less

    monkeypatch.setattr(engine, "measure_costs", slowly)
    target = ToyModel(remembered(random_law(6, seed=1)), 6)
    system = Speculator(target, NgramDrafter(), settings=EngineSettings(depth="auto"))
    for _ in range(4):
        system.generate([1, 2, 3], SamplingParams(max_tokens=60))
    assert len(measured) == 2, "once doubted, and then believed"
