"""What depth, width and nodes may be, and that a fixed plan is what was asked for."""

from __future__ import annotations

import pytest

from draftproof.config import EngineSettings
from draftproof.control.fixed import FixedPlan
from draftproof.core import Plan
from draftproof.errors import InvalidSetting


def test_auto_is_the_default_and_numbers_are_kept():
    assert EngineSettings().depth == "auto"
    settings = EngineSettings(depth=3, width=4, nodes=20)
    assert (settings.depth, settings.width, settings.nodes) == (3, 4, 20)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"depth": 65}, "64"),
        ({"depth": -1}, "plain decoding"),
        ({"depth": "deep"}, "'auto'"),
        ({"depth": 2.5}, "2.5"),
        ({"depth": 4, "width": 0}, "width is 0"),
        ({"depth": 4, "nodes": 65}, "nodes is 65"),
        ({"depth": "auto", "width": 2}, "chooses the width"),
    ],
)
def test_what_cannot_be_planned_is_refused(fields, said):
    with pytest.raises(InvalidSetting, match=said):
        EngineSettings(**fields)


def test_a_fixed_plan_is_cut_where_the_text_ends():
    control = FixedPlan(4, 3, 20)
    assert control.plan(9, 100, 1) == Plan(4, 3, 20)
    assert control.plan(2, 100, 1) == Plan(2, 3, 20)
    assert control.plan(0, 100, 1).depth == 0
