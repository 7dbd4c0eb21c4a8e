"""What people and Prometheus see of a service: the live page, its events, and the counters."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any, Protocol

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from draftproof.errors import Overloaded
from draftproof.server.errors import Refusal
from draftproof.server.live import MAX_WATCHERS, Live, describe
from draftproof.server.metrics import CONTENT_TYPE, Metrics
from draftproof.server.routes import failures
from draftproof.server.stream import Events, event
from draftproof.service.records import Snapshot

TICK_S = 0.1
"""A page hears of what happened so often."""
IDLE_TICKS = 10
"""Ticks without anything new after which the page hears of the service all the same."""

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_NAMES = ("page.html", "page.css", "page.js", "requests.js", "chart.js", "icon.svg")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Watched(Protocol):
    """What is read of a service."""

    def snapshot(self) -> Snapshot: ...


def routes(
    service: Watched,
    metrics: Metrics,
    live: Live,
    *,
    show_text: bool = False,
) -> APIRouter:
    """`show_text` shows the texts of all requests to whoever watches.

    Events and the counters of speculation lie under /v1/, where a key is needed if any path needs
    one; the page itself holds no data, and /metrics only numbers.
    """
    router = APIRouter()
    folder = files("draftproof.server") / "static"
    contents = {name: (folder / name).read_bytes() for name in _NAMES}

    @router.get("/", include_in_schema=False)
    def page() -> Response:
        return _file("page.html", contents)

    @router.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        return _file(name, contents)

    @router.get("/metrics", response_class=PlainTextResponse)
    def scrape() -> Response:
        """All metrics in Prometheus' text format."""
        return Response(metrics.exposition(service.snapshot()), media_type=CONTENT_TYPE)

    @router.get("/v1/speculation", responses=failures())
    def speculation() -> dict[str, Any]:
        """What speculation has brought so far, by drafter, and the plans of running requests."""
        return metrics.as_dict(service.snapshot())

    @router.get("/v1/events", response_class=Events, responses=failures(503))
    def events() -> Events:
        """What happens now, as server-sent events; each holds one JSON object."""
        if live.watchers >= MAX_WATCHERS:
            raise Refusal(503, f"{MAX_WATCHERS} pages watch already; close one", "too_many_watch")
        return Events(
            _messages(service, metrics, live, show_text),
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    return router


def _file(name: str, contents: dict[str, bytes]) -> Response:
    if name not in contents:
        raise Refusal(404, f"there is no file {name!r}", "not_found")
    return Response(contents[name], media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)


async def _messages(
    service: Watched, metrics: Metrics, live: Live, show_text: bool
) -> AsyncIterator[str]:
    """Server-sent events until the watcher goes, or the service drains and nothing is left."""
    try:
        with live.watch() as watcher:
            quiet = IDLE_TICKS
            while True:
                events, missed = watcher.take()
                quiet = 0 if events else quiet + 1
                snapshot = service.snapshot()
                if events or quiet >= IDLE_TICKS:
                    quiet = 0
                    message = _state(snapshot, metrics) | describe(events, show_text)
                    message |= {"missed": missed, "shows_text": show_text}
                    yield event(json.dumps(message))
                if snapshot.draining and not events and not snapshot.running + snapshot.waiting:
                    return
                await asyncio.sleep(TICK_S)
    except Overloaded:
        return


def _state(snapshot: Snapshot, metrics: Metrics) -> dict[str, Any]:
    """The service at this moment; `at` and the counts of all turns make rates."""
    stats = metrics.total().stats
    return {
        "at": time.monotonic(),
        "running": snapshot.running,
        "waiting": snapshot.waiting,
        "sequences": snapshot.sequences,
        "cache": [snapshot.cache_tokens_used, snapshot.cache_tokens],
        "draining": snapshot.draining,
        "plans": {request: [plan.depth, plan.width] for request, plan in snapshot.plans.items()},
        "generated": stats.generated,
        "calls": stats.target_calls,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
    }
