"""Sequences that join, draft by any plan, are broken off, and give way for want of memory, in any
order: the texts are those of plain decoding, and nothing of what was broken off stays."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.api import Speculator
from draftproof.config import EngineSettings, ServiceSettings
from draftproof.core import Plan
from draftproof.drafters.base import cache_bytes_per_token, fresh
from draftproof.drafters.none import NoDrafter
from draftproof.engine import loop as loop_module
from draftproof.engine.entry import Entry
from draftproof.sampling.params import SamplingParams
from draftproof.service.machine import Machine
from tests.lossless.test_grid import ARCHITECTURES, DRAFTERS, VOCAB, made, target_of
from tests.tiny import prompt

ROOM = 330
"""Tokens of the pool: two sequences fit, and a third has to wait or to give way."""
PROMPTS = [prompt(length, seed=length, vocab=VOCAB - 3) for length in (9, 1, 14, 5)]
PLANS = (Plan(0), Plan(1), Plan(4), Plan(6), Plan(3, 3, 7), Plan(2, 2, 64, 0.2))


def params(number):
    sampled = {"temperature": 1.0, "seed": number} if number % 2 else {}
    return SamplingParams(max_tokens=12 + number % 3, **sampled)


@functools.cache
def plain(architecture, number):
    system = Speculator(target_of(architecture), NoDrafter())
    return system.plain(PROMPTS[number % len(PROMPTS)], params(number)).token_ids


class Course:
    """A controller whose plans come in turn."""

    def __init__(self, plans):
        self._plans = plans
        self._round = 0

    def plan(self, max_depth, context_length, batch_size):  # noqa: ARG002
        self._round += 1
        plan = self._plans[self._round % len(self._plans)]
        return replace(plan, depth=min(plan.depth, max_depth))

    def observe(self, draft, step, cost):
        """Learns nothing."""


class Schedule:
    """A machine without its thread, and everybody who ever came."""

    def __init__(self, architecture, names, rows=3):
        self.architecture = architecture
        target = target_of(architecture)
        self.drafters = {name: fresh(made(architecture, name)) for name in names}
        per_token = target.cache_bytes_per_token + sum(
            cache_bytes_per_token(drafter) for drafter in self.drafters.values()
        )
        engine = EngineSettings(
            depth=6, max_batch=rows, prefill_chunk=4, max_cache_bytes=ROOM * per_token
        )
        first = next(iter(self.drafters.values()))
        self.system = Speculator(target, first, verifier="coupled", settings=engine)
        limits = ServiceSettings(max_length=60, prefill_chunk=4, prefill_tokens=5)
        self.machine = Machine(self.system, self.drafters, limits)
        self.entries, self.dropped = [], set()

    def add(self, name, plans):
        number = len(self.entries)
        ids = PROMPTS[number % len(PROMPTS)]
        (sequence,) = self.system.sequences(self.drafters[name], ids, params(number), number)
        self.machine.drafting.assign(number, name)
        self.entries.append(Entry.of(sequence, lambda _trees: Course(plans), number))
        self.machine.loop.add(self.entries[-1])

    def drop(self, which):
        going = [n for n, e in enumerate(self.entries) if e.sequence.finish_reason is None]
        if going := [number for number in going if number not in self.dropped]:
            number = going[which % len(going)]
            self.machine.loop.drop(self.entries[number])
            self.dropped.add(number)

    def turn(self):
        if self.machine.loop.busy:
            turn = self.machine.loop.turn()
            assert turn.failures == turn.faults == ()

    def finish(self):
        while self.machine.loop.busy:
            self.turn()

    def check(self):
        for number, entry in enumerate(self.entries):
            sequence = entry.sequence
            text = tuple(sequence.tokens[sequence.prompt_length :])
            wanted = plain(self.architecture, number)
            if number in self.dropped:
                assert text == wanted[: len(text)], f"request {number}, broken off"
            else:
                assert text == wanted, f"request {number}"
        assert self.machine.lost_tokens == 0
        assert self.machine.cache_tokens - self.machine.cache.num_free == self.machine.loop.num_kept


ACTIONS = st.one_of(
    st.tuples(
        st.just("add"),
        st.integers(0, 2),
        st.lists(st.sampled_from(PLANS), min_size=1, max_size=4),
    ),
    st.tuples(st.just("drop"), st.integers(0, 5)),
    st.tuples(st.just("turn"), st.integers(1, 3)),
)


def play(schedule, actions):
    names = list(schedule.drafters)
    for what, *which in actions:
        if what == "add" and len(schedule.entries) < 8:
            schedule.add(names[which[0] % len(names)], which[1])
        elif what == "drop":
            schedule.drop(which[0])
        elif what == "turn":
            for _ in range(which[0]):
                schedule.turn()
    schedule.finish()
    schedule.check()


@settings(max_examples=40, deadline=None)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    names=st.lists(st.sampled_from(DRAFTERS[1:]), min_size=1, max_size=3, unique=True),
    actions=st.lists(ACTIONS, min_size=4, max_size=30),
)
def test_any_schedule_gives_the_text_of_plain_decoding(architecture, names, actions):
    play(Schedule(architecture, names), actions)


@pytest.mark.parametrize("name", DRAFTERS[1:])
def test_who_gives_way_in_the_middle_of_trees_goes_on_as_if_nothing_had_happened(name, monkeypatch):
    monkeypatch.setattr(loop_module, "_AHEAD", 8)
    schedule = Schedule("llama", [name])
    for _ in range(6):
        schedule.add(name, [PLANS[4], PLANS[2]])
    schedule.finish()
    schedule.check()
    assert schedule.machine.loop.preemptions > 0


def held(drafter):
    """Tokens of finished requests that a suffix drafter keeps."""
    return drafter._finished._index.num_tokens


def test_only_what_was_finished_for_it_is_remembered():
    """Not what was broken off, nor what another drafter or none drafted for, nor anything twice
    because its sequence gave way in between."""
    schedule = Schedule("llama", ["suffix", "ngram"])
    course = [PLANS[4], PLANS[2]]
    for name in ("suffix", "ngram", "suffix"):
        schedule.add(name, course)
    for _ in range(6):
        schedule.turn()
    assert not schedule.dropped
    assert len(schedule.entries[2].sequence.tokens) > schedule.entries[2].sequence.prompt_length
    schedule.machine.loop.drop(schedule.entries[2])
    schedule.dropped.add(2)
    schedule.finish()
    schedule.check()
    first = schedule.entries[0].sequence
    assert held(schedule.drafters["suffix"]) == len(first.tokens)


def test_who_gave_way_is_remembered_once(monkeypatch):
    monkeypatch.setattr(loop_module, "_AHEAD", 8)
    schedule = Schedule("llama", ["suffix"])
    for _ in range(6):
        schedule.add("suffix", [PLANS[4], PLANS[2]])
    schedule.finish()
    schedule.check()
    assert schedule.machine.loop.preemptions > 0
    expected = sum(len(entry.sequence.tokens) for entry in schedule.entries)
    assert held(schedule.drafters["suffix"]) == expected


@pytest.mark.parametrize(("rule", "apart"), [("tokenwise", [0, 2]), ("coupled", [])])
def test_requests_judged_by_the_numbers_of_a_seed_plan_apart(monkeypatch, rule, apart):
    """Two with one seed are judged by the same numbers, unless the rule emits the seed's own draw;
    a request without a seed, or at temperature 0, has numbers that nobody else reads."""
    seen = []
    plan_together = loop_module.plan_together

    def watched(controllers, rooms, lengths, pads, apart):
        seen.append((len(controllers), list(apart)))
        return plan_together(controllers, rooms, lengths, pads, apart)

    monkeypatch.setattr(loop_module, "plan_together", watched)
    target, drafter = target_of("llama"), made("llama", "early-exit:1")
    system = Speculator(target, drafter, verifier=rule, settings=EngineSettings(depth=3))
    kinds = [{"temperature": 1.0, "seed": 4}, {"temperature": 1.0}, {"temperature": 1.0, "seed": 4}]
    params = [SamplingParams(max_tokens=4, **kind) for kind in (*kinds, {"seed": 4})]
    system.generate(PROMPTS, params)
    assert (4, apart) in seen
