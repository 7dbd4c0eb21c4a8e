"""Whatever breaks, everybody is told, and those whom it does not concern do not notice."""

from __future__ import annotations

import threading

import pytest

from draftproof.config import Speculation
from draftproof.core import Draft, Proposal
from draftproof.decode import round as decode_round
from draftproof.drafters.base import Drafting
from draftproof.drafters.ngram import NgramDrafter
from draftproof.errors import InvalidSetting, LimitExceeded, Overloaded, RequestFailed
from draftproof.sampling.params import SamplingParams
from draftproof.service.records import Failed
from draftproof.service.service import Service
from tests.service.conftest import LONG, Ear, Notes, long_target, serving
from tests.tiny import prompt, shared_target, speculator


def explode(ids):
    """A stop rule that breaks after a few tokens."""
    if len(ids) > 8:
        raise ZeroDivisionError("a rule of the user's")
    return False


def test_a_fault_of_one_request_is_its_own():
    with serving("llama") as (service, made, notes):
        bad, good = Ear(), Ear()
        service.submit(prompt(4), SamplingParams(max_tokens=30, stop_rule=explode), bad)
        service.submit(prompt(6), SamplingParams(max_tokens=30), good)
        assert isinstance(bad.wait().error, RequestFailed)
        assert "ZeroDivisionError" in str(bad.error)
        expected = made.plain(prompt(6), SamplingParams(max_tokens=30)).token_ids
        assert good.wait().tokens() == expected
    assert {report.outcome for report in notes.reports} == {"failed", "length"}


def test_a_listener_that_raises_loses_its_own_request_only():
    def deaf(_event):
        raise OSError("the connection is gone")

    with serving("long") as (service, _, notes):
        good = Ear()
        service.submit(prompt(4), LONG, deaf)
        service.submit(prompt(6), SamplingParams(max_tokens=20), good)
        assert len(good.wait().tokens()) == 20
    assert len(notes.reports) == 2


class Broken(Drafting):
    """Drafts well until a part of it is told to break."""

    name, proposals = "broken", NgramDrafter.proposals

    def __init__(self, part=None):
        self.part = part

    def begin(self, cache):
        drafting = Broken(self.part)
        drafting.maker, drafting.inner = self, NgramDrafter().begin(cache)
        return drafting

    def _do(self, part, *arguments):
        if self.maker.part == part:
            raise RuntimeError("a fault of the drafter")
        return getattr(self.inner, part)(*arguments)

    def propose(self, contexts, plans):
        return self._do("propose", contexts, plans)

    def observe(self, *arguments):
        self._do("observe", *arguments)

    def read(self, *arguments):
        return self._do("read", *arguments)

    def release(self, row):
        self._do("release", row)

    def move(self, source, target):
        self._do("move", source, target)


@pytest.mark.parametrize("part", ["propose", "observe", "read", "release", "move"])
def test_where_drafting_fails_texts_go_on_plainly(part, caplog):
    broken, wish = Broken(), Speculation(drafter="broken")
    lengths = (40, 12, 25, 31, 8)
    limits = {"prefill_chunk": 4, "prefill_tokens": 4}
    with serving("llama", drafters={"broken": broken}, limits=limits) as (service, made, notes):
        params = [SamplingParams(max_tokens=length) for length in lengths]
        ears = [Ear() for _ in params]
        for i, (ear, one) in enumerate(zip(ears, params, strict=True)):
            service.submit(prompt(5 + 6 * i), one, ear, speculation=wish)
            if i == 0:
                assert ear.begun.wait(10)
                broken.part = part
        for i, (ear, one) in enumerate(zip(ears, params, strict=True)):
            assert ear.wait().tokens() == made.plain(prompt(5 + 6 * i), one).token_ids
        other = Ear()
        service.submit(prompt(7), SamplingParams(max_tokens=9), other)
        assert len(other.wait().tokens()) == 9
    faults = "failed for good" if part in ("release", "move") else "goes on plainly"
    assert faults in caplog.text
    assert {report.outcome for report in notes.reports} == {"length"}


def test_a_drafter_that_fails_loses_its_own_sequences_and_no_other():
    broken, params = Broken(), SamplingParams(max_tokens=200)
    with serving("long", drafters={"broken": broken}) as (service, made, notes):
        good, bad = Ear(), Ear()
        service.submit(prompt(9), params, good)
        service.submit(prompt(12), params, bad, speculation=Speculation(drafter="broken"))
        assert bad.begun.wait(10)
        broken.part = "propose"
        for ear, ids in ((good, prompt(9)), (bad, prompt(12))):
            assert ear.wait().tokens() == made.plain(ids, params).token_ids
    rounds = [{turn.drafter: turn.plan.depth for turn in one.turns} for one in notes.rounds]
    struck = next(i for i, one in enumerate(rounds) if one.get("broken") == 0)
    assert {one["broken"] for one in rounds[struck:] if "broken" in one} == {0}
    assert sum(one.get(made.drafter.name, 0) for one in rounds[struck:]) > 0


@pytest.mark.parametrize("part", ["propose", "observe", "read"])
def test_the_library_raises_what_a_drafter_raises(part):
    with pytest.raises(RuntimeError, match="a fault of the drafter"):
        speculator(shared_target("llama"), "ngram").with_drafter(Broken(part)).generate(
            prompt(8), SamplingParams(max_tokens=20)
        )


def test_a_drafter_that_never_works_keeps_the_service_from_starting():
    made = speculator(shared_target("llama"), "ngram")
    service = Service(made, drafters={"broken": Broken("propose")})
    service.start()
    with pytest.raises(RuntimeError, match="a fault of the drafter"):
        service.wait_until_ready(60)
    assert not service.ready
    with pytest.raises(Overloaded):
        service.submit(prompt(4), SamplingParams(max_tokens=4), Ear())
    service.close()


def test_a_fault_of_the_target_ends_those_in_the_round_and_no_others(monkeypatch):
    with serving("long", max_batch=2) as (service, made, _):
        hit, fine = [Ear(), Ear()], Ear()
        forward, faults = type(made.target).forward, []

        def fail(self, batch, cache, columns=None):
            if faults:
                raise faults.pop()
            return forward(self, batch, cache, columns)

        monkeypatch.setattr(type(made.target), "forward", fail)
        for ear in hit:
            service.submit(prompt(5), LONG, ear, speculation=Speculation(enabled=False))
        for ear in hit:
            assert ear.begun.wait(10)
        service.submit(prompt(6), SamplingParams(max_tokens=9), fine)
        faults += [MemoryError("no room")] * 2  # a round is tried again without drafts
        for ear in hit:
            assert isinstance(ear.wait().error, RequestFailed)
        assert len(fine.wait().tokens()) == 9


def test_two_samples_that_fail_together_end_their_request_once():
    with serving("llama") as (service, _, notes):
        bad = Ear()
        service.submit(prompt(4), SamplingParams(max_tokens=30, n=3, stop_rule=explode), bad)
        assert isinstance(bad.wait().error, RequestFailed)
    assert [report.outcome for report in notes.reports] == ["failed"]
    assert sum(isinstance(event, Failed) for event in bad.events) == 1


def test_a_prompt_that_cannot_be_read_and_a_round_that_fails_are_both_told(monkeypatch):
    with serving("long") as (service, made, _):
        target = type(made.target)
        forward, prefill, armed = target.forward, target.prefill, threading.Event()

        def fail_round(self, batch, cache, columns=None):
            if armed.is_set():
                raise MemoryError("no room")
            return forward(self, batch, cache, columns)

        def fail_reading(self, tokens, *others):
            if len(tokens) > 20:
                armed.set()
                raise ValueError("no such prompt")
            return prefill(self, tokens, *others)

        running, unread, fine = Ear(), Ear(), Ear()
        monkeypatch.setattr(target, "prefill", fail_reading)
        monkeypatch.setattr(target, "forward", fail_round)
        service.submit(prompt(5), LONG, running, speculation=Speculation(enabled=False))
        assert running.begun.wait(10)
        service.submit(prompt(30), LONG, unread)
        assert "ValueError" in str(unread.wait().error)
        assert "MemoryError" in str(running.wait().error)
        armed.clear()
        service.submit(prompt(6), SamplingParams(max_tokens=9), fine)
        assert len(fine.wait().tokens()) == 9


def test_a_round_that_has_committed_is_not_run_again(monkeypatch):
    with serving("long") as (service, made, _):
        cost, faults, ear = decode_round._cost, [], Ear()

        def fail(*arguments):
            if faults:
                raise faults.pop()
            return cost(*arguments)

        monkeypatch.setattr(decode_round, "_cost", fail)
        service.submit(prompt(5), LONG, ear)
        assert ear.begun.wait(10)
        faults.append(OverflowError("behind the commit"))
        assert "OverflowError" in str(ear.wait().error)
        told = ear.tokens()
        assert told == made.plain(prompt(5), SamplingParams(max_tokens=len(told))).token_ids


class Raising(Notes):
    """A listener that breaks its promise never to raise."""

    broken = False

    def round(self, report):
        super().round(report)
        if self.broken:
            raise OSError("the disk is full")


def test_a_service_that_cannot_go_on_tells_everybody_and_takes_no_more(caplog):
    notes = Raising()
    service = Service(speculator(long_target(), "ngram"), listener=notes)
    ears = [Ear() for _ in range(40)]
    service.start()
    assert service.wait_until_ready(60)
    for i, ear in enumerate(ears):
        service.submit(prompt(5, seed=i), LONG, ear)
    assert ears[0].begun.wait(10)
    notes.broken = True
    for ear in ears:
        assert isinstance(ear.wait().error, Overloaded)
    assert isinstance(service.fault, OSError)
    assert not service.ready
    with pytest.raises(Overloaded, match="has failed"):
        service.submit(prompt(5), LONG, Ear())
    assert notes.reasons == ["failed"]
    assert service.drain(10)
    service.close()
    assert "the service failed at going on: OSError" in caplog.text


def test_a_service_that_was_never_started_ends_those_who_wait():
    service, ear = Service(speculator(long_target(), "ngram")), Ear()
    service.submit(prompt(5), LONG, ear)
    assert not service.drain(0.01), "somebody still waits"
    service.close()
    assert isinstance(ear.wait().error, Overloaded)
    assert service.drain(0.01)


def test_a_listener_hears_of_a_request_on_one_thread_and_in_order():
    class Order(Notes):
        def __init__(self):
            super().__init__()
            self.heard = []

        def submitted(self, request_id):
            self.heard.append((threading.current_thread().name, "submitted", request_id))

        def ended(self, report):
            self.heard.append((threading.current_thread().name, "ended", report.request_id))

    notes = Order()
    service = Service(speculator(shared_target("llama"), "ngram"), listener=notes)
    service.start()
    assert service.wait_until_ready(60)
    for _ in range(20):
        ear = Ear()
        service.submit(prompt(4), SamplingParams(max_tokens=0), ear)
        ear.wait()
    assert service.drain(10)
    service.close()
    assert {thread for thread, _, _ in notes.heard} == {"draftproof"}
    assert [what for _, what, _ in notes.heard] == ["submitted", "ended"] * 20


class Babbling(Drafting):
    """Proposes what it is told to, whatever the plan says."""

    name, proposals, tokens = "babbling", NgramDrafter.proposals, ()

    def begin(self, _cache):
        return self

    def propose(self, contexts, _plans):
        return [Draft.chain(self.tokens, Proposal.POINT) for _ in contexts]


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ((5, 10**6), InvalidSetting, "the drafter proposed id 1000000"),
        ((-1,), InvalidSetting, "the drafter proposed id -1"),
        ((1,) * 65, LimitExceeded, "the drafter proposed 65 tokens at once"),
    ],
)
def test_drafts_that_cannot_be_verified_are_refused_and_a_service_goes_on(tokens, error, message):
    babbling = Babbling()
    made = speculator(shared_target("llama"), "ngram")
    with serving("llama", drafters={"babbling": babbling}) as (service, _, _):
        babbling.tokens, ear = tokens, Ear()
        wish = Speculation(drafter="babbling")
        service.submit(prompt(5), SamplingParams(max_tokens=20), ear, speculation=wish)
        assert ear.wait().tokens() == made.plain(prompt(5), SamplingParams(max_tokens=20)).token_ids
    with pytest.raises(error, match=message):
        made.with_drafter(babbling).generate(prompt(5), SamplingParams(max_tokens=20))
