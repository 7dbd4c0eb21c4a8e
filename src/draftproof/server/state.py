"""How a service stands, and what clients are told where it takes nothing from them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from draftproof.errors import Overloaded
from draftproof.server.errors import Refusal
from draftproof.service.service import Service

State: TypeAlias = Literal["ready", "warming up", "draining", "failed"]

AGAIN_S = {"warming up": 10, "draining": 30, "failed": 30}
"""When to ask again."""
_WHY_NOT = {
    "warming up": "the server is warming up; /health says when it is ready",
    "draining": "the server is draining and takes no more requests",
    "failed": "the server has failed and takes no requests; its log says why",
}


def state_of(service: Service) -> State:
    if service.fault is not None:
        return "failed"
    if service.snapshot().draining:
        return "draining"
    return "ready" if service.ready else "warming up"


def check_ready(service: Service) -> None:
    """Refuse a request that would not be taken now, before it is read."""
    if (state := state_of(service)) != "ready":
        raise Refusal(503, _WHY_NOT[state], _code(state), retry_after_s=AGAIN_S[state])
    try:
        service.check_room()
    except Overloaded as error:
        raise told_of(error, service) from error


def told_of(error: Overloaded, service: Service) -> Exception:
    """What `error` means: a full queue, or a service that goes down or has failed."""
    if (state := state_of(service)) == "ready":
        return error
    return Refusal(503, str(error), _code(state), retry_after_s=error.retry_after_s)


def _code(state: State) -> str:
    return state.replace(" ", "_")
