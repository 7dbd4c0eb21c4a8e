"""The page's routes: what is served to whom, and the stream of events."""

from __future__ import annotations

import json
import time

import httpx
import pytest
from fastapi import FastAPI

from draftproof.config import ServerSettings
from draftproof.core import Plan
from draftproof.server.door import Door
from draftproof.server.live import MAX_WATCHERS, Live, Together
from draftproof.server.metrics import CONTENT_TYPE, Metrics
from draftproof.server.page import routes
from tests.server.reports import StandIn, ended, round_of, turn
from tests.server.serving import served


class Watched:
    """Everything that a page is made from."""

    def __init__(self, *, keys=(), show_text=False):
        self.service, self.metrics, self.live = StandIn(), Metrics(), Live()
        self.listener = Together(self.metrics, self.live)
        self.app = FastAPI()
        self.app.add_middleware(Door, settings=ServerSettings(keys=frozenset(keys)))
        page = routes(self.service, self.metrics, self.live, show_text=show_text)
        self.app.include_router(page)


def messages(response):
    for line in response.iter_lines():
        if line:
            yield json.loads(line.removeprefix("data: "))


def wait_for(condition):
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", "text/html"),
        ("static/page.js", "text/javascript"),
        ("static/chart.js", "text/javascript"),
        ("static/requests.js", "text/javascript"),
        ("static/page.css", "text/css"),
        ("static/icon.svg", "image/svg+xml"),
    ],
)
def test_files_come_with_a_strict_policy(name, kind):
    with served(Watched().app) as address:
        answer = httpx.get(f"{address}/{name}")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith(kind)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "https://" not in answer.text


@pytest.mark.parametrize("name", ["static/none.js", "static/..%2fpage.py", "static/"])
def test_nothing_else_is_served(name):
    with served(Watched().app) as address:
        assert httpx.get(f"{address}/{name}").status_code == 404


def test_metrics_and_speculation_are_told():
    watched = Watched()
    watched.listener.round(round_of(turn("aac", drafted=4)))
    with served(watched.app) as address:
        answer = httpx.get(f"{address}/metrics")
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        assert 'draftproof_spec_decode_num_draft_tokens_total{drafter="ngram"} 4.0' in answer.text
        said = httpx.get(f"{address}/v1/speculation").json()
    assert said["drafters"]["ngram"]["acceptance_rate"] == 0.5


def test_events_hold_the_state_and_what_happened_without_texts():
    watched = Watched()
    with (
        served(watched.app) as address,
        httpx.stream("GET", f"{address}/v1/events", timeout=5) as response,
    ):
        assert response.headers["Content-Type"].startswith("text/event-stream")
        stream = messages(response)
        assert next(stream)["turns"] == []
        watched.service.plans = {1: Plan(4)}
        watched.listener.round(round_of(turn("aac", drafted=4, texts=["private"] * 3)))
        said = next(message for message in stream if message["turns"])
    assert "private" not in json.dumps(said)
    assert said["shows_text"] is False
    assert said["plans"] == {"1": [4, 1]}
    assert said["cache"] == [512, 4096]
    assert (said["generated"], said["drafted"], said["accepted"]) == (3, 4, 2)
    assert said["turns"][0]["origins"] == ["a", "a", "c"]


def test_a_key_is_needed_where_there_is_data():
    watched = Watched(keys=["open"])
    with served(watched.app) as address:
        for name in ("v1/events", "v1/speculation"):
            assert httpx.get(f"{address}/{name}").status_code == 401
        assert httpx.get(f"{address}/").status_code == 200
        key = {"Authorization": "Bearer open"}
        assert httpx.get(f"{address}/v1/speculation", headers=key).status_code == 200


def test_who_leaves_is_forgotten():
    watched = Watched()
    with served(watched.app) as address:
        with httpx.stream("GET", f"{address}/v1/events") as response:
            stream = messages(response)
            next(stream)
            assert watched.live.watchers == 1
        wait_for(lambda: watched.live.watchers == 0)


def test_one_watcher_too_many_is_refused():
    watched = Watched()
    full = [watched.live.watch() for _ in range(MAX_WATCHERS)]
    for one in full:
        one.__enter__()
    with served(watched.app) as address:
        assert httpx.get(f"{address}/v1/events").status_code == 503


def test_the_stream_ends_when_the_service_has_drained():
    watched = Watched()
    watched.service.draining = True
    watched.service.plans = {1: Plan(4)}
    watched.service.waiting = 0
    with (
        served(watched.app) as address,
        httpx.stream("GET", f"{address}/v1/events", timeout=5) as response,
    ):
        stream = messages(response)
        assert next(stream)["draining"]
        watched.listener.ended(ended())
        watched.service.plans = {}
        assert next(stream)["ended"]
        assert list(stream) == []
