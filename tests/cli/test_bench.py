"""`draftproof bench`: what is printed where, exit codes, and what is refused before loading."""

from __future__ import annotations

import json

import pytest

import draftproof.bench.session as session
from tests.cli.test_generate import wrong_target

FAST = ("--dtype", "float64", "--max-tokens", "6", "--per-category", "1", "--peer", "none")
OURS = ("--drafter", "early-exit:1", "--depth", "3")


@pytest.fixture
def bench(call, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello"}\n{"prompt": "other words"}\n')
    return lambda *arguments: call(
        "bench", "--target", folder, "--prompts", prompts, *FAST, *OURS, *arguments
    )


def test_tables_come_first_and_one_json_object_last(bench, tmp_path):
    result = bench()
    assert (result.code, result.err) == (0, ""), "no bar where nobody watches"
    *tables, last = result.out.splitlines()
    report = json.loads(last)
    assert "early-exit:1, depth 3" in "\n".join(tables)
    assert report["exact"] is True
    records = tmp_path / report["records"]
    assert len(records.read_text().splitlines()) == 2, "one prompt, plainly and with drafts"
    assert "\x1b" not in result.out


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_the_object_can_be_had_alone(bench, tmp_path, option):
    result = bench(option, "--records", tmp_path / "raw.jsonl", "--by-category")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1
    report = json.loads(result.out)
    assert [cell["label"] for cell in report["cells"]] == ["plain", "early-exit:1, depth 3"]
    assert {row["category"] for row in report["by_category"]} == {"all"}
    assert (tmp_path / "raw.jsonl").exists()


def test_a_text_that_differs_from_plain_decoding_is_exit_code_1(bench, monkeypatch):
    wrong_target(monkeypatch)
    result = bench("--per-category", "2", "--depth", "5", "--max-tokens", "12")
    assert result.code == 1
    report = json.loads(result.out.splitlines()[-1])
    assert report["exact"] is False
    assert "DIFFERENT" in result.out
    assert any(cell["exactness"].get("DIFFERENT") for cell in report["cells"])


def test_every_value_of_a_repeated_option_is_run(bench):
    many = ("--temperature", "0", "--temperature", "1", "--batch", "1", "--batch", "2")
    result = bench("--json", "--drafter", "ngram", "--depth", "2", *many, "--per-category", "2")
    cells = json.loads(result.out)["cells"]
    assert len(cells) == 2 * 2 * (1 + 2 * 2)
    assert {cell["requests"] for cell in cells} == {2}


def test_widths_are_cells_and_nodes_hold_for_all(bench):
    result = bench("--json", "--width", "1", "--width", "3", "--nodes", "5")
    report = json.loads(result.out)
    labels = ["plain", "early-exit:1, depth 3", "early-exit:1, depth 3, width 3"]
    assert [cell["label"] for cell in report["cells"]] == labels
    assert [cell["width"] for cell in report["cells"]] == [None, 1, 3]
    assert report["nodes"] == 5
    assert report["exact"] is True


def test_static_trees_are_cells_beside_depths(bench):
    trees = ("--tree", "2,1", "--tree", "[(0,), (0, 0), (0, 1)]")
    result = json.loads(bench("--json", *trees, "--nodes", "5").out)
    assert [cell["label"] for cell in result["cells"]] == [
        "plain",
        "early-exit:1, depth 3",
        "early-exit:1, tree 2,1",
        "early-exit:1, tree 1,2",
    ]
    assert [cell["tree"] for cell in result["cells"]] == [None, None, "2,1", "1,2"]
    assert [cell["depth"] for cell in result["cells"]] == [None, 3, 2, 2]
    assert result["exact"] is True


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--drafter", "ngrams"), "ngrams"),
        (("--tree", "0"), "give 1 or more"),
        (("--drafter", "none"), "always run"),
        (("--depth", "65"), "65"),
        (("--width", "0"), "width is 0"),
        (("--nodes", "65"), "nodes is 65"),
        (("--batch", "0"), "at least 1"),
        (("--peer", "vllm", "--peer", "transformers"), "--peer none was given with other peers"),
        (("--max-tokens", "1"), "max_tokens"),
        (("--prompts", "missing.jsonl"), "missing.jsonl"),
        (("--records", "prompts.jsonl"), "exists"),
        (("--plot", "plot.pdf"), ".png"),
        (("--temperature", "warm"), "--temperature"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_a_model_is_loaded(
    bench, monkeypatch, options, named
):
    monkeypatch.setattr(session, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    result = bench(*options)
    assert (result.code, result.out) == (2, "")
    assert named in result.err
    assert result.err.count("\n") == 1


def test_without_options_our_drafters_meet_transformers_on_our_prompts(call, monkeypatch):
    seen = []

    def remember(settings, *_):
        seen.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "run_bench", remember)
    assert call("bench").code == 130
    (settings,) = seen
    labels = [cell.label for cell in settings.matrix.cells(0.0, 1)]
    assert labels == ["plain", "self-int8, auto depth", "ngram, auto depth", "transformers"]
    assert (settings.target, settings.prompts) == ("smollm2-135m", None)
    assert list(settings.matrix.settings()) == [(0.0, 1)]
