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


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_min_confidence_ends_drafts_and_is_refused_where_nothing_heeds_it(
    call, folder, monkeypatch, tmp_path, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hello"}\n')
    own = ("--prompts", "prompts.jsonl", "--peer", "none") if command == "bench" else ("hello",)
    given = (*own, "--target", folder, *OPTIONS, "--min-confidence", "1")
    result = call(command, *given, "--depth", "4")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    if command == "bench":
        assert report["min_confidence"] == 1
        records = (tmp_path / report["records"]).read_text().splitlines()
        counts = [json.loads(record)["drafted_per_position"] for record in records]
    else:
        counts = [report["stats"]["drafted_per_position"]]
    assert max(len(count) for count in counts) == 1
    assert "finds out by itself" in call(command, *given).err
    if command == "bench":
        given = (*given, "--records", "other.jsonl")
    refused = call(command, *given, "--depth", "4", "--drafter", "ngram")
    assert refused.code == 2
    assert "how sure" in refused.err


def test_a_depth_that_is_neither_is_refused(call, folder):
    result = call("generate", "hello", "--target", folder, *OPTIONS, "--depth", "deep")
    assert result.code == 2
    assert "--depth is 'deep'" in result.err
