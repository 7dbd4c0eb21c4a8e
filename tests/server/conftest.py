"""A tiny model behind the routes, asked in this process and without a socket."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

import draftproof as dp
from draftproof.config import ServerSettings, ServiceSettings
from draftproof.core import Draft, Proposal
from draftproof.drafters.base import Drafting
from draftproof.server.app import make_app
from draftproof.service import service as service_module
from tests.test_api import TEMPLATE
from tests.tiny import letter_tokenizer, tiny_model


class Slow(Drafting):
    """Drafts nothing, and takes its time for it."""

    name = "slow"
    proposals = frozenset({Proposal.POINT})
    pause_s = 0.02

    def begin(self, target_cache):  # noqa: ARG002
        return self

    def propose(self, contexts, plans):  # noqa: ARG002
        time.sleep(self.pause_s)
        return [Draft.chain([], Proposal.POINT) for _ in contexts]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token, so that any text can be read and grammars can be kept to."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    return letter_tokenizer(bytes_, chat_template=TEMPLATE, use_regex=False)


@dataclass
class Client:
    """Asks an application; every answer is there as a whole."""

    app: Any
    key: str | None = None

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = options.pop("headers", {})
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, headers=headers, **options)

        return asyncio.run(ask())

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def post(self, path: str, **body: Any) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        return self.request("POST", path, content=json.dumps(body), headers=headers)

    def complete(self, prompt: Any = "hello", **fields: Any) -> dict[str, Any]:
        return whole(self.post("/v1/completions", prompt=prompt, **fields))

    def chat(self, content: Any = "hello", **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        return whole(self.post("/v1/chat/completions", messages=messages, **fields))

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream that ends as it should."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        *chunks, last = events(response.text)
        assert last == "[DONE]"
        return [json.loads(chunk) for chunk in chunks]


def whole(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return response.json()


def events(text: str) -> list[str]:
    """What server-sent events carry."""
    lines = [line for line in text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def texts(body: dict[str, Any]) -> list[str]:
    """The texts of a whole answer, in order."""
    choices = sorted(body["choices"], key=lambda choice: choice["index"])
    return [
        choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices
    ]


def wait_for(condition, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(scope="session")
def spec() -> dp.Speculator:
    model = tiny_model("llama", max_position_embeddings=512, vocab_size=259, eos_token_id=2)
    return dp.Speculator.from_pretrained((model, byte_tokenizer()), "early-exit:1", depth=4)


@pytest.fixture(scope="session")
def make_service(spec):
    """Makes a service and starts it, unless an application will; closed at the end."""
    made = []

    def make(*, start=True, speculator=None, listener=None, **settings):
        service = service_module.Service(
            speculator or spec,
            drafters={"slow": Slow()},
            settings=ServiceSettings(**settings),
            listener=listener,
        )
        if start:
            made.append(service)
            service.start()
            wait_for(lambda: service.ready)
        return service

    yield make
    for service in made:
        service.close()


@pytest.fixture(scope="session")
def service(make_service):
    return make_service()


@pytest.fixture(scope="session")
def client(spec, service) -> Client:
    return Client(make_app(spec, service, name="tiny"))


@pytest.fixture
def make_client(spec, service):
    """Another application on the same service."""

    def make(*, key=None, service=service, **settings):
        return Client(make_app(spec, service, ServerSettings(**settings), name="tiny"), key)

    return make


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A model that a process can load."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model(
        "llama", max_position_embeddings=4096, vocab_size=259, eos_token_id=2
    ).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path
