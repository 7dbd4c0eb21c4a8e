"""--depth: auto, or a number."""

from __future__ import annotations

import json

import pytest

from draftproof import api

OPTIONS = ("--max-tokens", "12", "--drafter", "early-exit:1", "--dtype", "float64", "--json")


@pytest.mark.parametrize("depth", ["auto", "0", "3"])
def test_a_depth_is_a_number_or_auto(call, folder, monkeypatch, tmp_path, depth):
    monkeypatch.setattr(api, "user_cache_path", lambda _name: tmp_path)
    result = call("generate", "hello", "--target", folder, *OPTIONS, "--depth", depth)
    assert result.code == 0, result.err
    stats = json.loads(result.out)["stats"]
    assert stats["generated"] == 12
    assert sum(stats["planned_depths"]) == stats["target_calls"]
    assert (tmp_path / "costs.json").exists() == (depth == "auto")


def test_a_depth_that_is_neither_is_refused(call, folder):
    result = call("generate", "hello", "--target", folder, *OPTIONS, "--depth", "deep")
    assert result.code == 2
    assert "--depth is 'deep'" in result.err
