"""Hundreds of requests of all kinds, good and bad, from many clients at once: nothing breaks,
nothing is left behind, and who is answered is answered right."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from dataclasses import replace

import httpx
import psutil
import pytest

import draftproof as dp
from draftproof.config import ServerSettings
from draftproof.sampling.grammar import Grammar
from draftproof.server.app import make_app
from draftproof.server.live import Live
from draftproof.server.run import Run
from draftproof.service.request import Request
from tests.server.conftest import wait_for
from tests.server.crowd import KINDS, OPTIONS, Answer, crowd
from tests.server.serving import served

pytest.importorskip("llguidance")

CLIENTS, FIRST, REQUESTS = 32, 96, 500
GROWTH = 20 << 20
"""Bytes that a process may grow by between two crowds: allocators keep what they once had."""
REFUSED = {"huge": {413}, "broken": {400}, "unknown": {400}, "wrong": {400}, "many": {400}}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The slow drafter is still slow enough to be late."""
    monkeypatch.setattr("tests.server.conftest.Slow.pause_s", 0.004)


class Ends(Live):
    """Counts how requests ended, and keeps nothing of them."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def ended(self, report):
        self.counts[report.outcome, report.first_token_s is not None] += 1


def test_five_hundred_requests_of_all_kinds(spec, make_service):
    few_rows = spec.with_drafter(spec.drafter, replace(spec.settings, max_batch=16))
    ends = Ends()
    service = make_service(start=False, speculator=few_rows, listener=ends)
    patient = make_app(few_rows, service, ServerSettings(max_body_bytes=200_000, max_seconds=120))
    hasty = make_app(few_rows, service, ServerSettings(max_seconds=1))
    with served(patient) as address, served(hasty) as short_of_time:
        wait_for(lambda: service.ready, seconds=60)
        others = alive()
        asyncio.run(crowd(address, short_of_time, CLIENTS, FIRST, seed=1))
        before = at_rest(service, others)
        done = asyncio.run(crowd(address, short_of_time, CLIENTS, REQUESTS, seed=2))
        grown = at_rest(service, others) - before
        assert httpx.get(f"{address}/health").status_code == 200
    assert len(done) == REQUESTS
    check_refusals(done)
    check_good(spec, [one for one in done if one.kind == "good"])
    check_departures(done, ends.counts)
    assert grown < GROWTH


def alive() -> list[object]:
    """Requests that somebody still holds."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) in (Run, Request)]


def at_rest(service, others: list[object]) -> int:
    """Bytes of the process, once the service has let go of everything but what other tests hold."""
    known = {id(one) for one in others}
    wait_for(lambda: service.snapshot().sequences + service.snapshot().waiting == 0, seconds=30)
    snapshot, machine = service.snapshot(), service._machine
    assert (snapshot.running, snapshot.waiting) == (0, 0)
    assert snapshot.cache_tokens_used == machine.loop.num_kept
    assert machine.lost_tokens == 0
    assert not machine.loop.entries
    assert not service._worker.requests

    wait_for(lambda: all(id(one) in known for one in alive()), seconds=30)
    return psutil.Process().memory_info().rss


def check_refusals(done: list[Answer]) -> None:
    """Every kind came up, and what cannot be was refused with a word about it."""
    statuses = {kind: {one.status for one in done if one.kind == kind} for kind in KINDS}
    for kind, wanted in REFUSED.items():
        assert statuses[kind] == wanted, kind
    assert statuses["late"] >= {504}
    for one in done:
        if one.kind in REFUSED:
            assert one.error["message"]
        if one.kind == "late":
            assert one.error["code"] == "deadline_exceeded"


def check_good(spec: dp.Speculator, good: list[Answer]) -> None:
    """Each has its whole answer, which is the library's."""
    for one in good:
        assert (one.status, one.error) == (200, None)
    outputs = spec.plain([one.prompt for one in good], [params(one.body) for one in good])
    for one, output in zip(good, outputs, strict=True):
        assert one.texts == [sample.text for sample in output.samples], one.body
        assert one.logprobs in (None, sum(len(sample.token_ids) for sample in output.samples))
    seen = Counter(name for one in good for name in one.body)
    assert min(seen[name] for name in OPTIONS) >= 10
    wishes = [one.body["speculation"] for one in good if "speculation" in one.body]
    for wish in ({"enabled": False}, {"drafter": "slow"}):
        assert wish in wishes
    assert len(good) > REQUESTS / 3


def check_departures(done: list[Answer], ends: Counter) -> None:
    """Clients left while they waited, while they were served, and in the middle of a stream."""
    left = [one for one in done if one.kind in ("leaves", "stops listening")]
    assert all(one.status in (0, 200) for one in left)
    assert sum(one.kind == "stops listening" and one.status == 200 for one in left) >= 10
    assert ends["cancelled", False] >= 3, "nothing had come"
    assert ends["cancelled", True] >= 10
    assert {outcome for outcome, _ in ends} == {"stop", "length", "cancelled", "deadline"}


def params(body: dict) -> dp.SamplingParams:
    """A request in the library's words."""
    same = ("max_tokens", "temperature", "seed", "top_k", "top_p", "min_p", "n", "stop")
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    fields = {name: body[name] for name in (*same, *penalties) if name in body}
    if "logit_bias" in body:
        fields["logit_bias"] = {int(id_): bias for id_, bias in body["logit_bias"].items()}
    if "response_format" in body:
        fields["grammar"] = Grammar.json_object()
    return dp.SamplingParams(**fields)
