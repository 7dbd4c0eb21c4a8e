"""The routes that OpenAI has, and /health."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from draftproof.api import Speculator
from draftproof.config import ServerSettings
from draftproof.server.answer import Form, Head
from draftproof.server.chat import Chat, ChatForm, ChatRequest
from draftproof.server.completions import Completion, CompletionForm, CompletionRequest
from draftproof.server.door import Visit
from draftproof.server.errors import ErrorBody, Refusal
from draftproof.server.order import Body, read_order
from draftproof.server.run import Run
from draftproof.server.stream import Sender, unless_left
from draftproof.server.words import Words
from draftproof.service.service import Service


@dataclass(frozen=True)
class Served:
    """One model behind the routes."""

    name: str
    speculator: Speculator
    service: Service
    settings: ServerSettings
    words: Words
    created: int = field(default_factory=lambda: int(time.time()))
    reader: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "reader"))
    """Tokenizers are not made for two threads, and a long text would hold up the loop."""


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["draftproof"]
    max_model_len: int
    """Most tokens of a prompt with its answer."""
    drafters: list[str]
    """What `speculation.drafter` may name, the default first."""


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


Status: TypeAlias = Literal["ready", "warming up", "draining", "failed"]


class Health(BaseModel):
    status: Status


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The part of the OpenAPI that says which errors a route has."""
    return {
        status: {"model": ErrorBody, "description": _FAILURES[status]}
        for status in (401, *statuses)
    }


_FAILURES = {
    400: "A field is unknown, not supported, or out of range; the prompt does not fit",
    401: "No API key, or a wrong one",
    404: "No such model",
    408: "The body came too slowly",
    413: "The body is too large",
    429: "The queue is full, or the key has too many requests running; see Retry-After",
    500: "The request failed; others go on",
    503: "The server warms up or goes down; see Retry-After",
    504: "The request took longer than the server allows",
}
_AGAIN_S = {"warming up": 10, "draining": 30, "failed": 30}
"""When to ask again."""
_WHY_NOT = {
    "warming up": "the server is warming up; /health says when it is ready",
    "draining": "the server is draining and takes no more requests",
    "failed": "the server has failed and takes no requests; its log says why",
}
_GENERATING = (400, 404, 408, 413, 429, 500, 503, 504)


def _stream_of(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }


def make_router(served: Served) -> APIRouter:
    router = APIRouter()
    spoken = failures(*_GENERATING) | {200: _stream_of("The answer, or events with `stream`")}

    @router.post("/v1/completions", response_model=Completion, responses=spoken)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue texts or lists of ids."""
        form = CompletionForm(
            _head("cmpl", served, request), served.words, logprobs=body.logprobs is not None
        )
        return await _answer(served, request, body, form)

    @router.post("/v1/chat/completions", response_model=Chat, responses=spoken)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer messages, read through the model's template."""
        form = ChatForm(
            _head("chatcmpl", served, request), served.words, logprobs=bool(body.logprobs)
        )
        return await _answer(served, request, body, form)

    @router.get("/v1/models", responses=failures())
    async def models() -> Models:
        """The one model that is served, and its drafters."""
        return Models(object="list", data=[_model(served)])

    @router.get("/v1/models/{name:path}", responses=failures(404))
    async def model(name: str) -> Model:
        _check_name(name, served)
        return _model(served)

    @router.get("/health", response_model=Health, responses={503: {"model": Health}})
    async def health() -> Response:
        """Whether requests are taken: after a first round, and until the server drains."""
        status = _status(served.service)
        if status == "ready":
            return JSONResponse({"status": status})
        return JSONResponse({"status": status}, 503, {"Retry-After": str(_AGAIN_S[status])})

    return router


async def _answer(served: Served, request: Request, body: Body, form: Form) -> Response:
    visit: Visit = request.scope["visit"]
    if body.model is not None:
        _check_name(body.model, served)
    if (status := _status(served.service)) != "ready":
        raise Refusal(
            503,
            _WHY_NOT[status],
            status.replace(" ", "_"),
            retry_after_s=_AGAIN_S[status],
        )
    loop, settings = asyncio.get_running_loop(), served.settings
    order = await loop.run_in_executor(
        served.reader, read_order, body, served.speculator, settings, served.service.max_length
    )
    if settings.log_prompts:
        answers = [""] * len(order.prompts) * order.params.n
        visit.texts = {"prompts": body.prompts, "answers": answers}
    run = Run(served.service, order)
    sender, stats = Sender(run, form, visit), body.speculation.stats
    try:
        left_s = settings.max_seconds - (time.monotonic() - visit.began)
        await loop.run_in_executor(served.reader, run.submit, max(0.0, left_s))
        if not body.stream:
            return await unless_left(request, sender.whole(stats=stats))
        await unless_left(request, run.begin())
        return sender.stream(usage=body.wants_usage, stats=stats)
    except BaseException:
        run.close()
        raise


def _head(prefix: str, served: Served, request: Request) -> Head:
    return Head(f"{prefix}-{request.scope['visit'].id}", int(time.time()), served.name)


def _model(served: Served) -> Model:
    return Model(
        id=served.name,
        object="model",
        created=served.created,
        owned_by="draftproof",
        max_model_len=served.service.max_length,
        drafters=list(served.service.drafters),
    )


def _check_name(name: str, served: Served) -> None:
    if name != served.name:
        raise Refusal(
            404,
            f"there is no model {name!r} here, only {served.name!r}",
            "model_not_found",
            "model",
        )


def _status(service: Service) -> Status:
    if service.fault is not None:
        return "failed"
    if service.snapshot().draining:
        return "draining"
    return "ready" if service.ready else "warming up"
