"""A server as a process of its own, with the official client and with what docs show."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import subprocess
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel, Field

import draftproof as dp
from tests.server.conftest import wait_for
from tests.server.process import NAME, Process

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- run -->\n```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(folder):
    with Process(folder) as process:
        yield process
        process.signal()
        assert process.end() == 0, process.said


@pytest.fixture(scope="module")
def texts(folder):
    """What the library says for a prompt and a seed at temperature 1."""
    spec = dp.Speculator.from_pretrained(str(folder), "ngram", depth=4)

    def text(prompt, **fields) -> str:
        return spec.generate(prompt, dp.SamplingParams(temperature=1.0, **fields)).text

    return text


def test_the_official_client_whole(server, texts):
    with server.client() as client:
        assert [model.id for model in client.models.list()] == [NAME]
        chat = client.chat.completions.create(
            model=NAME, messages=HELLO, seed=1, max_completion_tokens=20, n=2, logprobs=True
        )
        assert chat.choices[0].message.content == texts(HELLO, seed=1, max_tokens=20)
        assert len(chat.choices) == 2
        assert chat.choices[1].logprobs.content[0].logprob <= 0
        assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
        assert chat._request_id
        text = client.completions.create(model=NAME, prompt="hello", seed=2, max_tokens=20)
        assert text.choices[0].text == texts("hello", seed=2, max_tokens=20)


def test_the_official_client_streaming(server, texts):
    with server.client() as client:
        chat = client.chat.completions.create(
            model=NAME,
            messages=HELLO,
            seed=1,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"speculation": {"stats": True}},
        )
        *chunks, last = chat
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert deltas[0].role == "assistant"
        joined = "".join(delta.content or "" for delta in deltas)
        assert joined == texts(HELLO, seed=1, max_tokens=20)
        assert last.usage.completion_tokens == last.speculation["generated"] > 0
        text = client.completions.create(
            model=NAME, prompt="hello", seed=2, max_tokens=20, stream=True
        )
        joined = "".join(chunk.choices[0].text for chunk in text)
        assert joined == texts("hello", seed=2, max_tokens=20)


def test_the_official_client_async(server, texts):
    async def ask(client, seed: int) -> str:
        whole = await client.chat.completions.create(
            model=NAME, messages=HELLO, seed=seed, max_tokens=20
        )
        stream = await client.chat.completions.create(
            model=NAME, messages=HELLO, seed=seed, max_tokens=20, stream=True
        )
        joined = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert joined == whole.choices[0].message.content
        return joined

    async def all_at_once() -> list[str]:
        async with server.client(openai.AsyncOpenAI) as client:
            return await asyncio.gather(*(ask(client, seed) for seed in range(6)))

    assert asyncio.run(all_at_once()) == [
        texts(HELLO, seed=seed, max_tokens=20) for seed in range(6)
    ]


def test_the_official_client_reads_answers_that_fit_a_model(server):
    class Digit(BaseModel):
        digit: int = Field(ge=0, le=9)

    with server.client() as client:
        chat = client.chat.completions.parse(
            model=NAME, messages=HELLO, response_format=Digit, max_tokens=200, seed=1
        )
    assert 0 <= chat.choices[0].message.parsed.digit <= 9


def test_the_official_client_knows_our_errors(server):
    with server.client() as client:
        with pytest.raises(openai.NotFoundError) as error:
            client.completions.create(model="gpt", prompt="x")
        assert error.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(model=NAME, prompt="x" * 5000)
        assert error.value.code == "context_length_exceeded"
        assert error.value.param == "prompt"
        with pytest.raises(openai.BadRequestError, match="tools is not supported"):
            client.chat.completions.create(
                model=NAME,
                messages=HELLO,
                tools=[{"type": "function", "function": {"name": "f"}}],
            )


def test_counters_reconcile_with_answers(server):
    def total(name: str) -> int:
        counted = httpx.get(f"{server.address}/v1/speculation").json()["total"]
        return counted[name]

    before = {name: total(name) for name in ("generated", "drafted", "accepted")}
    body = {"prompt": "abcabcabc", "max_tokens": 30, "speculation": {"stats": True}}
    answer = httpx.post(f"{server.address}/v1/completions", json=body).json()
    for name in before:
        wait_for(lambda name=name: total(name) - before[name] == answer["speculation"][name])


@pytest.mark.parametrize(("language", "example"), EXAMPLES)
def test_what_the_docs_show_works(server, language, example):
    example = example.replace("http://localhost:8000", server.address)
    if language == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example, "server.md", "exec"), {"__name__": "docs"})
        assert printed.getvalue().strip()
        return
    for command in re.split(r"\n(?=curl )", example.strip()):
        done = subprocess.run(
            ["bash", "-c", command.replace("curl ", "curl --silent --show-error --fail ", 1)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, command + done.stderr
        assert done.stdout.strip()
