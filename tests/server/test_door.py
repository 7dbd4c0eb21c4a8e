"""Keys, numbers of requests, and the log, which holds no text unless it is asked to."""

from __future__ import annotations

import json
import logging

import pytest

from draftproof.config import ServerSettings
from draftproof.errors import InvalidSetting
from draftproof.server.log import Lines
from tests.server.conftest import texts, whole

KEYS = frozenset({"alpha", "beta"})
CHAT = "/v1/chat/completions"
TEXT = "a text that is nobody else's business"


@pytest.mark.parametrize("key", [None, "", "gamma", "alph", "alphaa", "beta alpha", "äöü"])
def test_who_has_no_key_is_told_nothing(make_client, key):
    client = make_client(keys=KEYS)
    headers = {} if key is None else {"Authorization": f"Bearer {key}".encode()}
    for method, path in (
        ("GET", "/v1/models"),
        ("POST", CHAT),
        ("GET", "/v1/nothing"),
        ("GET", "/v1/speculation"),
    ):
        answer = client.request(method, path, headers=dict(headers))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert "alpha" not in answer.text


def test_every_key_opens(make_client):
    for key in KEYS:
        client = make_client(keys=KEYS, key=key)
        assert whole(client.get("/v1/models"))
        assert client.complete(max_tokens=1)
    basic = make_client(keys=KEYS).request(
        "GET", "/v1/models", headers={"Authorization": "Basic alpha"}
    )
    assert basic.status_code == 401


def test_health_needs_no_key(make_client):
    assert whole(make_client(keys=KEYS).get("/health")) == {"status": "ready"}


def test_keys_are_not_shown():
    assert "alpha" not in repr(ServerSettings(keys=KEYS))
    for key in ("", " alpha", "a\n", "ä"):
        with pytest.raises(InvalidSetting, match="API key"):
            ServerSettings(keys=frozenset({key}))


def logged(caplog):
    """The lines of the log; reading empties it."""
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "draftproof.server"]
    caplog.clear()
    return lines


@pytest.fixture
def log(caplog):
    caplog.set_level("INFO", "draftproof.server")
    return caplog


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_line_without_its_text(client, log, stream):
    answer = client.post(
        CHAT, messages=[{"role": "user", "content": TEXT}], max_tokens=7, n=2, stream=stream, seed=1
    )
    (line,) = logged(log)
    assert line["id"] == answer.headers["x-request-id"]
    assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 200)
    assert line["completion_tokens"] <= 14
    assert line["prompt_tokens"] > len(TEXT)
    assert 0 < line["seconds"] < 10
    assert line["time"].endswith("+00:00")
    assert TEXT not in str(line)
    assert set(line) == {
        "time",
        "id",
        "method",
        "path",
        "status",
        "seconds",
        "prompt_tokens",
        "completion_tokens",
    }


def test_the_number_of_a_request_is_in_its_answer(client):
    answer = client.post("/v1/completions", prompt="hello", max_tokens=1)
    assert whole(answer)["id"] == f"cmpl-{answer.headers['x-request-id']}"
    assert client.get("/v1/nothing").headers["x-request-id"]


def test_a_refused_request_is_logged_without_what_it_said(client, log):
    for body in (
        {"messages": [{"role": TEXT, "content": TEXT}]},
        {"messages": [{"role": "user", "content": TEXT * 20}]},
        {"messages": [{"role": "user", "content": TEXT}], TEXT: TEXT},
    ):
        assert client.post(CHAT, **body).status_code == 400
    lines = logged(log)
    assert [line["status"] for line in lines] == [400] * 3
    assert TEXT not in str(lines)


@pytest.mark.parametrize("stream", [False, True])
def test_texts_are_logged_on_request(make_client, log, stream):
    client = make_client(log_prompts=True)
    sent = {"prompt": [TEXT, "x"], "max_tokens": 9, "n": 2, "seed": 1}
    wanted = texts(client.complete(**sent))
    logged(log)
    client.post("/v1/completions", **sent, stream=stream)
    (line,) = logged(log)
    assert line["prompts"] == [TEXT, "x"]
    assert line["answers"] == wanted


def test_a_stream_that_fails_says_so_in_the_log(make_client, log):
    client = make_client(max_seconds=0.3)
    slow = {"speculation": {"drafter": "slow"}, "ignore_eos": True, "max_tokens": 400}
    client.post("/v1/completions", prompt=TEXT, stream=True, **slow)
    (line,) = logged(log)
    assert line["status"] == 200
    assert line["error"].startswith("DeadlineExceeded at ")
    assert line["completion_tokens"] > 0
    client.post("/v1/completions", prompt=TEXT, **slow)
    (line,) = logged(log)
    assert line["status"] == 504
    assert line["error"].startswith("DeadlineExceeded at ")
    assert TEXT not in str(line)


def test_other_lines_are_json_without_messages_of_errors():
    try:
        raise KeyError(TEXT)
    except KeyError as error:
        told = (KeyError, error, error.__traceback__)
    record = logging.LogRecord("draftproof.service", 40, "", 1, "round %d", (7,), told)
    line = json.loads(Lines().format(record))
    assert (line["level"], line["message"]) == ("error", "round 7")
    assert line["error"].startswith("KeyError at ")
    assert TEXT not in str(line)
