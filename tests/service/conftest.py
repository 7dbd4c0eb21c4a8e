"""A service around a tiny model, and someone who listens to one request."""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager

from draftproof.config import ServiceSettings
from draftproof.models.hf import HFModel
from draftproof.sampling.params import SamplingParams
from draftproof.service.records import Failed, Finished, Progress
from draftproof.service.service import Service
from tests.tiny import shared_target, speculator, tiny_model

PATIENCE = 60
"""Seconds after which a test gives up on a service; nothing here takes one."""
LONG = SamplingParams(max_tokens=400)
"""More than any test waits for."""


@functools.cache
def long_target():
    """A model that can go on for long enough to be interrupted."""
    return HFModel(tiny_model("llama", max_position_embeddings=512), "long")


class Ear:
    """Everything that is told of one request."""

    def __init__(self):
        self.events = []
        self.over = threading.Event()
        self.begun = threading.Event()

    def __call__(self, event):
        assert not self.over.is_set(), "nothing comes after the last event"
        self.events.append(event)
        self.begun.set()
        if isinstance(event, Failed) or (isinstance(event, Finished) and event.last):
            self.over.set()

    def wait(self):
        assert self.over.wait(PATIENCE), "the request never ended"
        return self

    def tokens(self, sample=0):
        steps = [e.step for e in self.events if isinstance(e, Progress) and e.sample == sample]
        return tuple(token for step in steps for token in step.tokens)

    @property
    def error(self):
        (error,) = [event.error for event in self.events if isinstance(event, Failed)]
        return error


class Notes:
    """A listener that writes everything down."""

    def __init__(self):
        self.ids, self.reasons, self.rounds, self.reports = [], [], [], []

    def submitted(self, request_id):
        self.ids.append(request_id)

    def refused(self, reason):
        self.reasons.append(reason)

    def round(self, report):
        self.rounds.append(report)

    def ended(self, report):
        self.reports.append(report)


@contextmanager
def serving(target="llama", drafter="close-model", depth=3, drafters=None, limits=None, **engine):
    """(service, its speculator, notes), running; afterwards nothing may be left of any request."""
    made = speculator(
        long_target() if target == "long" else shared_target(target), drafter, depth, **engine
    )
    notes = Notes()
    settings = ServiceSettings(**(limits or {}))
    service = Service(made, drafters=drafters, settings=settings, listener=notes)
    service.start()
    assert service.wait_until_ready(PATIENCE)
    try:
        yield service, made, notes
        assert service.drain(PATIENCE)
        assert_nothing_is_left(service)
    finally:
        service.close()


def assert_nothing_is_left(service):
    machine, worker = service._machine, service._worker
    assert not worker.requests
    assert not worker._owners
    assert not machine.loop.busy
    assert not machine.drafting._names
    cache = machine.cache
    owned = sum(cache.size(row) for row in range(cache.rows))
    assert cache.num_free + owned == machine.cache_tokens
    assert owned == machine.loop.num_kept, "only kept prefixes may own any of the cache"
    snapshot = service.snapshot()
    assert (snapshot.running, snapshot.waiting, snapshot.sequences) == (0, 0, 0)
    assert snapshot.cache_tokens_used == owned
