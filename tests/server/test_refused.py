"""Every error that is answered before the service has the request is counted once, by its code."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from draftproof.config import ServerSettings
from draftproof.errors import DeadlineExceeded, DraftproofError, IncompatiblePair
from draftproof.server import door, page
from draftproof.server.app import make_app
from draftproof.server.live import Live
from draftproof.server.metrics import Metrics
from tests.server.conftest import Client, Slow, wait_for, whole
from tests.server.test_metrics import scraped

PATH = "/v1/completions"
KEYED = ServerSettings(keys=frozenset({"key"}), max_running=1)
OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def posted(**body):
    return lambda client: client.post(PATH, **body)


ASKED = {
    "invalid_json": lambda client: client.request(
        "POST", PATH, content=b"{", headers={"Content-Type": "application/json"}
    ),
    "missing_parameter": posted(),
    "unknown_parameter": posted(prompt="x", surprise=1),
    "unsupported_parameter": posted(prompt="x", echo=True),
    "invalid_value": posted(prompt="x", n=0),
    "invalid_prompt": posted(prompt=[9999]),
    "limit_exceeded": posted(prompt="x", n=17),
    "context_length_exceeded": posted(prompt="x" * 600),
    "model_not_found": posted(prompt="x", model="gpt"),
    "body_too_large": posted(prompt="x" * 9000),
    "not_found": lambda client: client.get("/nothing"),
    "method_not_allowed": lambda client: client.get(PATH),
}
RAISED = {
    "incompatible_pair": IncompatiblePair("no"),
    "deadline_exceeded": DeadlineExceeded("late"),
    "request_failed": DraftproofError("no"),
    "internal_error": KeyError("no"),
}
STATES = {
    "warming_up": lambda _service: None,
    "draining": lambda service: service.drain(0),
    "failed": lambda service: setattr(service, "fault", KeyError()),
}
BY_HAND = {
    "invalid_api_key",
    "slow_body",
    "too_many_requests",
    "too_many_watch",
    "overloaded",
}


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def made(spec, metrics):
    """A client of a service whose refusals are counted."""

    def make(service, settings=None, key=None):
        settings = settings or ServerSettings(max_body_bytes=8000)
        part = page.routes(service, metrics, Live())
        app = make_app(spec, service, settings, parts=[part], refused=metrics.turned_away)
        return Client(app, key)

    return make


def refused(metrics):
    """How often, by reason."""
    value = scraped(metrics)
    return {key[1]: n for key, n in value.items() if key[0] == "requests_refused_total"}


def test_the_list_of_reasons_is_complete():
    row = re.search(r"`reason` of refusals \| the `code` of the error:(.*)\|", OPERATIONS)
    documented = re.findall(r"`(\w+)`", row[1])
    assert sorted(documented) == sorted({*ASKED, *RAISED, *STATES, *BY_HAND})


@pytest.mark.parametrize("code", ASKED)
def test_what_cannot_be(made, service, metrics, code):
    answer = ASKED[code](made(service))
    assert answer.json()["error"]["code"] == code
    assert refused(metrics) == {code: 1}


@pytest.mark.parametrize("code", RAISED)
def test_what_fails_before_it_is_queued(made, service, metrics, monkeypatch, code):
    def broken(*_arguments, **_named):
        raise RAISED[code]

    monkeypatch.setattr(service, "submit", broken)
    answer = made(service).post(PATH, prompt="x")
    assert answer.json()["error"]["code"] == code
    assert refused(metrics) == {code: 1}


@pytest.mark.parametrize("code", STATES)
def test_a_service_that_is_not_ready(made, make_service, metrics, code):
    service = make_service(start=False, listener=metrics)
    STATES[code](service)
    answer = made(service).post(PATH, prompt="x")
    assert answer.json()["error"]["code"] == code
    assert refused(metrics) == {code: 1}


def test_wrong_keys_slow_bodies_and_too_many_pages(made, service, metrics, monkeypatch):
    assert made(service, KEYED).get("/v1/models").status_code == 401
    monkeypatch.setattr(page, "MAX_WATCHERS", 0)
    assert made(service).get("/v1/events").status_code == 503
    monkeypatch.setattr(door, "READ_S", 0)
    assert made(service).post(PATH, prompt="x").status_code == 408
    assert refused(metrics) == {"invalid_api_key": 1, "too_many_watch": 1, "slow_body": 1}


def test_a_full_queue_and_a_key_that_has_enough(spec, made, make_service, metrics):
    alone = spec.with_drafter(Slow(), replace(spec.settings, max_batch=1))
    service = make_service(speculator=alone, max_waiting=1, listener=metrics)
    client, keyed = made(service), made(service, KEYED, "key")

    def ask(client):
        return client.post(PATH, prompt="hello", max_tokens=20, ignore_eos=True)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, keyed)
        wait_for(lambda: service.snapshot().running == 1)
        assert ask(keyed).status_code == 429
        second = pool.submit(ask, client)
        wait_for(lambda: service.snapshot().waiting == 1)
        assert ask(client).status_code == 429
        assert whole(first.result())
        assert whole(second.result())
    assert refused(metrics) == {"too_many_requests": 1, "overloaded": 1}
    assert scraped(metrics)["requests_submitted_total",] == 2


def test_what_the_service_has_is_no_refusal(made, make_service, metrics):
    service = make_service(listener=metrics)
    client = made(service, ServerSettings(max_seconds=0.2))
    sent = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}
    answer = client.post(PATH, **sent, speculation={"drafter": "slow"})
    assert answer.status_code == 504
    wait_for(lambda: scraped(metrics).get(("requests_total", "deadline")) == 1)
    assert refused(metrics) == {}
