"""A service: requests come and go, one batch decodes them all, on a thread of its own."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from draftproof.api import Speculator
from draftproof.config import ServiceSettings, Speculation
from draftproof.drafters.base import Drafter
from draftproof.drafters.none import NoDrafter
from draftproof.errors import Overloaded, kind_and_place
from draftproof.sampling.params import SamplingParams
from draftproof.service.intake import PLAIN, Intake
from draftproof.service.machine import Machine
from draftproof.service.records import Event, Listener, Snapshot
from draftproof.service.request import Request
from draftproof.service.worker import Worker

_log = logging.getLogger("draftproof.service")
_RESTART_S = 30.0
"""When to ask again where a service goes down."""
_IDLE_S = 0.5
"""How long an idle service sleeps at most before it looks at deadlines again."""


class Ticket:
    """A request that was taken."""

    def __init__(self, request_id: int, cancel: Callable[[int], None]) -> None:
        self.request_id = request_id
        self._cancel = cancel

    def cancel(self) -> None:
        """End the request before its next round; may be called from any thread, at any time."""
        self._cancel(self.request_id)


class Service:
    """Decodes the requests of many users side by side; call it from any thread.

    Nothing a caller does waits for a round: orders lie in an inbox, which the service's thread
    empties between rounds.
    """

    def __init__(
        self,
        speculator: Speculator,
        *,
        drafters: Mapping[str, Drafter] | None = None,
        settings: ServiceSettings | None = None,
        listener: Listener | None = None,
    ) -> None:
        """`drafters` are those a request may name beside the speculator's own, the default."""
        own = {speculator.drafter.name: speculator.drafter}
        self._drafters: dict[str, Drafter] = {**own, **(drafters or {}), PLAIN: NoDrafter()}
        self._settings = settings or ServiceSettings()
        self._speculator = speculator
        self._listener = listener
        self._machine = Machine(speculator, self._drafters, self._settings)
        self._intake = Intake(
            speculator, self._machine, self._drafters, self._settings, self._refuse
        )
        self._worker = Worker(self._machine, listener)
        self._ids = itertools.count(1)
        self._inbox: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._queued = 0
        """Requests that came since the last snapshot ..."""
        self._taken = 0
        """... of which the worker has so many."""
        self._draining = self._closing = False
        self._warm = threading.Event()
        self.fault: Exception | None = None
        """What kept the service from starting or from going on; it takes no requests then."""
        self._thread: threading.Thread | None = None
        self._snapshot = self._look()

    @property
    def ready(self) -> bool:
        """A round has been run, and requests are taken."""
        return self._warm.is_set() and self.fault is None and not self._draining

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names that a request may ask for, the default first."""
        return tuple(self._drafters)

    @property
    def max_length(self) -> int:
        """Most tokens of one prompt with its answer."""
        return self._machine.max_length

    def start(self) -> None:
        """Start the thread, which warms up first; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="draftproof", daemon=True)
            self._thread.start()

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Block until the service has warmed up; False if it had not in time.

        Raises what the warm-up raised.
        """
        warm = self._warm.wait(timeout_s)
        if self.fault is not None:
            raise self.fault
        return warm

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        on_event: Callable[[Event], None],
        *,
        speculation: Speculation | None = None,
        deadline_s: float | None = None,
    ) -> Ticket:
        """Queue a request; `on_event` is called on the service's thread, in order, and never
        after the last event (`Finished` with `last`, or `Failed`).

        `deadline_s`: seconds from now after which the request fails with `DeadlineExceeded`.
        `InvalidPrompt`, `InvalidSetting`, `IncompatiblePair`: the request can never work;
        `LimitExceeded`: it is larger than the service allows; `Overloaded`: the queue is full or
        the service is going down.
        """
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        name, entries = self._intake.entries(prompt, params, speculation or Speculation())
        request = Request(next(self._ids), name, entries, on_event, deadline)
        with self._changed:
            self._check_room()
            self._queued += 1
            self._inbox.append(partial(self._take, request))
            self._changed.notify()
        return Ticket(request.request_id, self._cancel)

    def check_room(self) -> None:
        """Raise what `submit` would raise now for want of room: a prompt need not be encoded."""
        with self._changed:
            self._check_room()

    def snapshot(self) -> Snapshot:
        """As of the last round, with what has come since."""
        with self._changed:
            now = self._snapshot
            waiting = now.waiting + self._queued
            return replace(now, waiting=waiting, draining=self._draining)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Take no more requests and wait for those there are; whether all ended in time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._draining = True
            while self._thread is not None and self._thread.is_alive() and self._has_work():
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(min(left, _IDLE_S) if left is not None else _IDLE_S)
            return not self._has_work()

    def close(self) -> None:
        """End what is still there (`Failed` with `Overloaded`) and stop the thread."""
        with self._changed:
            self._draining = self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            self._end_all(Overloaded("the service was stopped", _RESTART_S))
        else:
            self._thread.join()

    def _has_work(self) -> bool:
        snapshot = self._snapshot
        return bool(self._inbox or self._queued or snapshot.running or snapshot.waiting)

    def _check_room(self) -> None:
        """Refuse a request that cannot be queued now; called with the lock held."""
        if self.fault is not None:
            self._refuse("failed")
            raise Overloaded("the service has failed and takes no requests", _RESTART_S)
        if self._draining:
            self._refuse("draining")
            raise Overloaded("the service is going down and takes no more requests", _RESTART_S)
        waiting = self._snapshot.waiting + self._queued
        if waiting >= self._settings.max_waiting:
            self._refuse("queue_full")
            raise Overloaded(
                f"{waiting} requests are waiting, and no more may; try again later",
                max(1.0, waiting * self._worker.mean_s / self._speculator.settings.max_batch),
            )

    def _refuse(self, reason: str) -> None:
        if self._listener is not None:
            self._listener.refused(reason)

    def _cancel(self, request_id: int) -> None:
        with self._changed:
            self._inbox.append(partial(self._worker.cancel, request_id))
            self._changed.notify()

    def _take(self, request: Request) -> None:
        self._taken += 1
        if self._listener is not None:
            self._listener.submitted(request.request_id)
        self._worker.take(request)

    def _run(self) -> None:
        why = Overloaded("the service was stopped", _RESTART_S)
        try:
            self._machine.warm_up(lambda: self._closing)
            self._warm.set()
            while not self._closing:
                self._serve()
        except Exception as error:
            what = "going on" if self._warm.is_set() else "its warm-up"
            _log.error("the service failed at %s: %s", what, kind_and_place(error))
            with self._changed:
                self.fault, self._draining, self._closing = error, True, True
            why = Overloaded("the service has failed", _RESTART_S)
        self._end_all(why)
        self._warm.set()

    def _serve(self) -> None:
        """Wait for something to do, and run one turn."""
        with self._changed:
            if not self._inbox and not self._worker.busy and not self._closing:
                self._changed.wait(_IDLE_S)
        self._obey()
        self._worker.end_late()
        if self._worker.busy and not self._closing:
            self._worker.turn()
        if not self._worker.busy:
            self._check_idle()
        self._publish()

    def _end_all(self, why: Overloaded) -> None:
        """Tell everybody who is left that nothing more will come."""
        while self._inbox or self._worker.requests:
            try:
                self._obey()
                for request in list(self._worker.requests.values()):
                    self._worker.fail(request, why)
            except Exception as error:
                # Each has been told before anything could fail, so this comes to an end.
                _log.error("a request was not put away: %s", kind_and_place(error))
        self._publish()

    def _check_idle(self) -> None:
        """With nothing to do, nobody owns anything."""
        if lost := self._machine.lost_tokens:
            _log.error("%d tokens of the cache belong to nobody, and are lost", lost)
        if self._worker.requests:
            _log.error("%d requests have no sequence", len(self._worker.requests))

    def _obey(self) -> None:
        """Empty the inbox."""
        while self._inbox:
            self._inbox.popleft()()

    def _publish(self) -> None:
        """Let others see how things stand."""
        with self._changed:
            self._snapshot = self._look()
            self._queued -= self._taken
            self._taken = 0
            self._changed.notify_all()

    def _look(self) -> Snapshot:
        machine, requests = self._machine, self._worker.requests
        return Snapshot(
            running=sum(not request.waiting for request in requests.values()),
            waiting=sum(request.waiting for request in requests.values()),
            sequences=len(machine.loop.entries),
            cache_tokens=machine.cache_tokens,
            cache_tokens_used=machine.cache_tokens - machine.cache.num_free,
            preemptions=machine.loop.preemptions,
            plans={id_: one.plan for id_, one in requests.items() if one.plan is not None},
            draining=self._draining,
        )
