"""The whole application: routes, the door before them, and the service's life."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from draftproof import __version__
from draftproof.api import Speculator
from draftproof.config import ServerSettings
from draftproof.server.door import Door
from draftproof.server.errors import answer_invalid, answer_refusal
from draftproof.server.routes import Served, make_router
from draftproof.server.state import state_of
from draftproof.server.words import Words
from draftproof.service.service import Service


def make_app(
    speculator: Speculator,
    service: Service,
    settings: ServerSettings | None = None,
    *,
    name: str | None = None,
    parts: Sequence[APIRouter] = (),
    refused: Callable[[str], None] | None = None,
) -> FastAPI:
    """`name` is what clients call the model, by default the target's own.

    `parts` are further routes; those under /v1/ need a key where there are any. `refused` is told
    the code of every error that is answered before the service has the request. The service is
    started with the application, and drained and closed with it.
    """
    settings = settings or ServerSettings()
    words = Words(speculator.tokenizer, speculator.num_tokens)
    served = Served(name or speculator.target.name, speculator, service, settings, words)

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        if state_of(service) == "warming up":  # nobody has anything to finish, and it may take long
            threading.Thread(target=service.close, name="close", daemon=True).start()
        else:
            await asyncio.to_thread(service.drain, settings.drain_seconds)
            await asyncio.to_thread(service.close)
        served.reader.shutdown()

    app = FastAPI(
        title="Draftproof",
        version=__version__,
        lifespan=life,
        docs_url=None,  # pages that load scripts from elsewhere
        redoc_url=None,
        exception_handlers={
            HTTPException: answer_refusal,
            RequestValidationError: answer_invalid,
        },
    )
    app.add_middleware(Door, settings=settings, refused=refused)
    for part in (make_router(served), *parts):
        app.include_router(part)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Without the status 422, which FastAPI adds by itself and `answer_invalid` never gives."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for operations in schema["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        app.openapi_schema = schema
    return app.openapi_schema
