"""/v1/completions: the texts are the library's, whole or streamed, whatever was asked for."""

from __future__ import annotations

import pytest

from draftproof.sampling.grammar import Grammar
from draftproof.sampling.params import SamplingParams
from tests.server.conftest import texts

PATH = "/v1/completions"
SEEDED = {"seed": 3, "max_tokens": 12}

# What is sent, and the same for the library; temperature is 1 where nothing is said.
FIELDS = {
    "temperature": ({"temperature": 0}, {"temperature": 0.0}),
    "top_p": ({"top_p": 0.4}, {"top_p": 0.4}),
    "top_k": ({"top_k": 2}, {"top_k": 2}),
    "min_p": ({"min_p": 0.5}, {"min_p": 0.5}),
    "repetition_penalty": ({"repetition_penalty": 2}, {"repetition_penalty": 2.0}),
    "presence_penalty": ({"presence_penalty": 2.5}, {"presence_penalty": 2.5}),
    "frequency_penalty": ({"frequency_penalty": 2.5}, {"frequency_penalty": 2.5}),
    "logit_bias": ({"logit_bias": {"7": 90, "8": -5.5}}, {"logit_bias": {7: 90, 8: -5.5}}),
    "seed": ({"seed": 4}, {"seed": 4}),
    "stop": ({"stop": ["E", "k"]}, {"stop": ["E", "k"]}),
    "stop of one": ({"stop": "E"}, {"stop": "E"}),
    "stop_token_ids": ({"stop_token_ids": [39, 40]}, {"stop_token_ids": [39, 40]}),
    "ignore_eos": (
        {"logit_bias": {"2": 90}, "ignore_eos": True},
        {"logit_bias": {2: 90}, "ignore_eos": True},
    ),
    "max_tokens": ({"max_tokens": 5}, {"max_tokens": 5}),
    "min_tokens": (
        {"logit_bias": {"2": 90}, "min_tokens": 4},
        {"logit_bias": {2: 90}, "min_tokens": 4},
    ),
    "n": ({"n": 3}, {"n": 3}),
    "regex": ({"regex": "[ab]{3}"}, {"grammar": Grammar.regex("[ab]{3}")}),
    "choice": ({"choice": ["no", "maybe"]}, {"grammar": Grammar.choice(["no", "maybe"])}),
    "nothing": ({}, {}),
}


def params(**fields):
    return SamplingParams(**({"temperature": 1.0} | SEEDED | fields))


def expected(spec, prompt="hello", **fields):
    return spec.generate(prompt, params(**fields))


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_means_what_it_means_to_the_library(client, spec, name):
    sent, meant = FIELDS[name]
    body = client.complete(**(SEEDED | sent))
    output = expected(spec, **meant)
    assert texts(body) == [sample.text for sample in output.samples]
    reasons = [choice["finish_reason"] for choice in body["choices"]]
    assert reasons == [sample.finish_reason for sample in output.samples]
    generated = sum(len(sample.token_ids) for sample in output.samples)
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": generated,
        "total_tokens": 5 + generated,
    }


@pytest.mark.parametrize("name", FIELDS)
def test_a_stream_joins_to_the_same_text(client, name):
    sent = SEEDED | FIELDS[name][0]
    whole, chunks = client.complete(**sent), client.stream(PATH, prompt="hello", **sent)
    joined = [""] * len(whole["choices"])
    reasons = [None] * len(joined)
    for chunk in chunks:
        assert chunk["object"] == "text_completion"
        assert "usage" not in chunk
        (choice,) = chunk["choices"]
        assert reasons[choice["index"]] is None, "nothing follows the end of a choice"
        joined[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    assert joined == texts(whole)
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]


def test_defaults_are_those_of_openai(client, spec):
    body = client.complete(seed=1)
    assert texts(body) == [expected(spec, seed=1, max_tokens=16).text]
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == "tiny"
    assert set(body) == {"id", "object", "created", "model", "choices", "usage"}
    assert set(body["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}


def test_prompts_are_texts_or_ids_one_or_many(client, spec):
    ids = spec.encode("hello")
    alone = texts(client.complete("hello", **SEEDED))
    assert texts(client.complete(ids, **SEEDED)) == alone
    assert texts(client.complete(["hello"], **SEEDED)) == alone
    assert texts(client.complete([ids], **SEEDED)) == alone
    both = client.complete(["hello", "xyz"], n=2, **SEEDED)
    assert texts(both) == [
        sample.text for prompt in ("hello", "xyz") for sample in expected(spec, prompt, n=2).samples
    ]
    assert both["usage"]["prompt_tokens"] == 8


def test_several_prompts_are_streamed_side_by_side(client):
    sent = SEEDED | {"n": 2, "prompt": ["hello", "xyz"]}
    chunks = client.stream(PATH, **sent)
    joined = [""] * 4
    for chunk in chunks:
        joined[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert joined == texts(client.complete(**sent))


def test_the_last_chunk_has_usage_and_statistics_where_they_are_asked_for(client):
    sent = SEEDED | {"prompt": "hello", "n": 2}
    whole = client.complete(**sent, speculation={"stats": True})
    *_, last = client.stream(
        PATH, **sent, stream_options={"include_usage": True}, speculation={"stats": True}
    )
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    counts = ("generated", "drafted", "accepted", "target_calls", "drafted_per_position")
    assert [last["speculation"][name] for name in counts] == [
        whole["speculation"][name] for name in counts
    ]
    assert whole["speculation"]["generated"] == whole["usage"]["completion_tokens"]
    assert whole["speculation"]["drafted"] > 0


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"enabled": False},
        {"enabled": False, "drafter": "none", "depth": 0},
        {"drafter": "slow"},
        {"depth": 1},
        {"depth": 0},
    ],
)
def test_speculation_changes_no_seeded_text(client, spec, wish):
    body = client.complete(**SEEDED, speculation={**wish, "stats": True})
    assert texts(body) == [expected(spec).text]
    drafted = body["speculation"]["drafted_per_position"]
    if wish in ({}, {"depth": 1}):
        assert len(drafted) == wish.get("depth", 4)
    else:
        assert drafted == []


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_the_librarys(client, spec, stream):
    output = expected(spec, logprobs=2)
    sent = SEEDED | {"prompt": "hello", "logprobs": 2}
    if stream:
        tables = [chunk["choices"][0]["logprobs"] for chunk in client.stream(PATH, **sent)]
        tables = [table for table in tables if table["tokens"]]
        table = {name: [part for one in tables for part in one[name]] for name in tables[0]}
    else:
        table = client.complete(**sent)["choices"][0]["logprobs"]
    assert table["token_logprobs"] == [entry.logprob for entry in output.logprobs]
    assert any(token.startswith("bytes:\\x") for token in table["tokens"])
    shown = [piece.text for piece in spec.stream("hello", params(logprobs=2))]
    assert table["text_offset"] == [len("".join(shown[:i])) for i in range(len(shown))]
    for top, entry in zip(table["top_logprobs"], output.logprobs, strict=True):
        assert sorted(top.values(), reverse=True)[:2] == [value for _, value in entry.top]
        assert len(top) in (2, 3), "the chosen token is told even where it is not among them"


def test_no_tokens_asked_for_are_no_tokens(client):
    body = client.complete(max_tokens=0)
    assert texts(body) == [""]
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    (chunk,) = client.stream(PATH, prompt="hello", max_tokens=0)
    assert chunk["choices"][0]["finish_reason"] == "length"
