"""Pictures of docs/control.md and docs/drafters.md: the numbers beside them are those of the code
that draws them."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from draftproof.core import Plan
from draftproof.drafters.suffix import SuffixDrafter
from tests.drafters.lookups import begin, context

ROOT = Path(__file__).parents[1]
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("control", "drafters")
}


@pytest.fixture(scope="module", autouse=True)
def scripts():
    pytest.importorskip("matplotlib")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        yield


@pytest.fixture
def batches():
    return importlib.import_module("figures_batch")


@pytest.fixture
def drafters():
    return importlib.import_module("figures_drafters")


@pytest.mark.parametrize(("page", "count"), [("control", 1), ("drafters", 2)])
def test_pictures_are_there_and_small(page, count):
    pictures = re.findall(r"\]\((figures/[^)]+)\)", PAGES[page])
    assert len(pictures) == count
    for picture in pictures:
        assert 1_000 < (ROOT / "docs" / picture).stat().st_size < 60_000


# Batches --------------------------------------------------------------------------------------


def test_a_batch_costs_what_one_text_of_as_many_columns_costs(batches):
    for one in batches.MACHINES.values():
        three = batches.batched(one, 3)
        for columns in (1, 2, 5, 9):
            assert three.verify_seconds(columns) == pytest.approx(one.verify_seconds(3 * columns))
        # Curves of one text know what a level of four nodes costs; so much is one of four texts.
        assert batches.batched(one, 4).draft_seconds(2) == pytest.approx(one.draft_seconds(2, 4))


def test_batches_are_those_of_the_page(batches):
    free, cheap, dear = batches.MACHINES.values()

    def depth(one, batch):
        return batches.best_depth(batches.batched(one, batch))

    def gain(one, batch, depth):
        return batches.speedup(batches.batched(one, batch), depth)

    def best(one, batch):
        return gain(one, batch, depth(one, batch))

    def first(holds):
        return next(batch for batch in range(1, batches.LARGEST + 1) if holds(batch))

    lines = (
        f"{best(free, 1):.2f} with one text, {best(free, 64):.2f} with 64; depth {depth(free, 1)}, "
        f"from {first(lambda batch: depth(free, batch) < 3)} texts on depth {depth(free, 64)}.",
        f"{best(cheap, 1):.2f} with one text, nothing is drafted from "
        f"{first(lambda batch: depth(cheap, batch) == 0)} texts on. "
        f"Depth {depth(cheap, 1)}, kept, is at {gain(cheap, 64, 1):.2f} with 64.",
        f"{best(dear, 1):.2f} with one text at depth {depth(dear, 1)}, "
        f"from {first(lambda batch: depth(dear, batch) < 2)} texts on depth 1, "
        f"nothing from {first(lambda batch: depth(dear, batch) == 0)} on. "
        f"Depth 2, kept, is slower than plain decoding from "
        f"{first(lambda batch: gain(dear, batch, 2) < 1)} texts on, "
        f"depth 4 from {first(lambda batch: gain(dear, batch, 4) < 1)} on.",
        *("c = {} and ℓ = {}:".format(*re.findall(r"[\d.]+", name)) for name in batches.MACHINES),
    )
    for line in lines:
        assert line in PAGES["control"]


def test_theory_of_batches_is_what_simulated_texts_show(batches):
    for one in batches.MACHINES.values():
        costs = batches.batched(one, 4)
        for depth in (1, 4):
            expected = batches.speedup(costs, depth)
            assert batches.simulated(one, 4, depth) == pytest.approx(expected, rel=0.04)


def test_controllers_come_near_the_best_depth_of_the_batch(batches):
    for one in batches.MACHINES.values():
        costs = batches.batched(one, 4)
        best = batches.speedup(costs, batches.best_depth(costs))
        assert batches.controlled(one, 4) == pytest.approx(best, rel=0.04)


# Drafters -------------------------------------------------------------------------------------


def row(drafter, category, tokens, verdict="identical", system="draftproof"):
    return {
        "system": system,
        "drafter": drafter,
        "category": category,
        "label": drafter,
        "tokens_per_call": tokens,
        "exactness": {verdict: 1},
    }


def written(path, by_category, cells):
    path.write_text(json.dumps({"by_category": by_category, "cells": cells}), encoding="utf-8")
    return path


def test_workloads_are_drawn_as_the_bench_counted_them(drafters, tmp_path):
    bench = written(
        tmp_path / "bench.json",
        [
            row(None, "poem", 1.0, "reference", "plain"),
            row("ngram", "poem", 1.25),
            row("suffix", "poem", 1.5),
            row("ngram", "code", 3.25),
            row("suffix", "code", 2.5),
        ],
        [row("ngram", None, 2.25), row("suffix", None, 2.0)],
    )
    (axes,) = drafters.draw_drafters(bench).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["ngram", "suffix"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["code", "poem", "all together"]
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    assert [shown[0, y] for y in range(3)] == ["3.25", "1.25", "2.25"]
    assert [shown[1, y] for y in range(3)] == ["2.50", "1.50", "2.00"]


def test_texts_that_are_not_plain_decodings_are_not_drawn(drafters, tmp_path):
    wrong = row("ngram", "code", 9.0, "DIFFERENT")
    bench = written(tmp_path / "bench.json", [wrong], [row("ngram", None, 9.0)])
    with pytest.raises(SystemExit, match="ngram, code"):
        drafters.draw_drafters(bench)


def test_suffix_drafts_what_the_page_says_of_the_rhyme(drafters):
    """Each word of the rhyme is a token of the model, so words do as well."""
    (quoted,) = re.findall(r"^> \.\.\. (.*)$", PAGES["drafters"], re.MULTILINE)
    assert quoted.count("**the cat**") == 4 + 1
    words: dict[str, int] = {}
    text = drafters.RHYME[: drafters.RHYME.index("This is the cat")] + quoted.replace("*", "")
    assert text.startswith(drafters.RHYME)
    ids = [words.setdefault(word, len(words)) for word in re.findall(r"\w+|\.", text)]
    shape = drafters.SHAPE
    plan = Plan(shape.depth, shape.width, shape.nodes)
    (draft,) = begin(SuffixDrafter()).propose([context(ids)], [plan])
    spelled = list(words)
    leaves = set(range(len(draft.tokens))) - set(draft.parents)
    drafted = {" ".join(spelled[draft.tokens[i]] for i in draft.path(leaf)) for leaf in leaves}
    assert drafted == {"that killed the rat that", "that killed the cat", "that ate the dog"}
