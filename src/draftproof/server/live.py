"""What happens now, for whoever watches; without watchers it costs nothing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from draftproof.core import Plan
from draftproof.errors import Overloaded
from draftproof.service.records import Listener, RequestReport, RoundReport, Turn

MAX_WATCHERS = 16
MAX_EVENTS = 512
"""Events kept for a watcher that is slow to take them; older ones are dropped."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request was queued."""

    request_id: int


Event: TypeAlias = Submitted | RoundReport | RequestReport


class Together:
    """Several listeners as one."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def submitted(self, request_id: int) -> None:
        for listener in self._listeners:
            listener.submitted(request_id)

    def refused(self, reason: str) -> None:
        for listener in self._listeners:
            listener.refused(reason)

    def round(self, report: RoundReport) -> None:
        for listener in self._listeners:
            listener.round(report)

    def ended(self, report: RequestReport) -> None:
        for listener in self._listeners:
            listener.ended(report)


class Watcher:
    """The latest events that one watcher has not taken yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._missed = 0

    def put(self, event: Event) -> None:
        with self._lock:
            self._missed += len(self._events) == MAX_EVENTS
            self._events.append(event)

    def take(self) -> tuple[list[Event], int]:
        """Events since the last call, and how many were dropped before them."""
        with self._lock:
            events, missed = list(self._events), self._missed
            self._events.clear()
            self._missed = 0
        return events, missed


class Live:
    """A listener that hands events to watchers; refusals are no request's and are not told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: tuple[Watcher, ...] = ()

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    @contextmanager
    def watch(self) -> Iterator[Watcher]:
        """`Overloaded` when `MAX_WATCHERS` watch already."""
        watcher = Watcher()
        with self._lock:
            if len(self._watchers) == MAX_WATCHERS:
                raise Overloaded(f"{MAX_WATCHERS} pages watch already; close one", 10.0)
            self._watchers += (watcher,)
        try:
            yield watcher
        finally:
            with self._lock:
                self._watchers = tuple(one for one in self._watchers if one is not watcher)

    def submitted(self, request_id: int) -> None:
        if self._watchers:
            self._tell(Submitted(request_id))

    def refused(self, reason: str) -> None:
        pass

    def round(self, report: RoundReport) -> None:
        self._tell(report)

    def ended(self, report: RequestReport) -> None:
        self._tell(report)

    def _tell(self, event: Event) -> None:
        for watcher in self._watchers:
            watcher.put(event)


@dataclass(slots=True)
class _Turns:
    """The turns of one sample since the last message."""

    drafter: str
    plan: Plan
    drafted: int = 0
    origins: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, turn: Turn) -> None:
        self.plan = turn.plan
        self.drafted += turn.step.drafted
        self.origins += turn.step.origins
        self.texts += turn.step.texts


def describe(events: Iterable[Event], show_text: bool) -> dict[str, Any]:
    """Events as one message for a page, ready for JSON; a sample's turns become one."""
    submitted, ended = [], []
    turns: dict[tuple[int, int], _Turns] = {}
    for event in events:
        if isinstance(event, Submitted):
            submitted.append(event.request_id)
        elif isinstance(event, RequestReport):
            ended.append({"request": event.request_id, "outcome": event.outcome})
        else:
            for turn in event.turns:
                key = turn.request_id, turn.sample
                turns.setdefault(key, _Turns(turn.drafter, turn.plan)).add(turn)
    return {
        "submitted": submitted,
        "turns": [
            {
                "request": request,
                "sample": sample,
                "drafter": one.drafter,
                "plan": [one.plan.depth, one.plan.width],
                "drafted": one.drafted,
                "origins": [origin[0] for origin in one.origins],
                **({"texts": one.texts} if show_text else {}),
            }
            for (request, sample), one in turns.items()
        ],
        "ended": ended,
    }
