"""What was measured is kept, and a file that is no use is done without."""

from __future__ import annotations

import json

import pytest

from draftproof.control.costs import CostBook
from tests.control.machines import MACHINES, machine


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
