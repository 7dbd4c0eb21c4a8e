"""Counters and histograms of a service: what each report adds, and that the sums agree."""

from __future__ import annotations

import itertools
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from draftproof.core import Plan
from draftproof.server.latency import KEPT, ladder, quantile
from draftproof.server.metrics import CONTENT_TYPE, Metrics
from draftproof.stats.counters import Stats
from tests.server.reports import StandIn, ended, round_of, turn


def scraped(metrics, service=None):
    """(name, labels without the drafter's) -> value summed over drafters, as a scraper reads it."""
    text = metrics.exposition((service or StandIn()).snapshot()).decode()
    values = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = tuple(v for name, v in sorted(one.labels.items()) if name != "drafter")
            key = (one.name.removeprefix("draftproof_"), *labels)
            values[key] = values.get(key, 0) + one.value
    return values


@pytest.fixture
def played():
    """Two rounds: a chain of 4 of which 2 are kept, a tree of 6 nodes in 3 levels, plain rounds."""
    metrics = Metrics()
    metrics.round(
        round_of(
            turn("aac", request=1, drafted=4),
            turn("aaab", request=2, drafter="suffix", drafted=6, depth=3),
            turn("p", request=3, drafter="none"),
        )
    )
    metrics.round(round_of(turn("p", request=1), turn("a", request=2, drafter="suffix", drafted=2)))
    return metrics


def test_proposed_verified_accepted_and_emitted_reconcile(played):
    value = scraped(played)
    assert value["spec_decode_num_drafts_total",] == 3
    assert value["spec_decode_num_draft_tokens_total",] == 12
    assert value["spec_decode_num_accepted_tokens_total",] == 6
    calls = value["target_calls_total",]
    assert calls == 5
    assert value["spec_decode_num_verified_tokens_total",] == 12 + calls
    emitted = {
        origin: value["emitted_tokens_total", origin]
        for origin in ("accepted", "correction", "bonus", "plain")
    }
    assert emitted == {"accepted": 6, "correction": 1, "bonus": 1, "plain": 2}
    assert value["tokens_per_call_sum",] == sum(emitted.values())
    assert value["tokens_per_call_count",] == calls
    assert value["plain_rounds_total", "planned"] == 2
    assert value["batch_size_sum",] == calls


def test_positions_add_up(played):
    value = scraped(played)
    accepted = [
        value.get(("spec_decode_num_accepted_tokens_per_pos_total", f"{i}"), 0) for i in range(4)
    ]
    drafted = [
        value.get(("spec_decode_num_draft_tokens_per_pos_total", f"{i}"), 0) for i in range(4)
    ]
    assert accepted == [3, 2, 1, 0]
    assert drafted == [3, 3, 2, 1]


def test_drafters_are_told_apart(played):
    text = played.exposition(StandIn().snapshot()).decode()
    assert 'spec_decode_num_draft_tokens_total{drafter="ngram"} 4.0' in text
    assert 'spec_decode_num_draft_tokens_total{drafter="suffix"} 8.0' in text
    assert 'emitted_tokens_total{drafter="none",origin="plain"} 1.0' in text


def test_a_round_s_seconds_are_split_into_phases(played):
    value = scraped(played)
    phases = {
        phase: value["round_seconds_total", phase] for phase in ("draft", "verify", "rest", "other")
    }
    assert phases == pytest.approx({"draft": 0.1, "verify": 0.25, "rest": 0.05, "other": 0.1})


def test_a_request_s_times():
    metrics = Metrics()
    metrics.submitted(1)
    metrics.ended(ended())
    value = scraped(metrics)
    assert value["requests_submitted_total",] == value["requests_total", "stop"] == 1
    assert value["queue_seconds_sum",] == 0.5
    assert value["time_to_first_token_seconds_sum",] == 1.0
    assert value["time_per_output_token_seconds_sum",] == pytest.approx(0.2)
    assert value["request_seconds_sum",] == 3.0
    assert value["acceptance_rate_sum",] == 0.75
    assert value["prompt_tokens_total",] == 10
    assert value["shared_prompt_tokens_total",] == 4


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        (
            {"outcome": "cancelled", "first_token_s": None, "stats": Stats()},
            {"time_to_first_token", "time_per_output_token", "request"},
        ),
        ({"outcome": "deadline"}, {"time_per_output_token", "request"}),
        ({"stats": Stats(generated=1, target_calls=1)}, {"time_per_output_token"}),
        ({"samples": 11}, {"time_per_output_token"}),
    ],
    ids=["no token came", "cut short", "one token", "one token a sample"],
)
def test_times_that_mean_nothing_are_not_counted(changes, absent):
    metrics = Metrics()
    metrics.ended(ended(**changes))
    seconds = metrics.as_dict(StandIn().snapshot())["seconds"]
    assert {"time_to_first_token", "time_per_output_token", "request", "queue"} - set(
        seconds
    ) == absent


def test_gauges_are_those_of_the_moment_of_reading():
    metrics, service = Metrics(), StandIn()
    service.plans = {1: Plan(3), 2: Plan(0)}
    assert scraped(metrics, service)["requests_running",] == 2
    service.plans, service.draining = {}, True
    value = scraped(metrics, service)
    assert (value["requests_running",], value["draining",]) == (0, 1)
    assert (value["cache_tokens",], value["requests_waiting",]) == (4096, 2)


def test_refusals_are_counted_as_the_door_tells_them():
    metrics = Metrics()
    metrics.turned_away("overloaded")
    metrics.refused("queue_full")
    metrics.turned_away("overloaded")
    value = scraped(metrics)
    assert {key[1]: n for key, n in value.items() if key[0] == "requests_refused_total"} == {
        "overloaded": 2
    }


def test_two_services_in_a_process_count_apart(played):
    other = Metrics()
    assert ("target_calls_total",) not in scraped(other)
    assert other.registry is not played.registry


def test_every_metric_says_what_it_is():
    for family in Metrics().registry.collect():
        assert family.name.startswith("draftproof_")
        assert family.documentation.endswith(".")
        if family.name.endswith("seconds"):
            assert "Seconds" in family.documentation
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


def test_as_dict_is_what_speculation_brought(played):
    service = StandIn()
    service.plans = {7: Plan(4, width=2, nodes=8)}
    played.ended(ended())
    said = played.as_dict(service.snapshot())
    assert said["plans"] == [{"request": 7, "depth": 4, "width": 2, "nodes": 8}]
    total = said["total"]
    assert total["drafted"] == total["accepted"] + total["rejected"] == 12
    assert total["generated"] == sum(total["origins"].values()) == 10
    assert total["accepted"] == total["origins"]["accepted"] == sum(total["accepted_per_position"])
    assert total["drafts"] + sum(total["plain_rounds"].values()) == total["target_calls"]
    assert total["acceptance_rate"] == 0.5
    assert total["tokens_per_call"] == 2.0
    assert set(said["drafters"]) == {"ngram", "suffix", "none"}
    assert said["seconds"]["request"] == {"p50": 3.0, "p95": 3.0, "p99": 3.0}


def test_quantiles_are_of_the_latest_requests():
    metrics = Metrics()
    for i in range(KEPT + 100):
        metrics.ended(ended(total_s=float(i)))
    seconds = metrics.as_dict(StandIn().snapshot())["seconds"]["request"]
    assert seconds["p50"] == 100 + KEPT / 2 - 1
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0], 0.99) == 1.0


def test_bounds_lie_close_enough_for_quantiles():
    bounds = ladder(-3, 3)
    assert (bounds[0], bounds[-1]) == (0.001, 1000.0)
    assert all(1.4 < b / a < 1.7 for a, b in itertools.pairwise(bounds))


def test_a_reader_never_sees_half_a_round():
    metrics = Metrics()
    report = round_of(*(turn("aab", request=i, drafted=2) for i in range(20)))
    done = threading.Event()

    def play():
        while not done.is_set():
            metrics.round(report)

    player = threading.Thread(target=play)
    player.start()
    try:
        for _ in range(10):
            value = scraped(metrics)
            calls = value.get(("target_calls_total",), 0)
            assert calls == value["batch_size_sum",]
            assert calls == value.get(("tokens_per_call_count",), 0)
            assert value.get(("emitted_tokens_total", "accepted"), 0) == 2 * calls
    finally:
        done.set()
        player.join()
