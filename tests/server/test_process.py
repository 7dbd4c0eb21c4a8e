"""`draftproof serve` as a process of its own, with the official client and with what docs show."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel, Field

import draftproof as dp
from tests.server.conftest import byte_tokenizer, wait_for
from tests.tiny import tiny_model

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- run -->\n```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
HELLO = [{"role": "user", "content": "hello"}]
NAME = "smollm2-135m"
MAIN = "from draftproof.cli import main; main()"


class Process:
    """A server on a free port, and what it says on standard error."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        command = [sys.executable, "-c", MAIN, "serve", "--target", str(folder), "--port", "0"]
        self.said: list[str] = []
        self.address = ""
        self._process = subprocess.Popen(
            [*command, "--drafter", "ngram", "--depth", "4", "--name", NAME, *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def __enter__(self) -> Process:
        try:
            wait_for(self._is_ready, seconds=120)
        except BaseException:
            self.__exit__()
            print("".join(self.said))
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            self.said.extend(iter(stream.readline, ""))

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "it ended by itself"
        found = re.search(r"at (http://\S+)/v1", "".join(self.said))
        if found is None:
            return False
        self.address = found[1]
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.address}/health").status_code == 200
        return False

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """The exit code."""
        return self._process.wait(30)

    def client(self, kind=openai.OpenAI, key: str = "none", **options):
        return kind(base_url=f"{self.address}/v1", api_key=key, max_retries=0, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model(
        "llama", max_position_embeddings=4096, vocab_size=259, eos_token_id=2
    ).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


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
