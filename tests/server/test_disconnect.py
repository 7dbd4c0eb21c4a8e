"""Who leaves lets go of the model at once, with or without a stream, queued or running."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from dataclasses import replace

import httpx
import pytest

from draftproof.api import Speculator
from draftproof.server import routes
from draftproof.server.app import make_app
from draftproof.server.errors import ClientLeft
from draftproof.server.stream import unless_left
from tests.server.conftest import Slow, wait_for
from tests.server.serving import served

PATH = "/v1/completions"
LONG = {"prompt": "hello", "max_tokens": 450, "ignore_eos": True, "n": 2}


@pytest.fixture
def slow(spec, make_service):
    """A service that takes seconds for an answer, with room for one request, and its address."""
    alone = spec.with_drafter(Slow(), replace(spec.settings, max_batch=2))
    service = make_service(start=False, speculator=alone)
    with served(make_app(alone, service)) as address:
        wait_for(lambda: service.ready)
        yield service, address


def asked(address: str, **body) -> socket.socket:
    """A connection on which a request was sent."""
    host, port = address.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)))
    head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_running_request_ends_with_its_connection(slow, stream):
    service, address = slow
    connection = asked(address, **LONG, stream=stream)
    wait_for(lambda: service.snapshot().running == 1)
    if stream:
        assert connection.recv(4096)
    connection.close()
    wait_for(lambda: service.snapshot().sequences == 0, seconds=0.5)


def test_a_queued_request_ends_with_its_connection(slow):
    service, address = slow
    first, second = asked(address, **LONG), asked(address, **LONG, stream=True)
    wait_for(lambda: service.snapshot().waiting == 1)
    second.close()
    wait_for(lambda: service.snapshot().waiting == 0, seconds=0.5)
    assert service.snapshot().running == 1
    first.close()


def test_all_prompts_of_a_request_end(slow):
    service, address = slow
    connection = asked(address, **LONG | {"prompt": ["hello", "x", "y"]})
    wait_for(lambda: service.snapshot().waiting == 2)
    connection.close()
    wait_for(lambda: service.snapshot().running + service.snapshot().waiting == 0, seconds=0.5)


def test_a_stream_comes_as_it_is_made(slow):
    _, address = slow
    with httpx.stream("POST", f"{address}{PATH}", json=LONG | {"stream": True}) as answer:
        times = []
        for line in answer.iter_lines():
            if line:
                times.append(time.monotonic())
            if len(times) == 20:
                break
    assert times[-1] - times[0] > 0.05, "20 ms a round, two chunks each"


def test_a_prompt_is_not_read_for_nobody(slow, monkeypatch):
    service, address = slow
    begun, left, read = threading.Event(), threading.Event(), []
    encode = Speculator.encode

    def waits(self, prompt):
        read.append(prompt)
        begun.set()
        assert left.wait(10)
        return encode(self, prompt)

    monkeypatch.setattr(Speculator, "encode", waits)
    monkeypatch.setattr(routes, "unless_left", telling(left, unless_left))
    connection = asked(address, **LONG | {"prompt": ["hello", "x", "y"]})
    assert begun.wait(10)
    connection.close()
    assert left.wait(10)
    httpx.post(f"{address}{PATH}", json={"prompt": "next", "max_tokens": 1})
    assert read == ["hello", "next"]
    wait_for(lambda: service.snapshot().running + service.snapshot().waiting == 0)


def telling(event, work):
    """`work`, and the event is set once it has raised that the client left and that was heard."""

    async def told(*arguments):
        try:
            return await work(*arguments)
        except ClientLeft:
            asyncio.get_running_loop().call_later(0.05, event.set)
            raise

    return told
