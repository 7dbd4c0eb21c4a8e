"""A whole bench over a tiny model, a real child process included."""

from __future__ import annotations

import json

import pytest

from draftproof.api import Speculator
from draftproof.bench.matrix import OURS, PLAIN
from draftproof.bench.session import Settings, run_bench
from draftproof.errors import InvalidSetting
from draftproof.sampling.params import SamplingParams
from tests.bench.conftest import matrix

TOKENS = 8
PROMPTS = ["hello hello hello", "other", "x" * 300, "and one more"]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "four.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return path


def settings(folder, prompts, records, **changes) -> Settings:
    fields = {
        "target": str(folder),
        "matrix": matrix(
            drafters=("ngram", "early-exit:1"),
            depths=(2, 3),
            temperatures=(0.0, 1.0),
            batches=(1, 2),
        ),
        "records": records,
        "prompts": prompts,
        "max_prompt_tokens": 200,
        "max_tokens": TOKENS,
        "dtype": "float64",
        "device": "cpu",
    }
    return Settings(**(fields | changes))


@pytest.fixture(scope="module")
def done(folder, prompts, tmp_path_factory):
    records = tmp_path_factory.mktemp("records") / "raw.jsonl"
    result = run_bench(settings(folder, prompts, records))
    return result, [json.loads(line) for line in records.read_text().splitlines()]


def test_every_cell_decoded_every_prompt_to_the_same_number_of_tokens(done):
    result, records = done
    assert (len(result.selection.tasks), result.selection.too_long) == (3, 1)
    alone = [record for record in records if record["batch"] == 1]
    assert len(alone) == 2 * 3 * (1 + 4 + 1), "temperatures, prompts, cells"
    assert {record["generated"] for record in records} == {TOKENS}
    assert {len(record["token_ids"]) for record in records} == {TOKENS}
    assert len(result.rows) == 2 * 2 * (1 + 4 + 1)


def test_texts_are_those_of_plain_decoding_greedy_and_seeded(done):
    result, records = done
    assert result.exact
    ours = [record for record in records if record["system"] == OURS]
    assert {record["exactness"] for record in ours} == {"identical"}
    texts = {}
    for record in records:
        if record["system"] in (OURS, PLAIN):
            key = record["temperature"], record["id"]
            assert texts.setdefault(key, record["token_ids"]) == record["token_ids"]
    assert texts[0.0, "1"] != texts[1.0, "1"]


def test_the_peer_is_held_to_the_same_text_when_greedy(done):
    _, records = done
    for temperature, verdict in ((0.0, "identical"), (1.0, "not comparable")):
        peers = [
            r
            for r in records
            if r["system"] not in (OURS, PLAIN) and r["temperature"] == temperature
        ]
        assert {record["exactness"] for record in peers} == {verdict}


def test_counts_agree_with_the_library(done, folder):
    _, records = done
    spec = Speculator.from_pretrained(str(folder), "early-exit:1", depth=3, dtype="float64")
    chat = [{"role": "user", "content": PROMPTS[0]}]
    output = spec.generate(chat, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    wanted = {"drafter": "early-exit:1", "depth": 3, "temperature": 0.0, "batch": 1, "id": "1"}
    (own,) = [record for record in records if wanted.items() <= record.items()]
    assert own["token_ids"] == list(output.token_ids)
    for name in ("target_calls", "drafted", "accepted", "prompt_tokens", "generated"):
        assert own[name] == getattr(output.stats, name), name
    assert sum(own["accepted_per_position"]) == own["accepted"]


def test_seconds_add_up(done):
    _, records = done
    for record in records:
        assert 0 < record["decode_s"] <= record["total_s"]
        if record["system"] in (OURS, PLAIN):
            parts = record["draft_s"] + record["verify_s"] + record["rest_s"]
            assert record["decode_s"] == pytest.approx(parts)
            assert record["decode_tokens"] == TOKENS
        else:
            assert record["first_token_s"] + record["decode_s"] == pytest.approx(record["total_s"])
            assert record["decode_tokens"] == TOKENS - 1, "the first comes with the prompt"


def test_trees_are_as_wide_and_as_large_as_they_were_asked_for(folder, prompts, tmp_path):
    shapes = {"drafters": ("early-exit:1",), "depths": (3,), "widths": (1, 2), "peers": ()}
    given = settings(folder, prompts, tmp_path / "raw.jsonl", matrix=matrix(**shapes), nodes=4)
    result = run_bench(given)
    assert result.exact
    records = [json.loads(line) for line in given.records.read_text().splitlines()]
    sizes = {
        width: [r["drafted"] / r["target_calls"] for r in records if r["width"] == width]
        for width in (1, 2)
    }
    assert 0 < max(sizes[1]) < max(sizes[2]) <= 4, "nodes a round"
    assert result.as_dict(by_category=False)["nodes"] == 4


def test_prompts_leave_room_for_every_token(folder, prompts, tmp_path):
    """The model reads 512 tokens, and the long prompt with its template has 320."""
    tight = {"matrix": matrix(peers=()), "max_prompt_tokens": 1000}
    for tokens, too_long in ((190, 0), (200, 1)):
        where = tmp_path / f"{tokens}.jsonl"
        result = run_bench(settings(folder, prompts, where, max_tokens=tokens, **tight))
        assert result.selection.too_long == too_long
        assert {row.requests for row in result.rows} == {4 - too_long}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": 1}, "max_tokens of the bench is 1; give at least 2"),
        ({"repeats": 0}, "repeats"),
        ({"per_category": 0}, "per_category"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens"),
        ({"threads": 0}, "threads"),
        ({"nodes": 65}, "nodes is 65"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_settings_are_refused(folder, prompts, tmp_path, change, said):
    with pytest.raises(InvalidSetting, match=said):
        settings(folder, prompts, tmp_path / "new.jsonl", **change)


def test_raw_results_are_never_overwritten(folder, prompts, tmp_path):
    old = tmp_path / "old.jsonl"
    old.write_text("worth keeping")
    with pytest.raises(InvalidSetting, match=r"old.jsonl.*exists"):
        settings(folder, prompts, old)
    with pytest.raises(InvalidSetting, match="give a folder that exists"):
        settings(folder, prompts, tmp_path / "no" / "new.jsonl")
    assert old.read_text() == "worth keeping"


def test_no_drafter_has_seen_a_prompt_before_its_cell_decodes_it(folder, prompts, tmp_path):
    """Otherwise one that remembers requests would be measured on its own answers."""
    cells = matrix(drafters=("suffix",), depths=(3, 4), temperatures=(0.0,), peers=())
    once = settings(folder, prompts, tmp_path / "once.jsonl", matrix=cells)
    twice = settings(folder, prompts, tmp_path / "twice.jsonl", matrix=cells, repeats=2)
    run_bench(once)
    run_bench(twice)
    records = [
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("once.jsonl", "twice.jsonl")
    ]
    calls = [
        {(r["id"], r["depth"], r["repeat"]): r["target_calls"] for r in found} for found in records
    ]
    assert calls[0].items() <= calls[1].items()
    for (prompt, depth, _), count in calls[1].items():
        assert count == calls[1][prompt, depth, 0]
