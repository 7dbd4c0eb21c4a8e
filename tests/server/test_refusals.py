"""What cannot be done is refused in OpenAI's words; nothing that is sent is passed over."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from draftproof.server.chat import ChatRequest
from draftproof.server.completions import CompletionRequest
from draftproof.server.fields import ASKS_FOR_NOTHING
from tests.server.conftest import Client, whole

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def refused(answer, status, code, param):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error["message"]
    return error["message"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": None}, "invalid_value", "prompt"),
        ({"prompt": 7}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_prompt", None),
        ({"prompt": ["a", 1]}, "invalid_value", "prompt"),
        ({"prompt": [5, 9999]}, "invalid_prompt", None),
        ({"prompt": "x" * 600}, "context_length_exceeded", "prompt"),
        ({"prompt": "half a \ud800"}, "invalid_value", "prompt"),
        ({"prompt": ["\ud800"]}, "invalid_value", "prompt"),
        ({"stop": "\ud800"}, "invalid_value", "stop"),
        ({"regex": "\ud800"}, "invalid_value", None),
        ({"max_tokens": 510}, "context_length_exceeded", "prompt"),
        ({"max_tokens": -1}, "invalid_value", "max_tokens"),
        ({"max_tokens": 5.5}, "invalid_value", "max_tokens"),
        ({"max_tokens": "5"}, "invalid_value", "max_tokens"),
        ({"min_tokens": 17}, "invalid_value", None),
        ({"temperature": -0.1}, "invalid_value", "temperature"),
        ({"temperature": True}, "invalid_value", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"top_k": -1}, "invalid_value", "top_k"),
        ({"seed": -1}, "invalid_value", "seed"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 17}, "limit_exceeded", None),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"stop": ["x" * 300]}, "invalid_value", "stop"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"7": 1, "07": 2}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"-7": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {" 7": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"9999": 1}}, "invalid_value", None),
        ({"logit_bias": [1]}, "invalid_value", "logit_bias"),
        ({"logprobs": 101}, "invalid_value", "logprobs"),
        ({"logprobs": True}, "invalid_value", "logprobs"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", None),
        ({"speculation": {"drafter": "magic"}}, "invalid_value", None),
        (
            {"speculation": {"enabled": False, "drafter": "magic"}},
            "invalid_value",
            "speculation",
        ),
        ({"speculation": {"enabled": False, "drafter": "slow"}}, "invalid_value", "speculation"),
        ({"speculation": {"enabled": False, "depth": "auto"}}, "invalid_value", "speculation"),
        ({"speculation": {"drafter": "none", "depth": 9}}, "invalid_value", "speculation"),
        ({"speculation": {"depth": 65}}, "invalid_value", "speculation"),
        ({"speculation": {"deep": 1}}, "unknown_parameter", "speculation.deep"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format"),
        ({"regex": "(", "max_tokens": 5}, "invalid_value", None),
        ({"regex": "a", "choice": ["a"]}, "invalid_value", None),
        ({"choice": []}, "invalid_value", "choice"),
        ({"echo": True}, "unsupported_parameter", "echo"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"store": True}, "unsupported_parameter", "store"),
        ({"temprature": 1}, "unknown_parameter", "temprature"),
    ],
)
def test_a_completion_that_cannot_be(client, fields, code, param):
    refused(client.post(COMPLETIONS, **({"prompt": "hello"} | fields)), 400, code, param)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "hello"}, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, "missing_parameter", "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages.0.role"),
        (
            {"messages": [{**HELLO[0], "tool_calls": [{}]}]},
            "unsupported_parameter",
            "messages.0.tool_calls",
        ),
        ({"messages": [{**HELLO[0], "name": "Ann"}]}, "unsupported_parameter", "messages.0.name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "invalid_value",
            "messages",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 600}]},
            "context_length_exceeded",
            "messages",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "invalid_value", "messages"),
        ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
        ({"functions": [{}]}, "unsupported_parameter", "functions"),
        ({"modalities": ["audio"]}, "unsupported_parameter", "modalities"),
        ({"reasoning_effort": "low"}, "unsupported_parameter", "reasoning_effort"),
        ({"top_logprobs": 2}, "invalid_value", None),
        ({"logprobs": 2}, "invalid_value", "logprobs"),
        ({"max_tokens": 2, "max_completion_tokens": 2}, "invalid_value", None),
    ],
)
def test_a_chat_that_cannot_be(client, fields, code, param):
    refused(client.post(CHAT, **({"messages": HELLO} | fields)), 400, code, param)


@pytest.mark.parametrize("name", ASKS_FOR_NOTHING)
def test_what_asks_for_nothing_is_taken(client, name):
    in_message = name in ("annotations", "name", "refusal", "tool_call_id", "tool_calls")
    for value in (None, *ASKS_FOR_NOTHING[name]):
        if in_message:
            sent = {"messages": [{**HELLO[0], name: value}]}
        else:
            sent = {"messages": HELLO, name: value}
        assert whole(client.post(CHAT, **sent, max_tokens=1))


MANY = 3000


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        (CompletionRequest, {"prompt": [{}] * MANY}, "prompt"),
        (CompletionRequest, {"prompt": ["x"] * MANY}, "prompt"),
        (CompletionRequest, {"prompt": [[]] * MANY}, "prompt"),
        (CompletionRequest, {"prompt": [1] + [{}] * MANY}, "prompt"),
        (CompletionRequest, {"prompt": [[1], [{}] * MANY]}, "prompt"),
        (CompletionRequest, {"prompt": "x", "stop": [{}] * MANY}, "stop"),
        (CompletionRequest, {"prompt": "x", "stop_token_ids": ["x"] * MANY}, "stop_token_ids.0"),
        (CompletionRequest, {"prompt": "x", "choice": [{}] * MANY}, "choice.0"),
        (
            CompletionRequest,
            {"prompt": "x", "logit_bias": {str(i): "x" for i in range(MANY)}},
            "logit_bias",
        ),
        (
            CompletionRequest,
            {"prompt": "x", "metadata": dict.fromkeys(map(str, range(17)), "x")},
            "metadata",
        ),
        (CompletionRequest, {"prompt": "x", **{f"_{i}": 1 for i in range(MANY)}}, "_0"),
        (
            CompletionRequest,
            {"prompt": "x", "speculation": {f"_{i}": 1 for i in range(MANY)}},
            "speculation._0",
        ),
        (ChatRequest, {"messages": [{}] * MANY}, "messages"),
        (ChatRequest, {"messages": [{}] * 9}, "messages"),
        (ChatRequest, {"messages": HELLO * MANY}, "messages"),
        (ChatRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}, "messages"),
        (ChatRequest, {"messages": [{"role": "user", "content": [{}] * 9}]}, "messages"),
    ],
)
def test_a_body_of_many_faults_is_read_to_the_first(client, kind, fields, param):
    with pytest.raises(ValidationError) as error:
        kind.model_validate(fields)
    assert error.value.error_count() <= 6, "one of each form that a field may have"
    answer = client.post(COMPLETIONS if kind is CompletionRequest else CHAT, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert len(answer.json()["error"]["message"]) < 300


def test_null_is_the_default(client):
    fields = ("temperature", "top_p", "n", "stop", "seed", "logit_bias", "max_tokens", "user")
    nothing = dict.fromkeys((*fields, "stream", "stream_options", "response_format", "logprobs"))
    assert whole(client.post(COMPLETIONS, prompt="hello", **nothing))


def test_the_text_of_an_error_helps(client):
    told = refused(client.post(COMPLETIONS, prompt=1.5), 400, "invalid_value", "prompt")
    assert "string" in told
    assert "list" in told
    told = refused(
        client.post(COMPLETIONS, prompt="x" * 600), 400, "context_length_exceeded", "prompt"
    )
    assert "at most 512 tokens with its answer" in told
    assert "600" in told


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"prompt": 1e999}',
        b'{"seed": NaN}',
    ],
)
def test_a_body_that_is_no_request(client, content):
    headers = {"Content-Type": "application/json"}
    answer = client.request("POST", COMPLETIONS, content=content, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_without_its_type_is_told_how(client):
    answer = client.request("POST", COMPLETIONS, content=b'{"prompt": "hello"}')
    assert answer.status_code == 400
    assert "Content-Type: application/json" in answer.json()["error"]["message"]


def test_broken_json_is_told_from_a_missing_type_and_a_field_from_its_form(client):
    headers = {"Content-Type": "application/json"}
    answer = client.request("POST", COMPLETIONS, content=b'{"prompt": }', headers=headers)
    assert "no JSON" in refused(answer, 400, "invalid_json", None)
    assert "at 11" in answer.json()["error"]["message"]
    schema = {"type": "json_schema", "json_schema": {"schema": {}}}
    param = "response_format.json_schema.name"
    refused(
        client.post(CHAT, messages=HELLO, response_format=schema), 400, "missing_parameter", param
    )
    told = refused(
        client.post(CHAT, messages=HELLO, temprature=1), 400, "unknown_parameter", "temprature"
    )
    assert "did you mean temperature?" in told


def test_the_log_says_why_somebody_was_refused_and_no_word_of_theirs(client, caplog):
    with caplog.at_level("INFO", "draftproof.server"):
        client.post(COMPLETIONS, prompt="x", temperature=-1)
        client.post(COMPLETIONS, prompt="x", **{"my secret": 1})
        client.post(COMPLETIONS, prompt="x", speculation={"my secret": 1})
        client.get("/v1/nothing")
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert [(line["code"], line["param"]) for line in lines] == [
        ("invalid_value", "temperature"),
        ("unknown_parameter", None),
        ("unknown_parameter", "speculation"),
        ("not_found", None),
    ]
    assert "secret" not in caplog.text


def test_another_model_is_not_found(client):
    for answer in (client.post(COMPLETIONS, prompt="x", model="gpt"), client.get("/v1/models/gpt")):
        assert "'tiny'" in refused(answer, 404, "model_not_found", "model")
    assert client.complete(model="tiny", max_tokens=1)["model"] == "tiny"


def test_errors_of_the_framework_have_the_same_shape(client):
    assert "/openapi.json" in refused(client.get("/v1/nothing"), 404, "not_found", None)
    answer = client.get(COMPLETIONS)
    assert "does not take GET" in refused(answer, 405, "method_not_allowed", None)
    assert answer.headers["allow"] == "POST"


def test_models_are_listed(client, service):
    (model,) = whole(client.get("/v1/models"))["data"]
    assert model == whole(client.get("/v1/models/tiny"))
    assert model["id"] == "tiny"
    assert model["drafters"] == list(service.drafters) == ["early-exit:1", "slow", "none"]
    assert model["max_model_len"] == service.max_length


def test_a_fault_inside_fails_one_request_and_says_nothing_of_it(
    client: Client, spec, monkeypatch, caplog
):
    def broken(*_arguments, **_named):
        raise KeyError("secret words")

    monkeypatch.setattr(type(spec), "encode", broken)
    with caplog.at_level("INFO", "draftproof.server"):
        answer = client.post(COMPLETIONS, prompt="secret words")
    refused(answer, 500, "internal_error", None)
    assert "KeyError" in caplog.text
    assert "secret words" not in caplog.text + answer.text
    monkeypatch.undo()
    assert client.complete(max_tokens=1)
