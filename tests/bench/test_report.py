"""Tables for people: within 100 columns, the verdict beside every speed, nothing left unsaid."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from draftproof.bench.matrix import Cell
from draftproof.bench.report import WIDTH, show
from draftproof.bench.session import Settings
from tests.bench.conftest import OUR_CELL, PEER_CELL, PLAIN_CELL, matrix, record, result


def shown(made, by_category=False):
    out = StringIO()
    show(made, Console(file=out, highlight=False), by_category)
    return out.getvalue()


@pytest.fixture
def records():
    counts = {
        "target_calls": 4,
        "drafted": 8,
        "accepted": 6,
        "drafted_per_position": (4, 4),
        "accepted_per_position": (4, 2),
    }
    times = {"draft_s": 0.1, "verify_s": 0.3, "rest_s": 0.1}
    made = []
    for i, workload in enumerate(("edit", "story")):
        made.append(record(PLAIN_CELL, i, 10.0, category=workload, target_calls=10))
        made.append(record(OUR_CELL, i, 15.0 + 10 * i, category=workload, **counts, **times))
        made.append(record(PEER_CELL, i, 5.0, category=workload))
    return made


def settings(tmp_path, **changes):
    return Settings("tiny", matrix(**changes), tmp_path / "raw.jsonl")


def line(text, start, nth=0):
    return [one for one in text.splitlines() if one.startswith(start)][nth].split()


def test_speeds_stand_beside_their_verdict(records, tmp_path):
    text = shown(result(records, settings(tmp_path)))
    ours = line(text, " ngram, depth 4")
    assert ours[3:] == [
        "20.0",
        "2.00",
        "(1.50-2.50)",
        "4.00",
        "(3.00-5.00)",
        "1.53",
        "1.65",
        "identical",
    ]
    assert line(text, " plain")[-1] == "reference"
    assert line(text, " transformers")[1:4] == ["5.0", "0.50", "-"]


def test_where_the_time_went_is_the_second_table(records, tmp_path):
    ours = line(shown(result(records, settings(tmp_path))), " ngram, depth 4", nth=1)
    assert ours[3:] == ["6.6", "2.50", "75%", "100", "50", "20%", "60%", "20%", "1"]


def test_workloads_are_shown_when_asked_for(records, tmp_path):
    made = result(records, settings(tmp_path))
    assert " story " not in shown(made)
    text = shown(made, by_category=True)
    assert line(text, " edit", nth=1)[4:7] == ["15.0", "1.50", "3.00"]
    assert line(text, " story", nth=1)[4:7] == ["25.0", "2.50", "5.00"]


def test_machine_prompts_and_raw_results_are_named(records, tmp_path):
    text = shown(result(records, settings(tmp_path)))
    for words in (
        "A processor, 1 of 2 cores",
        "10 GB/s",
        "torch 2",
        "1 of 4 prompts",
        "raw.jsonl",
        "3 prompts were left out",
    ):
        assert words in text, words


def test_near_ties_and_differences_are_counted_and_named(records, tmp_path):
    made = result(records, settings(tmp_path))
    assert "DIFFER" not in shown(made)
    records[1] = replace(records[1], exactness="near-tie")
    tied = shown(result(records, settings(tmp_path)))
    assert "1 near-tie, 1 identical" in tied
    records[1] = replace(records[1], exactness="DIFFERENT")
    wrong = shown(result(records, settings(tmp_path)))
    assert "1 DIFFERENT, 1 identical" in wrong
    assert "do not trust these speeds" in wrong


def test_a_setting_that_a_peer_cannot_do_is_shown_with_its_reason(tmp_path):
    peers = ("transformers-lookup",)
    cell = Cell("plain", None, None, 0.0, 2)
    text = shown(result([record(cell)], settings(tmp_path, peers=peers, batches=(2,))))
    assert "not supported" in text
    assert "transformers-lookup, batch 2: transformers drafts for one prompt at a time." in text


def test_tables_keep_within_their_width(tmp_path):
    peers = ("transformers", "transformers-assisted:/a/long/way/to/some-model-with-a-long-name")
    many = matrix(drafters=("model:/a/long/way/to/another-long-name",), depths=(64,), peers=peers)
    deep = {
        "drafted": 64,
        "accepted": 60,
        "target_calls": 1000,
        "drafted_per_position": (99,) * 64,
        "accepted_per_position": (98,) * 64,
        "draft_s": 1.0,
        "verify_s": 1.0,
        "rest_s": 1.0,
        "peak_bytes": 99 << 30,
        "total_s": 1000.0,
    }
    made = [
        record(cell, i, rate, category="a-workload", **deep)
        for cell in many.cells(0.0, 1)
        for i, rate in enumerate((1000.0, 2000.0))
    ]
    wide = Settings("tiny", many, tmp_path / "raw.jsonl")
    text = shown(result(made, wide), by_category=True)
    tables = [one for one in text.splitlines() if one.startswith((" ", "─"))]
    assert max(map(len, tables)) <= WIDTH
    assert "another-long-name" in text.replace("\n", "")
    assert "(1.00-1.00)" not in text, "a range of one value is no range"
    assert "…" not in text, "nothing is cut"
