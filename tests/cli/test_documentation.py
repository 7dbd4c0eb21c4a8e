"""docs/cli.md describes every option, and every key of every JSON object, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from draftproof.checks import audit as audit_module
from tests.cli.test_generate import SHORT, wrong_target

pytest.importorskip("scipy")

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def documented(command: str) -> dict:
    block = re.search(rf"<!-- {command} -->\n```jsonc\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    for line in block[1].splitlines():
        assert "//" in line or not re.search(r'": [^{\[]', line), f"no comment: {line}"
    return json.loads(re.sub(r"\s+//.*", "", block[1]))


def shape(value: object) -> object:
    """Keys and kinds of values, all the way down; a list is known by its first entry."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    kinds = {bool: "bool", str: "text", int: "number", float: "number"}
    return kinds[type(value)]


def test_the_object_of_generate(call, folder, monkeypatch):
    wrong_target(monkeypatch)
    options = ("--compare", "--json", "--temperature", "1", "--seed", "1")
    report = json.loads(call("generate", "hello", "--target", folder, *SHORT, *options).out)
    assert report["plain"]["stats"].keys() == report["stats"].keys()
    report["plain"]["stats"] = {}
    assert shape(report) == shape(documented("generate"))


def test_the_object_of_check(call, folder, monkeypatch):
    wrong_target(monkeypatch)
    audit = audit_module.audit

    def on_one_prompt(speculator, **others):
        return audit(speculator, prompts={"short": "hello"}, **others)

    monkeypatch.setattr(audit_module, "audit", on_one_prompt)
    options = ("--target", folder, *SHORT, "--samples", "8", "--json")
    result = call("check", *options)
    assert result.code == 1, "a wrong target is found"
    report = json.loads(result.out)
    assert shape(report) == shape(documented("check"))


def test_the_object_of_estimate(call):
    options = ("--acceptance-rate", "0.8", "--cost-ratio", "0.05", "--simulate", "--json")
    assert shape(json.loads(call("estimate", *options).out)) == shape(documented("estimate"))


def test_the_object_of_bench(call, folder, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hello"}\n')
    own = ("--prompts", "prompts.jsonl", "--plot", "bench.png", "--by-category", "--tree", "2,1")
    report = json.loads(
        call("bench", "--target", folder, *SHORT, *own, "--nodes", "9", "--json").out
    )
    assert (tmp_path / "bench.png").exists()
    # All rows have the same keys; the one that drafts has something in each of them.
    assert len({tuple(row) for row in report["cells"] + report["by_category"]}) == 1
    assert report["by_category"]
    drafting = [row for row in report["by_category"] if row["tree"] is not None]
    report |= {"cells": drafting, "by_category": []}
    assert shape(report) == shape(documented("bench"))


def test_the_object_of_tune(call, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hello"}\n')
    options = (
        "--prompts",
        "prompts.jsonl",
        "--max-tokens",
        "6",
        "--drafter",
        "self-int8",
        "--json",
    )
    report = json.loads(call("tune", "--target", folder, *options).out)
    wanted = documented("tune")
    for costs in (*report["costs"].values(), *wanted["costs"].values()):
        for curve in ("verify", "attention", "draft_attention"):
            costs[curve] = sum(costs[curve].values())
        costs["draft"] = sum(sum(points.values()) for points in costs["draft"].values())
    for part in ("verified", "forecasts"):
        for one in (*report[part], *wanted[part]):
            one["nodes"] = one["nodes"] or 0
    assert shape(report | {"best": {}}) == shape(wanted | {"best": {}})
    assert report["best"].keys() == wanted["best"].keys()


@pytest.mark.parametrize("command", ["generate", "bench", "check", "estimate", "tune", "serve"])
def test_every_option_is_described(call, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    options = set(re.findall(r"(--[a-z][a-z-]+)", call(command, "--help").out.split("Examples")[0]))
    described = set(re.findall(r"(--[a-z][a-z-]+)", PAGE))
    assert options - described == {"--help"} - described
