"""The settings file: what is written is read, and what is no setting is refused."""

from __future__ import annotations

import json

import pytest

from draftproof.errors import InvalidSetting
from draftproof.tuned import Tuned, read_tuned

GOOD = Tuned("smollm2-135m", "self-int8", 6, 1, None)


@pytest.mark.parametrize("tuned", [GOOD, Tuned("a", "ngram", "auto"), Tuned("a", "none", 0, 3, 9)])
def test_what_is_written_is_read(tmp_path, tuned):
    path = tmp_path / "tuned.json"
    tuned.write(path)
    assert read_tuned(path) == tuned


@pytest.mark.parametrize(
    "change",
    [
        {"depth": "deep"},
        {"depth": True},
        {"depth": 400},
        {"width": 0},
        {"width": None},
        {"nodes": "many"},
        {"target": ""},
        {"drafter": 3},
        {"colour": "red"},
    ],
)
def test_what_no_drafting_could_be_is_refused(tmp_path, change):
    path = tmp_path / "tuned.json"
    GOOD.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidSetting):
        read_tuned(path)


@pytest.mark.parametrize("text", ["", "[1]", "{}", "not json"])
def test_a_file_that_holds_no_settings_is_named(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InvalidSetting, match=r"other\.json"):
        read_tuned(path)
    with pytest.raises(InvalidSetting, match="missing"):
        read_tuned(tmp_path / "missing.json")
