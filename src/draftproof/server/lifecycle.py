"""From a socket to an orderly end: the first signal drains, the second ends at once, and a service
that has failed ends the server, so that whoever watches over it can start another."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from draftproof.errors import InvalidSetting, kind_and_place
from draftproof.server.state import state_of
from draftproof.service.service import Service

_LAST_WORDS_S = 5
"""After draining, so long answers may take to tell that they were cut off."""
_LOOK_S = 0.2
"""How often a service is looked at that may fail."""


class Server(uvicorn.Server):
    """Goes on listening while it drains, so that clients are told and not just shut out."""

    def __init__(
        self, app: FastAPI, service: Service, drain_s: float, say: Callable[[str], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                ws="none",
                lifespan="on",
                timeout_graceful_shutdown=_LAST_WORDS_S,
            )
        )
        self._service = service
        self._drain_s = drain_s
        self._say = say
        self._drains = False
        self._was_ready = False
        self._left_warm_up = False
        """The server ends while the service still measures, which nothing can interrupt."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._drains:
            self.should_exit = self.force_exit = True
            return
        self._drains = True
        threading.Thread(target=self._leave, name="drain", daemon=True).start()

    def exit_code(self) -> int:
        """What the process has to end with, once the server has; raises what kept the service from
        starting."""
        if self._left_warm_up:
            # A thread still computes, and an interpreter that ends under it may crash.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        if self._service.fault is None:
            return 0
        if not self._was_ready:
            raise self._service.fault
        # Not its own words, which may quote a prompt.
        self._say(f"The service failed and has ended: {kind_and_place(self._service.fault)}")
        return 1

    def _watch(self) -> None:
        """Say when requests are taken; a service that fails, at once or later, ends the server."""
        try:
            self._service.wait_until_ready()
        except Exception:
            self.should_exit = True
            return
        self._was_ready = True
        self._say("Ready")
        while self._service.fault is None and not self.should_exit:
            time.sleep(_LOOK_S)
        self.should_exit = True

    def _leave(self) -> None:
        if state_of(self._service) == "warming up":
            self._left_warm_up = True
        else:
            self._say(
                f"Finishing what runs, for {self._drain_s:g} s at most; once more ends at once"
            )
            self._service.drain(self._drain_s)
            self._service.close()
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A socket that does not listen yet; a port of 0 takes a free one."""
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        if bound is not None:
            bound.close()
        raise InvalidSetting(
            f"{host}:{port} cannot be listened at ({error}); give another --host or --port"
        ) from error
    return bound


def address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Only programs of this machine can reach it."""
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback
