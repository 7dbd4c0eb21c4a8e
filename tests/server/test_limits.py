"""Every limit: what is over it is refused with a status that says so, and others go on."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from draftproof.server import door, order
from draftproof.server.app import make_app
from tests.server.conftest import Client, Slow, events, wait_for, whole

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SLOW = {"speculation": {"drafter": "slow"}, "ignore_eos": True}
"""About 20 ms a token."""


def refused(answer, status, code):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    if status in (429, 503):
        assert int(answer.headers["retry-after"]) >= 1
    return error


def test_lengths_counts_and_depths(make_client):
    limits = {
        "max_prompt_tokens": 6,
        "max_tokens_limit": 8,
        "max_prompts": 2,
        "max_depth": 3,
        "max_stops": 2,
    }
    client = make_client(**limits)
    within = {
        "prompt": ["hello", "x"],
        "max_tokens": 8,
        "stop": ["a"],
        "stop_token_ids": [9],
        "speculation": {"depth": 3},
    }
    assert whole(client.post(COMPLETIONS, **within))
    answer = client.post(COMPLETIONS, **within | {"speculation": {"depth": "auto"}})
    assert "start it with 'auto'" in refused(answer, 400, "invalid_value")["message"]
    for beyond, param in (
        ({"prompt": ["hello", "x", "y"]}, "prompt"),
        ({"max_tokens": 9}, "max_tokens"),
        ({"stop": ["a", "b"]}, "stop"),
        ({"speculation": {"depth": 4}}, "speculation.depth"),
    ):
        answer = client.post(COMPLETIONS, **within | beyond)
        assert refused(answer, 400, "limit_exceeded")["param"] == param
    for name in ("max_tokens", "max_completion_tokens"):
        chat = {"messages": [{"role": "user", "content": "x"}], name: 9}
        assert refused(client.post(CHAT, **chat), 400, "limit_exceeded")["param"] == name
    answer = client.post(COMPLETIONS, **within | {"prompt": ["hello!!"]})
    assert refused(answer, 400, "context_length_exceeded")["param"] == "prompt"


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (COMPLETIONS, {"prompt": ["x", "y"], "logprobs": 4}, "logprobs"),
        (
            CHAT,
            {
                "messages": [{"role": "user", "content": "x"}],
                "logprobs": True,
                "top_logprobs": 9,
            },
            "top_logprobs",
        ),
    ],
)
def test_an_answer_may_have_so_many_logprobs(client, monkeypatch, path, body, name):
    monkeypatch.setattr(order, "MAX_ALTERNATIVES", 200)
    assert whole(client.post(path, **body, n=2, max_tokens=10))
    error = refused(client.post(path, **body, n=2, max_tokens=11), 400, "limit_exceeded")
    assert error["param"] == name
    assert "220" in error["message"]


def test_the_services_own_limits(spec, make_service):
    client = Client(make_app(spec, make_service(max_length=40, max_samples=2)))
    assert whole(client.post(COMPLETIONS, prompt="hello", n=2, max_tokens=35))
    answer = client.post(COMPLETIONS, prompt="hello", max_tokens=36)
    refused(answer, 400, "context_length_exceeded")
    refused(client.post(COMPLETIONS, prompt="hello", n=3), 400, "limit_exceeded")
    chat = client.post(CHAT, messages=[{"role": "user", "content": "x"}], ignore_eos=True)
    assert whole(chat)["usage"]["total_tokens"] == 40


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_be_so_large(make_client, chunked):
    def parts(size):
        yield b'{"prompt": "hello", "max_tokens": 1, "user": "'
        yield b"x" * size
        yield b'"}'

    async def drip(size):
        for part in parts(size):
            yield part

    client = make_client(max_body_bytes=1000)
    for size, status in ((900, 200), (1000, 413)):
        content = drip(size) if chunked else b"".join(parts(size))
        headers = {"Content-Type": "application/json"}
        answer = client.request("POST", COMPLETIONS, content=content, headers=headers)
        assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == "body_too_large"


def test_a_full_queue_sends_the_next_one_away(spec, make_service):
    alone = spec.with_drafter(Slow(), replace(spec.settings, max_batch=1))
    service = make_service(speculator=alone, max_waiting=1)
    client = Client(make_app(alone, service))

    def ask():
        return client.post(COMPLETIONS, prompt="hello", max_tokens=20, ignore_eos=True)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask)
        wait_for(lambda: service.snapshot().running == 1)
        second = pool.submit(ask)
        wait_for(lambda: service.snapshot().waiting == 1)
        refused(ask(), 429, "overloaded")
        assert whole(first.result()) is not None
        assert whole(second.result()) is not None
    assert whole(ask())


def test_a_key_may_have_so_many_requests_running(make_client, service):
    client = make_client(key="one", keys=frozenset({"one", "two"}), max_running=1)
    other = Client(client.app, "two")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.complete, max_tokens=20, **SLOW)
        wait_for(lambda: service.snapshot().running == 1)
        refused(client.post(COMPLETIONS, prompt="x"), 429, "too_many_requests")
        assert client.get("/v1/models").status_code == 200
        assert other.complete(max_tokens=1)
        assert first.result()
    assert client.complete(max_tokens=1)


def test_a_request_has_so_much_time(make_client, service):
    client = make_client(max_seconds=0.3)
    assert client.complete(max_tokens=1)
    error = refused(
        client.post(COMPLETIONS, prompt="hello", max_tokens=400, **SLOW), 504, "deadline_exceeded"
    )
    assert error["type"] == "timeout_error"
    answer = client.post(COMPLETIONS, prompt="hello", max_tokens=400, stream=True, **SLOW)
    assert answer.status_code == 200, "the time was not over when it began"
    *chunks, last = events(answer.text)
    assert len(chunks) > 2
    assert '"code":"deadline_exceeded"' in last
    wait_for(lambda: service.snapshot().running == 0)


def test_time_is_looked_at_between_prompts(make_client, service, spec, monkeypatch):
    encode, submit = type(spec).encode, service.submit
    read, queued = [], []

    def slowly(self, prompt):
        time.sleep(0.2)
        read.append(prompt)
        return encode(self, prompt)

    def queue(*arguments, **named):
        time.sleep(0.2)
        queued.append(submit(*arguments, **named))
        return queued[-1]

    client = make_client(max_seconds=0.3)
    body = {"prompt": ["x"] * 16, "max_tokens": 1}
    with monkeypatch.context() as patch:
        patch.setattr(type(spec), "encode", slowly)
        error = refused(client.post(COMPLETIONS, **body), 504, "deadline_exceeded")
    assert "fewer or shorter prompts" in error["message"]
    assert 1 <= len(read) <= 2
    with monkeypatch.context() as patch:
        patch.setattr(service, "submit", queue)
        refused(client.post(COMPLETIONS, **body), 504, "deadline_exceeded")
    assert 1 <= len(queued) <= 2
    wait_for(lambda: service.snapshot().running + service.snapshot().waiting == 0)


def test_before_the_first_round_nothing_is_taken(spec, make_service):
    service = make_service(start=False)
    client = Client(make_app(spec, service))
    health = client.get("/health")
    assert (health.status_code, health.json()) == (503, {"status": "warming up"})
    bare = client.request("HEAD", "/health")
    assert (bare.status_code, bare.headers["retry-after"]) == (503, "10")
    refused(client.post(COMPLETIONS, prompt="x"), 503, "warming_up")
    service.start()
    wait_for(lambda: client.get("/health").status_code == 200)
    assert client.request("HEAD", "/health").status_code == 200
    assert client.complete(max_tokens=1)
    service.close()


def test_while_it_drains_nothing_new_is_taken_and_the_old_goes_on(spec, make_service):
    service = make_service()
    client = Client(make_app(spec, service))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(client.complete, max_tokens=30, **SLOW)
        wait_for(lambda: service.snapshot().running == 1)
        drained = pool.submit(service.drain, 10)
        wait_for(lambda: service.snapshot().draining)
        health = client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "draining"})
        assert int(health.headers["retry-after"]) >= 1
        refused(client.post(COMPLETIONS, prompt="x"), 503, "draining")
        assert running.result()["usage"]["completion_tokens"] == 30
        assert drained.result()


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_cut_off_at_the_end_is_told(spec, make_service, stream):
    service = make_service()
    client = Client(make_app(spec, service))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(
            client.post, COMPLETIONS, prompt="hello", max_tokens=400, stream=stream, **SLOW
        )
        wait_for(lambda: service.snapshot().running == 1)
        assert not service.drain(0.2)
        service.close()
        answer = running.result()
    if stream:
        assert '"code":"draining"' in events(answer.text)[-1]
    else:
        refused(answer, 503, "draining")


def asked(app, receive, send, headers=()):
    """Run one request on the application itself, with a connection of our own."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": COMPLETIONS,
        "raw_path": COMPLETIONS.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), *headers],
        "server": ("test", 80),
    }
    return asyncio.wait_for(app(scope, receive, send), 10)


def test_a_body_that_does_not_come_is_not_waited_for(client, monkeypatch):
    monkeypatch.setattr(door, "READ_S", 0.1)
    sent = []

    async def never():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    asyncio.run(asked(client.app, never, send))
    assert sent[0]["status"] == 408
    assert b"slow_body" in sent[1]["body"]


def test_a_client_that_takes_nothing_is_left(client, service, monkeypatch, caplog):
    monkeypatch.setattr(door, "SEND_S", 0.1)
    body = b'{"prompt": "hello", "max_tokens": 400, "stream": true, "ignore_eos": true}'
    bodies = iter([{"type": "http.request", "body": body}])

    async def receive():
        if (message := next(bodies, None)) is None:
            await asyncio.sleep(60)
        return message

    async def stalled(_message):
        await asyncio.sleep(60)

    with caplog.at_level("INFO", "draftproof.server"):
        asyncio.run(asked(client.app, receive, stalled))
    assert '"status": 499' in caplog.text
    wait_for(lambda: service.snapshot().running == 0)
