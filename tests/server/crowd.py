"""Many clients that ask at once, each one request after the other, good ones and bad ones."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import httpx

from tests.server.conftest import events, texts

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "naps"]
KINDS = {
    "good": 60,
    "leaves": 12,
    "stops listening": 6,
    "late": 6,
    "huge": 4,
    "broken": 4,
    "unknown": 4,
    "wrong": 4,
    "many": 4,
}
"""How often each comes up."""
OPTIONS = {
    "top_k": lambda dice: dice.randint(1, 50),
    "top_p": lambda dice: dice.uniform(0.5, 1),
    "min_p": lambda dice: dice.uniform(0, 0.2),
    "repetition_penalty": lambda dice: dice.uniform(0.8, 1.3),
    "presence_penalty": lambda dice: dice.uniform(-1, 1),
    "frequency_penalty": lambda dice: dice.uniform(-1, 1),
    "stop": lambda dice: dice.choice(["e", ["a", "th"], "\n"]),
    "logit_bias": lambda dice: {str(dice.randint(3, 250)): dice.uniform(-5, 5) for _ in range(3)},
    "n": lambda _dice: 2,
    "logprobs": lambda dice: dice.randint(0, 5),
    "response_format": lambda _dice: {"type": "json_object"},
    "speculation": lambda dice: dice.choice(
        [
            {"enabled": False},
            {"depth": dice.randint(0, 6)},
            {"drafter": "slow"},
            {"stats": True},
        ]
    ),
}
"""Fields of good requests, each of which comes up in a quarter of them."""
LONG = {"max_tokens": 400, "ignore_eos": True, "speculation": {"drafter": "slow"}}


@dataclass
class Answer:
    """What a client sent and what came of it."""

    kind: str
    prompt: Any
    body: dict[str, Any]
    status: int
    """0 where the client left before there was one."""
    texts: list[str] | None = None
    logprobs: int | None = None
    """Tokens that had some."""
    error: dict[str, Any] | None = None


async def crowd(
    address: str, short_of_time: str, clients: int, requests: int, seed: int
) -> list[Answer]:
    """`requests` in all; those that are to be late go to `short_of_time`."""
    done: list[Answer] = []
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(limits=limits, timeout=120) as http:

        async def client(number: int) -> None:
            dice = random.Random(1000 * seed + number)
            for _ in range(requests // clients + (number < requests % clients)):
                kind = dice.choices(list(KINDS), list(KINDS.values()))[0]
                base = short_of_time if kind == "late" else address
                done.append(await _ask(http, base, kind, dice))

        await asyncio.gather(*(client(number) for number in range(clients)))
    return done


async def _ask(http: httpx.AsyncClient, base: str, kind: str, dice: random.Random) -> Answer:
    prompt = " ".join(dice.choices(WORDS, k=dice.randint(1, 12)))
    body = _body(kind, dice)
    is_chat = dice.random() < 0.4
    sent, path = body | {"prompt": prompt}, COMPLETIONS
    if is_chat:
        prompt = [{"role": "user", "content": prompt}]
        sent, path = body | {"messages": prompt}, CHAT
        if "logprobs" in body:
            sent |= {"logprobs": True, "top_logprobs": body["logprobs"]}
    content = _content(kind, sent)
    headers = {"Content-Type": "application/json"}
    if kind == "leaves":
        try:
            wait = dice.choice([0.05, 0.2, 0.5])
            await http.post(base + path, content=content, headers=headers, timeout=wait)
        except httpx.TimeoutException:
            pass
        return Answer(kind, prompt, body, 0)
    if kind == "stops listening":
        async with http.stream("POST", base + path, content=content, headers=headers) as answer:
            await anext(answer.aiter_text())
            return Answer(kind, prompt, body, answer.status_code)
    answer = await http.post(base + path, content=content, headers=headers)
    return _read(Answer(kind, prompt, body, answer.status_code), answer)


def _body(kind: str, dice: random.Random) -> dict[str, Any]:
    body = {
        "max_tokens": dice.randint(1, 16),
        "temperature": dice.choice([0, 0.7, 1.3]),
        "seed": dice.randint(0, 99),
        "stream": dice.random() < 0.4,
    }
    for name, option in OPTIONS.items():
        if dice.random() < 0.25:
            body[name] = option(dice)
    if kind in ("leaves", "late", "stops listening"):
        body = LONG | {"stream": dice.random() < 0.4 or kind == "stops listening"}
    elif kind == "unknown":
        body["surprise"] = 1
    elif kind == "wrong":
        body |= dice.choice([{"temperature": -1}, {"max_tokens": "many"}, {"n": 0}, {"top_p": 7}])
    elif kind == "many":
        body |= dice.choice([{"stop": [{}] * 5000}, {"stop_token_ids": [[]] * 5000}])
    return body


def _content(kind: str, sent: dict[str, Any]) -> str:
    if kind == "huge":
        return json.dumps(sent | {"user": "x" * 300_000})
    content = json.dumps(sent)
    return content[: len(content) // 2] if kind == "broken" else content


def _read(answer: Answer, response: httpx.Response) -> Answer:
    """The answer with what its body says."""
    if response.headers["content-type"].startswith("text/event-stream"):
        *chunks, last = events(response.text)
        if last != "[DONE]":
            answer.error = json.loads(last)["error"]
            return answer
        chunks = [json.loads(chunk) for chunk in chunks]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        answer.texts = _joined(choices)
    else:
        whole = response.json()
        if answer.status != 200:
            answer.error = whole["error"]
            return answer
        choices = whole["choices"]
        answer.texts = texts(whole)
    if "logprobs" in answer.body:
        answer.logprobs = sum(_logprobs(choice["logprobs"]) for choice in choices)
    return answer


def _joined(choices: list[dict[str, Any]]) -> list[str]:
    """The texts of a stream, in the order of their choices."""
    found: dict[int, str] = {}
    for choice in choices:
        new = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        found[choice["index"]] = found.get(choice["index"], "") + new
    return [found[index] for index in sorted(found)]


def _logprobs(table: dict[str, Any] | None) -> int:
    if table is None:
        return 0
    return len(table["tokens"] if "tokens" in table else table["content"])
