"""The picture: drawn without a display, refused early where it could not be."""

from __future__ import annotations

import importlib.util
import struct

import pytest

from draftproof.bench.plot import check_plot, draw
from draftproof.bench.session import Settings
from draftproof.errors import InvalidSetting, MissingExtra
from tests.bench.conftest import OUR_CELL, PEER_CELL, PLAIN_CELL, matrix, record, result


def size(path):
    """Width and height of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


def made(tmp_path, *cells, **changes):
    drafted = {"drafted_per_position": (3, 3), "accepted_per_position": (3, 1)}
    records = [record(cell, i, 5.0 + i) for cell in cells for i in range(3)]
    records += [record(OUR_CELL, i, 12.0, **drafted) for i in range(3) if OUR_CELL in cells]
    return result(records, Settings("tiny", matrix(**changes), tmp_path / "raw.jsonl"))


def test_a_panel_is_drawn_for_what_there_is(tmp_path):
    pytest.importorskip("matplotlib")
    widths = []
    for name, cells in (
        ("one", (PLAIN_CELL, PEER_CELL)),
        ("two", (PLAIN_CELL, OUR_CELL)),
        ("three", (PLAIN_CELL, OUR_CELL, PEER_CELL)),
    ):
        path = tmp_path / f"{name}.png"
        draw(made(tmp_path, *cells), path)
        widths.append(size(path)[0])
    assert widths[2] / 3 == widths[1] / 2, "speed-up over two baselines, and acceptance"
    assert widths[0] == widths[1], "over both baselines, nothing was drafted"


def test_a_name_that_is_no_new_png_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidSetting, match=r"ends in \.png"):
        check_plot(tmp_path / "plot.svg")
    old = tmp_path / "old.png"
    old.touch()
    with pytest.raises(InvalidSetting, match="exists"):
        check_plot(old)
    check_plot(tmp_path / "new.PNG")


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name)
    )
    with pytest.raises(MissingExtra, match=r"pip install 'draftproof\[plot\]'"):
        check_plot(tmp_path / "new.png")
