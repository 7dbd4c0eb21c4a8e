"""Answers as they are sent: whole, or chunk by chunk as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from draftproof.server.answer import Choice, Choices, Form
from draftproof.server.door import Visit
from draftproof.server.errors import ClientLeft, refusal
from draftproof.server.run import Run
from draftproof.service.records import Progress

T = TypeVar("T")
_DONE = "data: [DONE]\n\n"


class Sender:
    """Sends one answer."""

    def __init__(self, run: Run, form: Form, visit: Visit) -> None:
        self._run = run
        self._form = form
        self._visit = visit
        self._choices = Choices(run.order.prompts, run.order.params.n)

    async def whole(self, *, stats: bool) -> Response:
        while await self._take() is not None:
            pass
        # Log-probabilities of a long answer take seconds to write down, and others would wait.
        content = await asyncio.to_thread(self._whole, stats)
        return Response(content, media_type="application/json")

    def stream(self, *, usage: bool, stats: bool) -> Response:
        return AnswerStream(self._run, self._lines(usage, stats))

    def _whole(self, stats: bool) -> str:
        return _json(self._form.whole(self._choices, self._extras(usage=True, stats=stats)))

    async def _lines(self, usage: bool, stats: bool) -> AsyncIterator[str]:
        """Once the status is sent, an error can only be told as an event; then the stream ends."""
        try:
            async for chunk in self._chunks():
                yield event(_json(chunk))
            if extras := self._extras(usage=usage, stats=stats):
                yield event(_json(self._form.closing(extras)))
            yield _DONE
        except Exception as error:
            self._visit.fail(error)
            yield event(refusal(error).body.model_dump_json())

    async def _chunks(self) -> AsyncIterator[BaseModel]:
        for one in self._choices:
            if (opening := self._form.opening(one.index)) is not None:
                yield opening
        while (choice := await self._take()) is not None:
            if choice.has_news:
                yield self._form.chunk(choice)
            if choice.finish_reason is not None:
                yield self._form.ending(choice)

    async def _take(self) -> Choice | None:
        """Wait for an event, note it, and give the choice that it is about; None at the end."""
        event = await self._run.next()
        if event is None:
            return None
        choice = self._choices.take(*event)
        self._visit.tokens = self._choices.prompt_tokens, self._choices.generated
        if self._visit.texts and isinstance(event[1], Progress):
            self._visit.texts["answers"][choice.index] += "".join(event[1].step.texts)
        return choice

    def _extras(self, *, usage: bool, stats: bool) -> dict[str, Any]:
        """The fields that were asked for."""
        extras: dict[str, Any] = {}
        if usage:
            extras["usage"] = self._choices.usage
        if stats:
            extras["speculation"] = self._choices.stats
        return extras


class Events(StreamingResponse):
    """Server-sent events, one `event` after the other."""

    media_type = "text/event-stream"


class AnswerStream(Events):
    """Ends its run however it ends itself, and says so where the client left before."""

    def __init__(self, run: Run, lines: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._noting_its_end(lines), headers=headers)
        self._run = run
        self._is_whole = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._run.close()
        if not self._is_whole:
            raise ClientLeft

    async def _noting_its_end(self, lines: AsyncIterator[str]) -> AsyncIterator[str]:
        async for line in lines:
            yield line
        self._is_whole = True


async def unless_left(request: Request, work: Awaitable[T]) -> T:
    """What `work` gives; `ClientLeft` as soon as nobody waits for it any more."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(body: BaseModel) -> str:
    # A field that was not given is left out; one that is null by OpenAI's rules was given so.
    return body.model_dump_json(exclude_unset=True)


def event(data: str) -> str:
    """One server-sent event of one line."""
    return f"data: {data}\n\n"
