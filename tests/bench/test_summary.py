"""Medians, ranges and ratios, checked by hand-made numbers."""

from __future__ import annotations

import pytest

from draftproof.bench.matrix import OURS, PLAIN, Cell
from draftproof.bench.summary import Spread, categories, percentile, summarise
from tests.bench.conftest import OUR_CELL, PEER_CELL, PLAIN_CELL, matrix, record


def rows(records, category=None, **changes):
    found = summarise(matrix(**changes), records, category)
    return {row.cell.label: row for row in found}


def test_ratios_are_taken_prompt_by_prompt():
    plain, ours = (10.0, 20.0, 90.0), (30.0, 30.0, 90.0)
    records = [record(PLAIN_CELL, i, rate) for i, rate in enumerate(plain)]
    records += [record(OUR_CELL, i, rate) for i, rate in reversed(list(enumerate(ours)))]
    records += [record(PEER_CELL, i, 5.0) for i in range(3)]
    row = rows(records)["ngram, depth 4"]
    assert row.tokens_per_second == Spread(pytest.approx(30), pytest.approx(30), pytest.approx(90))
    ratio = Spread(pytest.approx(1.5), pytest.approx(1), pytest.approx(3))
    assert row.speedup == ratio, "the ratio of the medians is 1.5 too, its range is not"
    assert row.speedup_over_transformers.high == pytest.approx(18)
    assert rows(records)["plain"].speedup is None
    assert rows(records)["plain"].speedup_over_transformers.median == pytest.approx(4)
    assert rows(records)["transformers"].speedup_over_transformers is None


def test_without_the_peer_nothing_is_stated_against_it():
    row = rows([record(PLAIN_CELL), record(OUR_CELL)], peers=())["ngram, depth 4"]
    assert row.speedup.median == pytest.approx(1)
    assert row.speedup_over_transformers is None


def test_reading_the_prompt_counts_end_to_end_only():
    row = rows([record(PLAIN_CELL, rate=10.0)])["plain"]
    assert row.tokens_per_second.median == pytest.approx(10)
    assert row.tokens_per_second_end_to_end.median == pytest.approx(5)
    assert row.latency_p50_s == pytest.approx(2)


def test_first_tokens_of_a_peer_are_not_decoded_in_its_decoding_time():
    late = record(PEER_CELL, decode_tokens=8, decode_s=4.0)
    assert rows([late])["transformers"].tokens_per_second.median == pytest.approx(2)
    all_at_once = record(PEER_CELL, decode_tokens=0, decode_s=0.0)
    assert rows([all_at_once])["transformers"].tokens_per_second is None
    assert rows([record(PLAIN_CELL), all_at_once])["transformers"].speedup is None


def test_the_prompts_of_a_batch_share_their_time():
    cell = Cell(PLAIN, None, None, 0.0, 2)
    batch = [record(cell, decode_s=1.0), record(cell, decode_s=4.0)]
    row = rows(batch, batches=(2,))["plain"]
    assert row.requests == 2
    assert row.tokens_per_second.median == pytest.approx(20 / 4)


def test_acceptance_is_counted_over_all_drafts():
    counts = [
        {
            "drafted": 6,
            "accepted": 3,
            "drafted_per_position": (4, 2),
            "target_calls": 4,
            "accepted_per_position": (2, 1),
        },
        {
            "drafted": 4,
            "accepted": 4,
            "drafted_per_position": (4,),
            "target_calls": 1,
            "accepted_per_position": (4,),
        },
    ]
    row = rows([record(OUR_CELL, i, **own) for i, own in enumerate(counts)])["ngram, depth 4"]
    assert row.acceptance_rate == pytest.approx(0.7)
    assert row.acceptance_by_position == pytest.approx((6 / 8, 1 / 2))
    assert row.tokens_per_call == pytest.approx(20 / 5)


def test_time_is_split_without_the_prompt():
    parts = {"prefill_s": 9.0, "draft_s": 1.0, "verify_s": 2.0, "rest_s": 1.0}
    share = rows([record(OUR_CELL, **parts)])["ngram, depth 4"].time_share
    assert (share.draft, share.verify, share.rest) == (0.25, 0.5, 0.25)
    assert rows([record(PEER_CELL)])["transformers"].time_share is None


def test_peak_memory_is_the_largest_known():
    records = [record(OUR_CELL, i, peak_bytes=peak) for i, peak in enumerate((5, None, 7))]
    assert rows(records)["ngram, depth 4"].peak_bytes == 7
    assert rows([record(OUR_CELL, peak_bytes=None)])["ngram, depth 4"].peak_bytes is None


def test_workloads_are_summed_up_by_themselves():
    records = [
        record(PLAIN_CELL, 0, 10.0, category="edit"),
        record(PLAIN_CELL, 1, 10.0, category="story"),
        record(OUR_CELL, 0, 40.0, category="edit"),
        record(OUR_CELL, 1, 10.0, category="story"),
    ]
    assert categories(records) == ["edit", "story"]
    assert rows(records, "edit")["ngram, depth 4"].speedup.median == pytest.approx(4)
    assert rows(records, "story")["ngram, depth 4"].speedup.median == pytest.approx(1)


def test_a_batch_of_several_workloads_is_mixed():
    cell = Cell(PLAIN, None, None, 0.0, 2)
    pairs = [(0, "edit"), (0, "story"), (1, "chat"), (1, "chat")]
    records = [record(cell, group, category=name) for group, name in pairs]
    assert categories(records) == ["chat", "mixed"]
    assert rows(records, "mixed", batches=(2,))["plain"].requests == 2
    assert rows(records, "edit", batches=(2,))["plain"].requests == 0


def test_settings_are_compared_within_themselves():
    hot = [Cell(PLAIN, None, None, 1.0, 1), Cell(OURS, "ngram", 4, 1.0, 1, 1)]
    records = [record(PLAIN_CELL, rate=10.0), record(OUR_CELL, rate=20.0)]
    records += [record(hot[0], rate=1.0), record(hot[1], rate=5.0)]
    found = summarise(matrix(temperatures=(0.0, 1.0)), records)
    ratios = [row.speedup.median for row in found if row.cell.system == OURS]
    assert ratios == pytest.approx([2, 5])


def test_a_cell_that_was_not_run_has_a_row_without_numbers():
    peers = ("transformers-lookup",)
    row = rows([], batches=(2,), peers=peers)["transformers-lookup"]
    assert (row.requests, row.exactness, row.tokens_per_second) == (0, {}, None)
    assert row.cell.unsupported is not None


def test_percentiles_lie_between_the_values():
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == pytest.approx(2.5)
    assert percentile([0.0, 10.0], 0.95) == pytest.approx(9.5)
