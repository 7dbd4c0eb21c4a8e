"""A fault ends the request it belongs to, says nothing of its text, and the server goes on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from draftproof.decode.sequence import Sequence
from draftproof.errors import InvalidSetting
from draftproof.server.app import make_app
from draftproof.server.words import Words
from draftproof.service.machine import Machine
from tests.server.conftest import Client, events, texts, wait_for

PATH = "/v1/completions"
TEXT = "a text that is nobody else's business"


@pytest.fixture
def cursed(monkeypatch):
    """Requests with the seed 666 break once they have said something."""
    judge = Sequence.judge

    def breaking(self, draft, logits):
        if self.params.seed == 666 and self.num_generated > 5:
            raise ZeroDivisionError(TEXT)
        return judge(self, draft, logits)

    monkeypatch.setattr(Sequence, "judge", breaking)


@pytest.mark.usefixtures("cursed")
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_request_breaks_alone(client, stream):
    alone = client.complete(seed=1, max_tokens=40)
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(client.complete, seed=1, max_tokens=40) for _ in range(3)]
        broken = client.post(PATH, prompt=TEXT, seed=666, max_tokens=40, stream=stream)
        assert [texts(other.result()) for other in others] == [texts(alone)] * 3
    body = broken.text
    if stream:
        assert broken.status_code == 200
        *chunks, body = events(body)
        assert chunks
        assert "[DONE]" not in chunks
    else:
        assert broken.status_code == 500
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("server_error", "request_failed")
    assert TEXT not in body


def test_a_fault_while_an_answer_is_written_ends_its_request(client, service, monkeypatch, caplog):
    def broken(*_arguments):
        raise ZeroDivisionError(TEXT)

    monkeypatch.setattr(Words, "read", broken)
    sent = {"prompt": TEXT, "logprobs": 1, "max_tokens": 400, "ignore_eos": True}
    with caplog.at_level("INFO", "draftproof.server"):
        answer = client.post(PATH, **sent, stream=True)
        *_, last = events(answer.text)
        assert json.loads(last)["error"]["code"] == "internal_error"
        assert client.post(PATH, **sent | {"max_tokens": 5}).status_code == 500
    assert caplog.text.count("ZeroDivisionError") == 2
    assert TEXT not in caplog.text + answer.text
    wait_for(lambda: service.snapshot().running == 0)
    monkeypatch.undo()
    assert client.complete(max_tokens=1)


def test_of_several_prompts_all_are_taken_or_none(client, service):
    """The second prompt holds an id that the model does not have."""
    answer = client.post(PATH, prompt=[[5] * 9, [5, 9999]], max_tokens=400, ignore_eos=True)
    assert answer.status_code == 400
    wait_for(lambda: service.snapshot().running == 0)


def test_a_service_that_cannot_start_is_not_ready(spec, make_service, monkeypatch):
    def broken(_machine, _is_closing):
        raise InvalidSetting("this cannot be warmed up")

    monkeypatch.setattr(Machine, "warm_up", broken)
    service = make_service(start=False)
    service.start()
    with pytest.raises(InvalidSetting):
        service.wait_until_ready(10)
    client = Client(make_app(spec, service))
    health = client.get("/health")
    assert (health.status_code, health.json()) == (503, {"status": "failed"})
    assert client.post(PATH, prompt="x").status_code == 503
    service.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_service_that_breaks_says_so_to_those_it_breaks_off(spec, make_service, stream):
    service = make_service()
    client = Client(make_app(spec, service))

    def broken():
        raise ZeroDivisionError(TEXT)

    with ThreadPoolExecutor() as pool:
        sent = {"prompt": TEXT, "max_tokens": 400, "ignore_eos": True}
        slow = {"drafter": "slow"}
        running = pool.submit(client.post, PATH, **sent, speculation=slow, stream=stream)
        wait_for(lambda: service.snapshot().running == 1)
        service._worker.turn = broken
        answer = running.result()
    if stream:
        error = json.loads(events(answer.text)[-1])["error"]
    else:
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
        error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("overloaded_error", "failed")
    assert "failed" in error["message"]
    assert TEXT not in answer.text
    answer = client.post(PATH, prompt="x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "failed")


@pytest.mark.parametrize("code", ["draining", "failed"])
def test_a_service_that_goes_down_while_a_prompt_is_encoded(spec, make_service, monkeypatch, code):
    service = make_service()
    client = Client(make_app(spec, service))
    encode = type(spec).encode

    def goes_down(self, prompt):
        if code == "draining":
            service.drain(0)
        else:
            service.fault = ZeroDivisionError()
        return encode(self, prompt)

    monkeypatch.setattr(type(spec), "encode", goes_down)
    answer = client.post(PATH, prompt="x")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    assert answer.json()["error"]["code"] == code
