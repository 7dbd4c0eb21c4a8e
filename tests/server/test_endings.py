"""How a server ends: by signals, which let requests end first, or with a service that fails."""

from __future__ import annotations

import contextlib
import signal
import time

import httpx
import pytest

from tests.server.conftest import wait_for
from tests.server.process import MAIN, NAME, Process

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.slow

WARMS_LONG = "import time; from draftproof.service.machine import Machine as M; M.warm_up = "
WARMS_LONG += f"lambda *_: time.sleep(600); {MAIN}"
BREAKS = "from draftproof.service.worker import Worker as W; W.turn = lambda self: {}['a text']; "
BREAKS += MAIN


@contextlib.contextmanager
def stream(server: Process, tokens: int):
    """A stream that has begun."""
    wish = {"ignore_eos": True, "speculation": {"enabled": False, "stats": True}}
    with server.client(key="sesame", timeout=60) as client:
        answer = client.completions.create(
            model=NAME,
            prompt="hello",
            max_tokens=tokens,
            stream=True,
            temperature=0,
            extra_body=wish,
        )
        with answer:
            chunks = iter(answer)
            next(chunks)
            yield chunks


def test_sigterm_lets_running_requests_end_and_tells_others(folder):
    with Process(folder, DRAFTPROOF_API_KEYS="sesame,other") as server:
        with stream(server, 1500) as running:
            server.signal()
            health = f"{server.address}/health"
            wait_for(lambda: httpx.get(health).json() == {"status": "draining"})
            with (
                server.client(key="other") as client,
                pytest.raises(openai.InternalServerError) as error,
            ):
                client.completions.create(model=NAME, prompt="x")
            assert error.value.status_code == 503
            assert error.value.response.headers["retry-after"]
            *_, last = running
        assert last.speculation["generated"] == 1500
        assert server.end() == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(health)


def test_what_runs_too_long_is_cut_off_and_told(folder):
    with Process(folder, "--api-key", "sesame", "--drain-seconds", "0.2") as server:
        with stream(server, 4000) as running:
            began = time.monotonic()
            server.signal(signal.SIGINT)
            with pytest.raises(openai.APIError) as error:
                list(running)
        assert error.value.code == "draining"
        assert server.end() == 0
        assert time.monotonic() - began < 10


def test_a_second_signal_ends_at_once(folder):
    with Process(folder, "--api-key", "sesame") as server, stream(server, 4000) as running:
        server.signal()
        wait_for(lambda: any("once more" in line for line in server.said))
        server.signal()
        began = time.monotonic()
        with pytest.raises((httpx.TransportError, openai.APIError)):
            list(running)
        server.end()
        assert time.monotonic() - began < 10


def test_sigterm_does_not_wait_for_the_warm_up(folder):
    with Process(folder, main=WARMS_LONG, state="warming up") as server:
        server.signal()
        assert server.end() == 0
        assert not any("Ready" in line for line in server.said)


def test_a_service_that_breaks_ends_its_process(folder):
    with Process(folder, main=BREAKS) as server:
        answer = httpx.post(f"{server.address}/v1/completions", json={"prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "failed")
        assert server.end() == 1
    said = "".join(server.said)
    assert "The service failed and has ended: KeyError at " in said
    assert "a text" not in said
