"""`draftproof tune` on a tiny model, and the settings that `generate` and `bench` then take."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("matplotlib")

SHORT = ("--max-tokens", "6", "--per-category", "1", "--max-prompt-tokens", "400")


def test_the_best_setting_is_found_written_and_taken(call, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text('{"prompt": "abcabcabcabc"}\n{"prompt": "hello"}\n')
    files = ("--prompts", "mine.jsonl", "--output", "tuned.json", "--plot", "tuned.png")
    drafters = ("--drafter", "ngram", "--drafter", "self-int8")
    result = call("tune", "--target", folder, *drafters, *SHORT, *files, "--json")
    assert result.code == 0
    report = json.loads(result.out)
    assert (tmp_path / "tuned.png").stat().st_size > 10_000
    best = json.loads((tmp_path / "tuned.json").read_text())
    assert best == report["best"]
    assert best["target"] == folder
    assert best["drafter"] in ("ngram", "self-int8", "none")
    assert all(one["identical"] == one["texts"] for one in report["verified"])
    assert {one["drafter"] for one in report["forecasts"]} == {"ngram", "self-int8"}
    depths = [one["depth"] for one in report["forecasts"] if one["drafter"] == "ngram"]
    assert sorted(depths) == list(range(1, 9))

    (tmp_path / "tuned.json").write_text(json.dumps(best | {"drafter": "ngram", "depth": 3}))
    settings = ("--settings", "tuned.json", "--max-tokens", "6", "--json")
    report = json.loads(call("generate", "abcabcabc", *settings).out)
    assert len(report["stats"]["planned_depths"]) == 4
    assert report["stats"]["drafted"] > 0
    report = json.loads(call("generate", "abcabcabc", *settings, "--drafter", "none").out)
    assert report["stats"]["drafted"] == 0, "what is given beside the file wins"
    short = ("--prompts", "mine.jsonl", "--peer", "none", "--max-prompt-tokens", "400")
    report = json.loads(call("bench", *settings, *short).out)
    assert [cell["label"] for cell in report["cells"]] == ["plain", "ngram, depth 3"]


def test_the_ranking_is_shown_with_reasons(call, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text('{"prompt": "abcabcabcabc"}\n')
    options = ("--drafter", "ngram", *SHORT, "--prompts", "mine.jsonl", "--best", "1")
    out = call("tune", "--target", folder, *options).out
    for word in ("measured", "predicted", "tokens a round", "1 of 1", "best for"):
        assert word in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--drafter", "none"), "none"),
        (("--drafter", "magic"), "magic"),
        (("--drafter", "ngram", "--drafter", "ngram"), "each once"),
        (("--best", "0"), "best is 0"),
        (("--plot", "tuned.pdf"), "png"),
        (("--prompts", "missing.jsonl"), "missing.jsonl"),
    ],
)
def test_what_cannot_be_tuned_is_told_before_anything_runs(call, options, message):
    result = call("tune", "--target", "no-such-model", *options)
    assert result.code == 2
    assert message in result.err


def test_settings_that_are_none_are_told(call, tmp_path):
    (tmp_path / "odd.json").write_text("{}")
    result = call("generate", "hello", "--settings", str(tmp_path / "odd.json"))
    assert result.code == 2
    assert "odd.json" in result.err
