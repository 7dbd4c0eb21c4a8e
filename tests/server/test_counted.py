"""Metrics of a real service: what was counted round by round is what requests were told."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from draftproof.config import Speculation
from draftproof.drafters.ngram import NgramDrafter
from draftproof.sampling.params import SamplingParams
from draftproof.server.live import Together
from draftproof.server.metrics import Metrics
from draftproof.service.records import Finished, Progress
from draftproof.service.service import Service
from draftproof.stats.counters import Stats
from tests.server.test_metrics import scraped
from tests.tiny import prompt, shared_target, speculator

REQUESTS = [
    ({"max_tokens": 12}, {}),
    ({"max_tokens": 20, "temperature": 0.8, "n": 2}, {}),
    ({"max_tokens": 9}, {"drafter": "ngram"}),
    ({"max_tokens": 30, "temperature": 0.3}, {"drafter": "ngram", "depth": 6}),
    ({"max_tokens": 7}, {"enabled": False}),
    ({"max_tokens": 1}, {}),
]


class Watching:
    """Counts tokens where drafters propose them, and leaves them as they are."""

    def __init__(self, drafter):
        self.name, self.proposals = drafter.name, drafter.proposals
        self.proposed = 0
        self._drafter = drafter

    def begin(self, target_cache):
        drafting = self._drafter.begin(target_cache)

        def propose(contexts, plans):
            drafts = drafting.propose(contexts, plans)
            self.proposed += sum(len(draft.tokens) for draft in drafts)
            return drafts

        others = ("observe", "read", "release", "forget", "move")
        kept = {name: getattr(drafting, name) for name in others if hasattr(drafting, name)}
        return SimpleNamespace(propose=propose, **kept)


class Scoring:
    """Counts the columns that passes of a target score; reading prompts is none of them."""

    def __init__(self, target):
        self.scored = 0
        self._forward = target.forward
        target.forward = self._count

    def _count(self, batch, cache):
        self.scored += sum(batch.counts)
        return self._forward(batch, cache)


class Recorder:
    """Keeps what a listener is told."""

    def __init__(self):
        self.rounds, self.requests = [], []
        self._ended = threading.Semaphore(0)

    def submitted(self, request_id):
        pass

    def refused(self, reason):
        pass

    def round(self, report):
        self.rounds.append(report)

    def ended(self, report):
        self.requests.append(report)
        self._ended.release()

    def wait(self, requests):
        for _ in range(requests):
            assert self._ended.acquire(timeout=60)


@pytest.fixture(scope="module")
def served_requests():
    """What came of `REQUESTS` and one that is cancelled, served side by side."""
    made = speculator(shared_target("llama"), "close-model", depth=4)
    scoring = Scoring(made.target)
    own, look_up = Watching(made.drafter), Watching(NgramDrafter())
    made = made.with_drafter(own)
    metrics, recorder = Metrics(), Recorder()
    service = Service(made, drafters={"ngram": look_up}, listener=Together(metrics, recorder))
    service.start()
    assert service.wait_until_ready(60)
    own.proposed = look_up.proposed = scoring.scored = 0
    events, tickets = [], []
    for i, (params, wish) in enumerate(REQUESTS):
        ids = prompt(10 + i, seed=i) + prompt(10 + i, seed=i)
        service.submit(
            ids, SamplingParams(**params), events.append, speculation=Speculation(**wish)
        )

    def leave(event):
        if isinstance(event, Progress) and tickets:
            tickets[0].cancel()

    tickets.append(service.submit(prompt(8), SamplingParams(max_tokens=60), leave))
    recorder.wait(len(REQUESTS) + 1)
    snapshot = service.snapshot()
    service.close()
    return SimpleNamespace(
        metrics=metrics,
        rounds=recorder.rounds,
        requests=recorder.requests,
        events=events,
        snapshot=snapshot,
        scored=scoring.scored,
        proposed={made.drafter.name: own.proposed, "ngram": look_up.proposed},
    )


def test_what_drafters_proposed_is_what_was_verified(served_requests):
    said = served_requests.metrics.as_dict(served_requests.snapshot)["drafters"]
    assert {name: said[name]["drafted"] for name in said if name != "none"} == (
        served_requests.proposed
    )
    assert said["none"]["drafted"] == 0
    assert all(one["drafted"] == one["accepted"] + one["rejected"] for one in said.values())


def test_rounds_and_requests_agree_for_every_drafter(served_requests):
    by_drafter = {}
    for report in served_requests.requests:
        by_drafter.setdefault(report.drafter, Stats()).add(report.stats)
    assert len(by_drafter) == 3
    said = served_requests.metrics.as_dict(served_requests.snapshot)["drafters"]
    assert set(said) == set(by_drafter)
    for drafter, stats in by_drafter.items():
        told = stats.as_dict()
        for name in (
            "generated",
            "target_calls",
            "drafted",
            "accepted",
            "undrafted_calls",
            "drafted_per_position",
            "accepted_per_position",
            "plain_rounds",
        ):
            assert said[drafter][name] == told[name], (drafter, name)


def test_emitted_tokens_are_those_that_users_got(served_requests):
    value = scraped(served_requests.metrics)
    users = Counter()
    for event in served_requests.events:
        if isinstance(event, Progress):
            users.update(event.step.origins)
    (cut,) = [one for one in served_requests.requests if one.outcome == "cancelled"]
    emitted = {name[1]: n for name, n in value.items() if name[0] == "emitted_tokens_total"}
    assert sum(emitted.values()) == sum(users.values()) + cut.stats.generated
    finished = sum(
        event.stats.generated for event in served_requests.events if isinstance(event, Finished)
    )
    assert sum(users.values()) == finished
    assert emitted["accepted"] == value["spec_decode_num_accepted_tokens_total",]


def test_counters_reconcile(served_requests):
    value = scraped(served_requests.metrics)
    total = {}
    for name, number in value.items():
        total[name[0]] = total.get(name[0], 0) + number
    calls = total["target_calls_total"]
    assert calls == sum(len(report.turns) for report in served_requests.rounds)
    assert calls == total["batch_size_sum"] == total["tokens_per_call_count"]
    assert total["tokens_per_call_sum"] == total["emitted_tokens_total"]
    assert calls == total["spec_decode_num_drafts_total"] + total["plain_rounds_total"]
    assert value["emitted_tokens_total", "plain"] == total["plain_rounds_total"]
    drafted = total["spec_decode_num_draft_tokens_total"]
    assert total["spec_decode_num_verified_tokens_total"] == served_requests.scored
    assert total["spec_decode_num_draft_tokens_per_pos_total"] == drafted
    accepted = total["spec_decode_num_accepted_tokens_total"]
    assert total["spec_decode_num_accepted_tokens_per_pos_total"] == accepted
    assert 0 < accepted < drafted
    assert value["requests_total", "length"] == len(REQUESTS)
    assert value["requests_total", "cancelled"] == 1
    assert total["queue_seconds_count"] == len(REQUESTS) + 1
    assert total["time_per_output_token_seconds_count"] == len(REQUESTS) - 1
