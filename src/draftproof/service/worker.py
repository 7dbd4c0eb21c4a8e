"""What runs on a service's thread: takes orders between turns, and tells how turns went."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from draftproof.engine.loop import Turn as LoopTurn
from draftproof.errors import (
    Cancelled,
    DeadlineExceeded,
    DraftproofError,
    RequestFailed,
    kind_and_place,
)
from draftproof.service.intake import PLAIN
from draftproof.service.machine import Machine
from draftproof.service.records import Listener, RoundReport, Turn
from draftproof.service.request import Request

_NEWEST = 0.1
"""Weight of the newest request in the mean."""
_log = logging.getLogger("draftproof.service")


class Worker:
    """Decodes requests in a loop of its own; only one thread may call it."""

    def __init__(self, machine: Machine, listener: Listener | None) -> None:
        self._machine = machine
        self._loop = machine.loop
        self._drafting = machine.drafting
        self._listener = listener
        self.mean_s = 0.0
        """What a request takes once it has started; newer ones count more."""
        self.requests: dict[int, Request] = {}
        """Those that are not over, by id."""
        self._owners: dict[int, tuple[Request, int]] = {}
        """Sequence -> its request, and which sample of it."""

    @property
    def busy(self) -> bool:
        return self._loop.busy

    def take(self, request: Request) -> None:
        """Start on a request; one that has nothing to decode ends at once."""
        self.requests[request.request_id] = request
        for sample, entry in enumerate(request.entries):
            self._owners[entry.sequence.seq_id] = request, sample
            self._drafting.assign(entry.sequence.seq_id, request.drafter)
            if entry.sequence.finish_reason is None:
                self._loop.add(entry)
            else:
                self._tell(request, partial(request.end_if_finished, sample))
        self._close_if_over(request)

    def cancel(self, request_id: int) -> None:
        """End a request whose maker is gone; nothing happens if it is over."""
        if request_id in self.requests:
            self.fail(self.requests[request_id], Cancelled("the request was cancelled"))

    def end_late(self) -> None:
        """End requests whose time is up."""
        now = time.monotonic()
        for request in list(self.requests.values()):
            if request.deadline is not None and now >= request.deadline:
                limit = request.deadline - request.submitted
                late = DeadlineExceeded(
                    f"the request took longer than its limit of {limit:.3g} seconds; give it more "
                    "time or fewer tokens"
                )
                self.fail(request, late)

    def fail(self, request: Request, error: DraftproofError) -> None:
        """End a request before its text is complete."""
        self._tell(request, partial(request.fail, error))
        self._close_if_over(request)
        self._drop(request)

    def turn(self) -> None:
        """Run one turn of the loop, and tell everybody what came of it."""
        start = time.perf_counter()
        turn = self._loop.turn()
        for entry, fault in turn.faults:
            _log.error("drafting failed; a text goes on plainly: %s", kind_and_place(fault))
            self._drafting.assign(entry.sequence.seq_id, PLAIN)
        if turn.entries:
            self._report(turn, time.perf_counter() - start - turn.read_s)
        for entry, step in zip(turn.entries, turn.round.steps, strict=True):
            owner = self._owners.get(entry.sequence.seq_id)  # gone with another of its samples
            if step is not None and owner is not None:
                request, sample = owner
                self._tell(request, partial(request.progress, sample, step))
                self._close_if_over(request)
        for entry, fault in turn.failures:
            _log.error("a request failed: %s", kind_and_place(fault))
            if entry.sequence.seq_id in self._owners:
                self._fault(self._owners[entry.sequence.seq_id][0], fault)

    def _fault(self, request: Request, error: Exception) -> None:
        """End a request for a fault, which is told in words if it is an error of ours."""
        what = str(error) if isinstance(error, DraftproofError) else type(error).__name__
        failed = RequestFailed(f"the request failed: {what}")
        failed.__cause__ = error
        self.fail(request, failed)

    def _tell(self, request: Request, tell: Callable[[], None]) -> None:
        """A listener that raises has only itself to lose."""
        try:
            tell()
        except Exception as error:
            where = kind_and_place(error)
            _log.error("request %d: its listener failed: %s", request.request_id, where)
            self._drop(request)
            request.outcome = request.outcome or "failed"
            request.running.clear()

    def _drop(self, request: Request) -> None:
        for entry in request.entries:
            self._loop.drop(entry)

    def _close_if_over(self, request: Request) -> None:
        if request.running or self.requests.pop(request.request_id, None) is None:
            return
        for entry in request.entries:
            del self._owners[entry.sequence.seq_id]
            self._drafting.unassign(entry.sequence.seq_id)
        self._machine.doubt(request.drafter, request.entries)
        report = request.report()
        self.mean_s += _NEWEST * (report.total_s - report.queue_s - self.mean_s)
        if self._listener is not None:
            self._listener.ended(report)

    def _report(self, turn: LoopTurn, seconds: float) -> None:
        assert turn.round.cost is not None
        turns = []
        for entry, plan, reason, step in zip(
            turn.entries, turn.plans, turn.reasons, turn.round.steps, strict=True
        ):
            if step is not None:
                request, sample = self._owners[entry.sequence.seq_id]
                if sample == 0:
                    request.plan = plan
                turns.append(Turn(request.request_id, sample, request.drafter, plan, step, reason))
        if self._listener is not None:
            self._listener.round(RoundReport(tuple(turns), turn.round.cost, seconds))
