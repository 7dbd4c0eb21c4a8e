"""One request's way through the service: what happens on its thread is awaited on the loop."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from draftproof.errors import DeadlineExceeded, Overloaded
from draftproof.server.errors import ClientLeft
from draftproof.server.order import Order
from draftproof.server.state import told_of
from draftproof.service.records import Event, Failed, Finished, Progress
from draftproof.service.service import Service, Ticket


class Patience:
    """For how long an answer is waited for; looked at between steps that take a while."""

    def __init__(self, seconds: float, began: float) -> None:
        """`began` is on the clock of `time.monotonic`."""
        self._seconds = seconds
        self._until = began + seconds
        self.is_gone = False
        """Nobody waits any more."""

    @property
    def left_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def check(self) -> None:
        """Raise where nobody waits any more, or the time is over; may be called on any thread."""
        if self.is_gone:
            raise ClientLeft
        if not self.left_s:
            raise DeadlineExceeded(
                f"reading the request took longer than its limit of {self._seconds:.3g} seconds; "
                "send fewer or shorter prompts"
            )


class Run:
    """The tickets of one request, one for each prompt; made and awaited on the loop."""

    def __init__(self, service: Service, order: Order, patience: Patience) -> None:
        self.order = order
        self._patience = patience
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._ahead: tuple[int, Progress | Finished] | None = None
        self._tickets: list[Ticket] = []
        self._open = len(order.prompts)
        self._closed = False

    def submit(self) -> None:
        """Queue all prompts, or none; may be called from any thread."""
        try:
            for index, prompt in enumerate(self.order.prompts):
                self._patience.check()
                ticket = self._service.submit(
                    prompt,
                    self.order.params,
                    partial(self._hand_over, index),
                    speculation=self.order.speculation,
                    deadline_s=self._patience.left_s,
                )
                self._tickets.append(ticket)
        except Overloaded as error:
            self.close()
            raise told_of(error, self._service) from error
        except BaseException:
            self.close()
            raise
        if self._closed:  # while this thread was submitting
            self.close()

    async def begin(self) -> None:
        """Wait for the first event; what fails before it is raised here."""
        self._ahead = await self._take()

    async def next(self) -> tuple[int, Progress | Finished] | None:
        """The number of a prompt and what happened to it; None when all is over.

        The error of a request that failed is raised; its other prompts are cancelled.
        """
        if self._ahead is not None:
            event, self._ahead = self._ahead, None
            return event
        return await self._take() if self._open else None

    def close(self) -> None:
        """Let go of what still runs; may be called at any time, from any thread."""
        self._closed = True
        for ticket in self._tickets:
            ticket.cancel()

    async def _take(self) -> tuple[int, Progress | Finished]:
        index, event = await self._events.get()
        if isinstance(event, Failed):
            self.close()
            if isinstance(event.error, Overloaded):
                raise told_of(event.error, self._service) from event.error
            raise event.error
        if isinstance(event, Finished) and event.last:
            self._open -= 1
        return index, event

    def _hand_over(self, index: int, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))
