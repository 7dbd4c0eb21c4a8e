"""What every request passes: its key, its size, its share, and a line of log when it is over."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.config import ServerSettings
from draftproof.errors import kind_and_place
from draftproof.server.errors import CLIENT_LEFT, ClientLeft, Refusal, refusal
from draftproof.server.log import log, now

READ_S = 60.0
"""Within this time a body has to be here."""
SEND_S = 60.0
"""So long a client may not take what is sent to it."""


@dataclass(slots=True)
class Visit:
    """What is known of one request; the routes add to it."""

    method: str
    path: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: float = field(default_factory=time.monotonic)
    status: int | None = None
    """None until a status was sent."""
    tokens: tuple[int, int] | None = None
    """Of prompts and of answers."""
    texts: dict[str, Any] = field(default_factory=dict)
    """"prompts" and "answers", where the log may hold them."""
    error: str | None = None
    refused: Refusal | None = None
    """The answer, where it was one."""
    taken: bool = False
    """The service has the request; what becomes of it is counted there."""

    def fail(self, error: BaseException) -> None:
        self.error = kind_and_place(error)

    def line(self) -> str:
        record: dict[str, Any] = {
            "time": now(),
            "id": self.id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "seconds": round(time.monotonic() - self.began, 4),
        }
        if self.tokens is not None:
            record["prompt_tokens"], record["completion_tokens"] = self.tokens
        if self.refused is not None:
            record["code"], record["param"] = self.refused.code, self.refused.known_field
        if self.error is not None:
            record["error"] = self.error
        return json.dumps(record | self.texts, ensure_ascii=False)


class Door:
    """Middleware around all routes."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, refused: Callable[[str], None] | None = None
    ) -> None:
        """`refused` is told the code of every error that is answered before the service has the
        request."""
        self._app = app
        self._settings = settings
        self._refused = refused
        self._digests = [sha256(key.encode()).digest() for key in settings.keys]
        self._running: Counter[bytes] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = Visit(scope["method"], scope["path"])
        scope["visit"] = visit
        sender = _Sender(visit, send)
        try:
            await self._let_in(scope, receive, sender)
        except ClientLeft:
            visit.status = CLIENT_LEFT
        except Exception as error:
            told = refusal(error)
            visit.refused = told
            if told.status_code >= 500:
                visit.fail(error)
            if visit.status is None:
                await told.response(scope, receive, sender)
        finally:
            log.info(visit.line())
            if self._refused is not None and visit.refused is not None and not visit.taken:
                self._refused(visit.refused.code or "other")

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        key = self._key(headers.get("authorization", ""))
        body = _Body(receive, self._settings.max_body_bytes, headers.get("content-length"))
        if scope["method"] != "POST" or key is None:
            await self._app(scope, body, send)
            return
        if self._running[key] >= self._settings.max_running:
            raise Refusal(
                429,
                f"{self._settings.max_running} requests of this key are running; wait for one",
                "too_many_requests",
            )
        self._running[key] += 1
        try:
            await self._app(scope, body, send)
        finally:
            self._running[key] -= 1

    def _key(self, authorization: str) -> bytes | None:
        """The digest of the key that was shown; None where none is needed."""
        if not self._digests:
            return None
        scheme, _, shown = authorization.partition(" ")
        digest = sha256(shown.strip().encode()).digest()
        # Every key is compared, so that time tells nothing of which is near.
        known = [hmac.compare_digest(digest, own) for own in self._digests]
        if scheme.lower() != "bearer":
            raise Refusal(401, "show an API key: Authorization: Bearer KEY", "invalid_api_key")
        if not any(known):
            raise Refusal(401, "this API key is not known here", "invalid_api_key")
        return digest


class _Body:
    """`receive`, as long as the body is not too large and not too slow."""

    def __init__(self, receive: Receive, limit: int, announced: str | None) -> None:
        self._receive = receive
        self._limit = limit
        self._until = time.monotonic() + READ_S
        self._size = 0
        self._is_whole = False
        if announced is not None and announced.isdecimal():
            self._count(int(announced))

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._until - time.monotonic())
        except asyncio.TimeoutError:
            raise Refusal(408, f"the body was not here within {READ_S:g} s", "slow_body") from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._count(self._size)
            self._is_whole = not message.get("more_body", False)
        return message

    def _count(self, size: int) -> None:
        if size > self._limit:
            raise Refusal(413, f"the body is larger than {self._limit} bytes", "body_too_large")


class _Sender:
    """`send`, with the visit's number and status, for clients that take what they get."""

    def __init__(self, visit: Visit, send: Send) -> None:
        self._visit = visit
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._visit.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self._visit.id
        try:
            await asyncio.wait_for(self._send(message), SEND_S)
        except asyncio.TimeoutError:
            raise ClientLeft from None
