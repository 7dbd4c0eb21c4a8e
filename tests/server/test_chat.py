"""/v1/chat/completions: templates, the shape of a stream, log-probabilities, formats of answers."""

from __future__ import annotations

import json

import pytest

from draftproof.sampling.grammar import Grammar
from draftproof.sampling.params import SamplingParams
from tests.server.conftest import texts, whole

PATH = "/v1/chat/completions"
SEEDED = {"seed": 3, "max_tokens": 12}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}


def user(content):
    return [{"role": "user", "content": content}]


def expected(spec, messages, **fields):
    return spec.generate(messages, SamplingParams(**({"temperature": 1.0} | SEEDED | fields)))


def test_the_answer_is_the_librarys(client, spec):
    body = client.chat("hello", **SEEDED, n=2)
    output = expected(spec, user("hello"), n=2)
    assert texts(body) == [sample.text for sample in output.samples]
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    for index, choice in enumerate(body["choices"]):
        assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
        assert choice["index"] == index
        assert choice["message"]["role"] == "assistant"
        assert choice["message"]["refusal"] is None
    assert body["usage"]["prompt_tokens"] == len(output.prompt_token_ids)


def test_a_stream_opens_each_choice_with_its_role_and_ends_it_with_a_reason(client):
    sent = SEEDED | {"messages": user("hello"), "n": 2}
    answer = whole(client.post(PATH, **sent))
    chunks = client.stream(PATH, **sent)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    for index, text in enumerate(texts(answer)):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert all(set(choice["delta"]) == {"content"} for choice in mine[1:-1])
        assert "".join(choice["delta"]["content"] for choice in mine[:-1]) == text
        assert mine[-1]["delta"] == {}
        reasons = [choice["finish_reason"] for choice in mine]
        assert reasons == [None] * (len(mine) - 1) + [answer["choices"][index]["finish_reason"]]


def test_parts_of_a_message_are_joined(client):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert texts(client.chat(parts, **SEEDED)) == texts(client.chat("hello", **SEEDED))


def test_a_developer_is_the_system(client):
    answers = [
        texts(whole(client.post(PATH, messages=[{"role": role, "content": "x"}], **SEEDED)))
        for role in ("system", "developer", "user")
    ]
    assert answers[0] == answers[1] != answers[2]


def test_an_answer_can_be_sent_back_as_it_came(client):
    message = client.chat("hello", **SEEDED)["choices"][0]["message"]
    assert whole(client.post(PATH, messages=[*user("hello"), message, *user("x")], **SEEDED))


def test_what_a_template_refuses_is_told(client, spec, monkeypatch):
    monkeypatch.setattr(
        spec.tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}"
    )
    answer = client.post(PATH, messages=user("x"))
    assert answer.status_code == 400
    assert "roles must alternate" in answer.json()["error"]["message"]


def test_a_chat_goes_on_as_long_as_there_is_room(client, make_client, spec):
    body = client.chat("hello", temperature=0)
    longest = spec.target.max_positions
    assert body["usage"]["total_tokens"] == longest or body["choices"][0]["finish_reason"] == "stop"
    short = make_client(max_tokens_limit=7).chat("hello", temperature=0, ignore_eos=True)
    assert short["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_budget_work(client, name):
    assert client.chat(seed=1, ignore_eos=True, **{name: 5})["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_the_librarys(client, spec, stream):
    output = expected(spec, user("hello"), logprobs=2)
    sent = SEEDED | {"messages": user("hello"), "logprobs": True, "top_logprobs": 2}
    if stream:
        told = [chunk["choices"][0]["logprobs"] for chunk in client.stream(PATH, **sent)]
        tokens = [token for table in told if table for token in table["content"]]
    else:
        tokens = whole(client.post(PATH, **sent))["choices"][0]["logprobs"]["content"]
    assert [token["logprob"] for token in tokens] == [one.logprob for one in output.logprobs]
    told = b"".join(bytes(token["bytes"]) for token in tokens)
    assert told.removesuffix(b"</s>").decode(errors="replace") == output.text
    for token, entry in zip(tokens, output.logprobs, strict=True):
        assert [top["logprob"] for top in token["top_logprobs"]] == [
            value for _, value in entry.top
        ]
        whole_text = bytes(token["bytes"]).decode(errors="replace")
        assert token["token"] == whole_text or token["token"].startswith("bytes:\\x")


def test_logprobs_without_others_have_no_others(client):
    content = client.chat(**SEEDED, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert all(token["top_logprobs"] == [] for token in content)
    assert client.chat(**SEEDED)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("sent", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar.json_object()),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "digit", "schema": SCHEMA, "strict": True},
                }
            },
            Grammar.json_schema(SCHEMA),
        ),
        ({"choice": ["yes", "no"]}, Grammar.choice(["yes", "no"])),
        ({"regex": "[a-c]+z"}, Grammar.regex("[a-c]+z")),
    ],
)
def test_formats_are_kept_to(client, spec, sent, grammar):
    fields = {"max_tokens": 60, "seed": 5}
    (text,) = texts(client.chat("hello", **fields, **sent))
    assert text == expected(spec, user("hello"), **fields, grammar=grammar).text
    if "json_schema" in sent.get("response_format", {}):
        assert 0 <= json.loads(text)["n"] <= 9


def test_usage_and_statistics_come_last(client):
    *others, last = client.stream(
        PATH,
        messages=user("hello"),
        stream_options={"include_usage": True},
        speculation={"stats": True},
        **SEEDED,
    )
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == last["speculation"]["generated"]
    assert not any({"usage", "speculation"} & set(chunk) for chunk in others)
