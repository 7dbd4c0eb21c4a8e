"""Hundreds of requests of all kinds, good and bad, from many clients at once: nothing breaks,
nothing is left behind, and who is answered is answered right."""

from __future__ import annotations

import asyncio
import json
import random

import httpx
import psutil
import pytest

import draftproof as dp
from draftproof.config import ServerSettings
from draftproof.server.app import make_app
from tests.server.conftest import events, texts, wait_for
from tests.server.serving import served

PATH = "/v1/completions"
CLIENTS, REQUESTS = 32, 500
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "naps"]


def kinds(dice: random.Random):
    """One request: what is sent, and what must come of it."""
    body = {
        "prompt": " ".join(dice.choices(WORDS, k=dice.randint(1, 12))),
        "max_tokens": dice.randint(1, 24),
        "temperature": dice.choice([0, 0.7, 1.3]),
        "seed": dice.randint(0, 99),
        "top_p": dice.choice([1, 0.9]),
        "n": dice.choice([1, 1, 1, 2]),
        "stream": dice.random() < 0.4,
        "speculation": dice.choice(
            [{}, {"enabled": False}, {"depth": dice.randint(0, 6)}, {"drafter": "slow"}]
        ),
    }
    kind = dice.choices(
        ["good", "leaves", "late", "huge", "broken", "unknown", "wrong"],
        [60, 12, 6, 4, 6, 6, 6],
    )[0]
    if kind == "leaves":
        body |= {"max_tokens": 400, "ignore_eos": True}
    elif kind == "unknown":
        body["surprise"] = 1
    elif kind == "wrong":
        body |= dice.choice([{"temperature": -1}, {"max_tokens": "many"}, {"n": 0}, {"top_p": 7}])
    elif kind == "late":
        body |= {"max_tokens": 450, "ignore_eos": True, "speculation": {"drafter": "slow"}}
    return kind, body


async def ask(http: httpx.AsyncClient, kind: str, body: dict) -> tuple[int, str]:
    """Status and text of an answer; (0, "") of one that was not waited for."""
    content = json.dumps(body)
    if kind == "huge":
        content = json.dumps(body | {"prompt": "x" * 300_000})
    elif kind == "broken":
        content = content[: len(content) // 2]
    headers = {"Content-Type": "application/json"}
    if kind == "leaves":
        try:
            answer = await http.post(PATH, content=content, headers=headers, timeout=0.05)
        except httpx.TimeoutException:
            return 0, ""
    else:
        answer = await http.post(PATH, content=content, headers=headers)
    return answer.status_code, answer.text


async def run(address: str) -> list[tuple[str, dict, int, str]]:
    """All requests by all clients; each sends its next when the last was answered."""
    done = []
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=120) as http:

        async def client(number: int) -> None:
            dice = random.Random(number)
            for _ in range(REQUESTS // CLIENTS + (number < REQUESTS % CLIENTS)):
                kind, body = kinds(dice)
                done.append((kind, body, *await ask(http, kind, body)))

        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return done


def streamed(text: str) -> list[str]:
    """The texts of a stream, in the order of their choices."""
    *chunks, last = events(text)
    assert last == "[DONE]"
    choices: dict[int, str] = {}
    for chunk in map(json.loads, chunks):
        for choice in chunk["choices"]:
            choices[choice["index"]] = choices.get(choice["index"], "") + choice["text"]
    return [choices[index] for index in sorted(choices)]


def expected(spec: dp.Speculator, body: dict) -> list[str]:
    params = dp.SamplingParams(
        **{name: body[name] for name in ("max_tokens", "temperature", "seed", "top_p", "n")}
    )
    return [sample.text for sample in spec.plain(body["prompt"], params).samples]


def test_five_hundred_requests_of_all_kinds(spec, make_service):
    service = make_service(start=False, max_waiting=64)
    app = make_app(spec, service, ServerSettings(max_body_bytes=200_000, max_seconds=1.5))
    with served(app) as address:
        wait_for(lambda: service.ready)
        asyncio.run(run_few(address))
        before = psutil.Process().memory_info().rss
        done = asyncio.run(run(address))
        wait_for(lambda: service.snapshot().sequences == 0)
        grown = psutil.Process().memory_info().rss - before
        assert httpx.get(f"{address}/health").status_code == 200
        snapshot = service.snapshot()
    assert len(done) == REQUESTS
    check(spec, done)
    assert (snapshot.running, snapshot.waiting) == (0, 0)
    assert snapshot.cache_tokens_used == service._machine.loop.num_kept
    assert not service._worker.requests
    assert grown < 150 << 20


async def run_few(address: str) -> None:
    """Warm everything up that is made once."""
    async with httpx.AsyncClient(base_url=address, timeout=60) as http:
        for stream in (False, True):
            await ask(http, "good", {"prompt": "the", "max_tokens": 4, "stream": stream})


def check(spec, done) -> None:
    """Every answer is the right one, or an error that says what is wrong."""
    statuses = {kind: set() for kind, *_ in done}
    compared = 0
    for kind, body, status, text in done:
        statuses[kind].add(status)
        if status == 200 and kind == "good" and '"error"' not in text:
            found = streamed(text) if body["stream"] else texts(json.loads(text))
            assert found == expected(spec, body)
            compared += 1
        elif status not in (0, 200):
            assert json.loads(text)["error"]["message"]
    assert compared > 100
    assert statuses["huge"] == {413}
    for kind in ("broken", "unknown", "wrong"):
        assert statuses[kind] == {400}, kind
    assert statuses["good"] <= {200, 429, 504}
    assert statuses["late"] <= {200, 429, 504}
    assert 0 in statuses["leaves"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The slow drafter is still slow enough to be late."""
    monkeypatch.setattr("tests.server.conftest.Slow.pause_s", 0.004)
