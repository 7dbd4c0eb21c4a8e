"""The routes that OpenAI has, and /health."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

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
from draftproof.server.run import Patience, Run
from draftproof.server.state import AGAIN_S, State, check_ready, state_of
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


class Health(BaseModel):
    status: State


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

    _add_health(router, served.service)
    return router


def _add_health(router: APIRouter, service: Service) -> None:
    @router.get("/health", response_model=Health, responses={503: {"model": Health}})
    async def health() -> Response:
        """Whether requests are taken: after a first round, and until the server drains."""
        state = state_of(service)
        if state == "ready":
            return JSONResponse({"status": state})
        return JSONResponse({"status": state}, 503, {"Retry-After": str(AGAIN_S[state])})

    @router.head("/health", include_in_schema=False)
    async def health_without_body() -> Response:
        return await health()


async def _answer(served: Served, request: Request, body: Body, form: Form) -> Response:
    visit: Visit = request.scope["visit"]
    if body.model is not None:
        _check_name(body.model, served)
    check_ready(served.service)
    patience = Patience(served.settings.max_seconds, visit.began)
    try:
        return await unless_left(request, _work(served, visit, body, form, patience))
    except BaseException:
        patience.is_gone = True
        raise


async def _work(
    served: Served, visit: Visit, body: Body, form: Form, patience: Patience
) -> Response:
    """The whole answer, or a stream that has begun."""
    loop, settings, length = asyncio.get_running_loop(), served.settings, served.service.max_length
    order = await loop.run_in_executor(
        served.reader, read_order, body, served.speculator, settings, length, patience.check
    )
    if settings.log_prompts:
        answers = [""] * len(order.prompts) * order.params.n
        visit.texts = {"prompts": body.prompts, "answers": answers}
    if order.params.logprobs is not None:
        await loop.run_in_executor(served.reader, served.words.prepare)
    run = Run(served.service, order, patience)
    sender, stats = Sender(run, form, visit), body.speculation.stats
    try:
        await loop.run_in_executor(served.reader, run.submit)
        visit.taken = True
        if not body.stream:
            return await sender.whole(stats=stats)
        await run.begin()
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
