"""Requests that come and go beside each other get the texts that they would get alone."""

from __future__ import annotations

import json
import random
import threading
import time

import pytest

from draftproof.config import ServiceSettings, Speculation
from draftproof.control.costs import CostBook
from draftproof.control.forecast import Forecast
from draftproof.drafters.ngram import NgramDrafter
from draftproof.engine import engine, loop, reader
from draftproof.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidPrompt,
    InvalidSetting,
    LimitExceeded,
    Overloaded,
)
from draftproof.sampling.params import SamplingParams
from draftproof.service.service import Service
from draftproof.static_tree import StaticTree
from draftproof.theory.machine import CostCurves
from tests.service.conftest import LONG, PATIENCE, Ear, long_target, serving
from tests.tiny import prompt, shared_target, speculator


def requests(count, seed=0, longest=30):
    """Prompts, parameters and wishes of many kinds, all of which reproduce."""
    dice = random.Random(seed)
    wishes = [None, Speculation(enabled=False), Speculation(depth=1), Speculation(drafter="ngram")]
    made = []
    for i in range(count):
        sampled = {"temperature": 0.9, "seed": i} if i % 2 else {}
        params = SamplingParams(
            max_tokens=dice.randint(1, longest), n=dice.choice([1, 1, 1, 2]), **sampled
        )
        ids = prompt(dice.randint(1, 40), seed=dice.randint(0, 5))
        made.append((ids, params, dice.choice(wishes)))
    return made


def texts(output):
    return [sample.token_ids for sample in output.samples]


@pytest.mark.parametrize(
    ("engine", "limits"),
    [
        ({"max_batch": 4}, {}),
        ({"max_batch": 3}, {"prefill_chunk": 4, "prefill_tokens": 9}),
        ({"max_batch": 4}, {"prefill_chunk": 4, "keep_prefixes": False}),
        ({"max_batch": 6, "pool": 330}, {"prefill_chunk": 4, "max_length": 100}),
    ],
    ids=["wide", "narrow", "no prefixes", "scarce memory"],
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_every_request_gets_the_text_it_gets_alone(monkeypatch, name, engine, limits):
    engine = dict(engine)
    target = shared_target(name)
    if "pool" in engine:
        other = speculator(target, "close-model").drafter.cache_bytes_per_token
        monkeypatch.setattr(loop, "_AHEAD", 4)  # rows have to grow, and there is no room for it
        engine["max_cache_bytes"] = engine.pop("pool") * (target.cache_bytes_per_token + other)
    with serving(name, drafters={"ngram": NgramDrafter()}, limits=limits, **engine) as (
        service,
        made,
        notes,
    ):
        asked = requests(24)
        ears = [Ear() for _ in asked]
        for (ids, params, wish), ear in zip(asked, ears, strict=True):
            service.submit(ids, params, ear, speculation=wish)
        for (ids, params, _), ear in zip(asked, ears, strict=True):
            ear.wait()
            expected = texts(made.plain(ids, params))
            assert [ear.tokens(sample) for sample in range(params.n)] == expected
        assert len(notes.reports) == len(asked)
        assert max(len(report.turns) for report in notes.rounds) > 1, "they run side by side"
        preempted = sum(report.preemptions for report in notes.reports)
        assert (preempted > 0) == ("max_cache_bytes" in engine)
        assert sum(report.stats.accepted for report in notes.reports) > 0


def test_a_common_beginning_is_read_once():
    system = prompt(32, seed=9)
    with serving("llama", limits={"prefill_chunk": 4}) as (service, made, notes):
        for tail in range(4):
            ids = [*system, *prompt(5, seed=tail)]
            ear = Ear()
            service.submit(ids, SamplingParams(max_tokens=5), ear)
            ear.wait()
            assert ear.tokens() == made.plain(ids, SamplingParams(max_tokens=5)).token_ids
    assert [report.shared_tokens >= 32 for report in notes.reports] == [False, True, True, True]


def test_a_drafter_reads_a_shared_beginning_in_parts_too(monkeypatch):
    """Nobody waits for it to read all of what the target was given at once."""
    with serving("llama", limits={"prefill_chunk": 4, "prefill_tokens": 4}) as (service, made, _):
        parts, model = [], made.drafter._model
        prefill = model.prefill

        def watched(tokens, *others):
            parts.append(len(tokens))
            prefill(tokens, *others)

        monkeypatch.setattr(model, "prefill", watched)
        expected = made.plain(prompt(60), SamplingParams(max_tokens=9)).token_ids
        for _ in range(2):
            ear, before = Ear(), len(parts)
            service.submit(prompt(60), SamplingParams(max_tokens=9), ear)
            assert ear.wait().tokens() == expected
            assert sum(parts[before:]) >= 56
    assert max(parts) <= 4, parts


def test_samples_of_a_request_read_their_prompt_once():
    with serving("llama", limits={"prefill_chunk": 4}) as (service, made, notes):
        ear, params = Ear(), SamplingParams(max_tokens=6, n=3, temperature=1.0, seed=4)
        service.submit(prompt(21), params, ear)
        ear.wait()
        assert [ear.tokens(i) for i in range(3)] == texts(made.plain(prompt(21), params))
    (report,) = notes.reports
    assert report.shared_tokens == 2 * 20
    assert (report.samples, report.prompt_tokens) == (3, 21)


def test_a_cancelled_request_ends_at_once_and_others_do_not_notice():
    with serving("long") as (service, made, notes):
        gone, stays = Ear(), Ear()
        ticket = service.submit(prompt(4), LONG, gone)
        service.submit(prompt(6), SamplingParams(max_tokens=30), stays)
        assert gone.begun.wait(10)
        ticket.cancel()
        ticket.cancel()
        assert isinstance(gone.wait().error, Cancelled)
        assert len(gone.tokens()) < 400
        expected = made.plain(prompt(6), SamplingParams(max_tokens=30)).token_ids
        assert stays.wait().tokens() == expected
        ticket.cancel()  # over long ago
    assert sorted(report.outcome for report in notes.reports) == ["cancelled", "length"]


def test_a_request_ends_when_its_time_is_up_running_or_waiting():
    with serving("long", max_batch=1) as (service, _, notes):
        runs, waits = Ear(), Ear()
        plain = Speculation(enabled=False)
        service.submit(prompt(4), LONG, runs, speculation=plain, deadline_s=0.15)
        service.submit(prompt(4), LONG, waits, deadline_s=0.1)
        for ear in (runs, waits):
            assert isinstance(ear.wait().error, DeadlineExceeded)
            assert "limit of 0." in str(ear.error)
        assert runs.tokens()
    assert [report.outcome for report in notes.reports] == ["deadline", "deadline"]


def test_what_cannot_work_or_is_too_large_is_refused_before_it_waits():
    with serving("llama", limits={"max_length": 50, "max_samples": 2}) as (service, _, notes):
        ear, short = Ear(), SamplingParams(max_tokens=5)
        with pytest.raises(LimitExceeded, match=r"together 51; at most 50"):
            service.submit(prompt(46), short, ear)
        with pytest.raises(LimitExceeded, match="n is 3 and at most 2"):
            service.submit(prompt(4), SamplingParams(n=3, max_tokens=5), ear)
        with pytest.raises(InvalidPrompt):
            service.submit([], short, ear)
        with pytest.raises(InvalidSetting, match=r"'eagle'; this service has .*none"):
            service.submit(prompt(4), short, ear, speculation=Speculation(drafter="eagle"))
        assert notes.reasons == ["too_long"]
        assert not ear.events


def test_a_full_queue_refuses_and_says_when_to_come_back():
    with serving("long", max_batch=1, limits={"max_waiting": 2}) as (service, _, notes):
        first = Ear()
        tickets = [service.submit(prompt(4), LONG, first)]
        assert first.begun.wait(10)
        rest = [Ear(), Ear()]
        tickets += [service.submit(prompt(4), LONG, ear) for ear in rest]
        with pytest.raises(Overloaded, match="2 requests are waiting") as caught:
            service.submit(prompt(4), LONG, Ear())
        assert caught.value.retry_after_s >= 1
        assert service.snapshot().waiting == 2
        for ticket in tickets:
            ticket.cancel()
        for ear in [first, *rest]:
            ear.wait()
        again = Ear()
        service.submit(prompt(4), SamplingParams(max_tokens=2), again)
        assert len(again.wait().tokens()) == 2
    assert notes.reasons == ["queue_full"]


def test_a_service_that_goes_down_finishes_what_it_has_and_takes_no_more():
    with serving("long") as (service, _, _):
        ear = Ear()
        service.submit(prompt(4), SamplingParams(max_tokens=60), ear)
        done = threading.Thread(target=service.drain)
        done.start()
        while not service.snapshot().draining:
            time.sleep(0.001)
        assert not service.ready
        with pytest.raises(Overloaded, match="going down"):
            service.submit(prompt(4), LONG, Ear())
        assert len(ear.wait().tokens()) == 60
        done.join(10)
        assert not done.is_alive()


def test_a_service_that_is_closed_ends_everybody():
    with serving("long", max_batch=1) as (service, _, _):
        ears = [Ear() for _ in range(3)]
        for ear in ears:
            service.submit(prompt(4), LONG, ear)
        assert ears[0].begun.wait(10)
        service.close()
        for ear in ears:
            assert isinstance(ear.wait().error, Overloaded)


def test_a_service_that_is_closed_in_its_warm_up_measures_no_further(monkeypatch):
    measuring, go_on, measured = threading.Event(), threading.Event(), []

    def measure(*arguments):
        measured.append(arguments[-1])
        measuring.set()
        assert go_on.wait(PATIENCE)
        return CostCurves({1: 1.0})

    monkeypatch.setattr(engine, "measure_costs", measure)
    made = speculator(shared_target("llama"), "close-model", "auto", max_batch=8)
    service = Service(made)
    service.start()
    assert measuring.wait(PATIENCE)
    closing = threading.Thread(target=service.close)
    closing.start()
    while not service.snapshot().draining:
        time.sleep(0.001)
    go_on.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert measured == [1]


def test_nothing_to_generate_is_an_answer_too():
    with serving("llama") as (service, _, _):
        ear = Ear()
        service.submit(prompt(4), SamplingParams(max_tokens=0), ear)
        assert [event.finish_reason for event in ear.wait().events] == ["length"]


def test_reading_a_prompt_is_not_waiting_for_it(monkeypatch):
    with serving("llama") as (service, made, notes):
        prefill = type(made.target).prefill

        def slow(*arguments):
            time.sleep(0.2)
            prefill(*arguments)

        monkeypatch.setattr(type(made.target), "prefill", slow)
        ear = Ear()
        service.submit(prompt(9), SamplingParams(max_tokens=2), ear)
        ear.wait()
    (report,) = notes.reports
    assert report.queue_s < 0.15
    assert report.first_token_s > 0.2


def test_reports_say_what_happened():
    with serving("llama") as (service, _, notes):
        ear = Ear()
        service.submit(prompt(9), SamplingParams(max_tokens=12), ear)
        ear.wait()
    (report,) = notes.reports
    assert report.stats.generated == 12
    assert 0 <= report.queue_s <= report.first_token_s <= report.total_s
    turns = [turn for round_ in notes.rounds for turn in round_.turns]
    assert sum(len(turn.step.tokens) for turn in turns) == 12
    assert all((turn.plain_reason is None) == (turn.step.drafted > 0) for turn in turns)
    assert {turn.drafter for turn in turns} == {report.drafter}


def test_a_request_that_does_not_fit_yet_is_passed_only_so_often():
    """One large request waits for memory while small ones keep coming."""
    target = long_target()
    both = (
        target.cache_bytes_per_token
        + speculator(target, "close-model").drafter.cache_bytes_per_token
    )
    limits = {"max_length": 250, "max_skips": 3, "keep_prefixes": False}
    with serving("long", max_batch=8, max_cache_bytes=400 * both, limits=limits) as (
        service,
        _,
        notes,
    ):
        small = SamplingParams(max_tokens=8)
        ears = [Ear() for _ in range(20)]
        service.submit(prompt(100), SamplingParams(max_tokens=60), ears[0])
        ids = [service.submit(prompt(150), small, ears[1]).request_id]
        ids += [service.submit(prompt(3), small, ear).request_id for ear in ears[2:]]
        for ear in ears:
            ear.wait()
    order = [report.request_id for report in notes.reports]
    large = ids[0]
    assert sum(order.index(one) < order.index(large) for one in ids[1:]) <= 3 + 8


def test_nothing_kept_is_given_up_for_a_request_that_would_not_fit_all_the_same():
    target = long_target()
    per_token = target.cache_bytes_per_token
    with serving(
        "long",
        drafter="ngram",
        limits={"prefill_chunk": 4},
        max_batch=2,
        max_cache_bytes=860 * per_token,
    ) as (service, made, _):
        first, running, waits = Ear(), Ear(), Ear()
        service.submit(prompt(21, seed=1), SamplingParams(max_tokens=2), first)
        first.wait()
        kept = service._machine.loop.num_kept
        assert kept >= 20
        ticket = service.submit(prompt(5), LONG, running)
        assert running.begun.wait(10)
        service.submit(prompt(400, seed=2), SamplingParams(max_tokens=100), waits)
        for _ in range(5):
            seen = len(running.events)
            while len(running.events) == seen:
                time.sleep(0.001)
            assert service.snapshot().waiting == 1
            assert service._machine.loop.num_kept == kept
        ticket.cancel()
        expected = made.plain(prompt(400, seed=2), SamplingParams(max_tokens=100)).token_ids
        assert waits.wait().tokens() == expected


def test_a_threshold_is_heeded_by_those_who_can_and_automatic_depth_is_refused_beside_it():
    """It needs measured costs, for which nobody else is held up."""
    others = {"ngram": NgramDrafter()}
    with serving("llama", drafters=others, min_confidence=0.4) as (service, made, _):
        auto = Speculation(depth="auto")
        with pytest.raises(InvalidSetting, match="did not measure"):
            service.submit(prompt(7), SamplingParams(), Ear(), speculation=auto)
        for wish in (None, Speculation(depth=2), Speculation(drafter="ngram")):
            ear = Ear()
            service.submit(prompt(7), SamplingParams(max_tokens=12), ear, speculation=wish)
            expected = made.plain(prompt(7), SamplingParams(max_tokens=12)).token_ids
            assert ear.wait().tokens() == expected


def test_costs_that_rounds_belie_are_measured_again_by_the_next_service(tmp_path, monkeypatch):
    monkeypatch.setattr(Forecast, "is_stale", True)
    path = tmp_path / "costs.json"
    made = speculator(shared_target("llama"), "close-model", "auto", max_batch=1)
    made.costs = CostBook(path)
    service = Service(made, settings=ServiceSettings())
    service.start()
    assert service.wait_until_ready(PATIENCE)
    assert json.loads(path.read_text()), "kept"
    ear = Ear()
    service.submit(prompt(7), SamplingParams(max_tokens=12), ear)
    ear.wait()
    service.close()
    assert json.loads(path.read_text()) == {}


def test_a_static_tree_is_of_the_service_and_a_wish_goes_without():
    """And so does a further drafter that does not keep to places."""
    others = {"ngram": NgramDrafter()}
    shape = {"depth": "auto", "tree": StaticTree.by_level(2, 1)}
    with serving("llama", drafters=others, **shape) as (service, made, _):
        wishes = (None, Speculation(depth=4), Speculation(depth=2))
        for wish in (*wishes, Speculation(drafter="ngram"), Speculation(enabled=False)):
            ear = Ear()
            service.submit(prompt(7), SamplingParams(max_tokens=12), ear, speculation=wish)
            expected = made.plain(prompt(7), SamplingParams(max_tokens=12)).token_ids
            assert ear.wait().tokens() == expected


def test_a_short_prompt_goes_first_and_a_long_one_is_not_passed_over_for_ever(monkeypatch):
    """Whose prompt is read in which turn."""
    read = []
    monkeypatch.setattr(reader, "_FAR", 24)
    with serving("long", limits={"prefill_chunk": 8, "prefill_tokens": 8}) as (service, made, _):
        target = made.target
        prefill = type(target).prefill

        def noting(self, tokens, cache, row, chunk):
            if self is target:
                read.append(len(tokens))
            return prefill(self, tokens, cache, row, chunk)

        monkeypatch.setattr(type(target), "prefill", noting)
        monkeypatch.setattr(type(target), "pads", False)  # parts of any length have the same bits
        long = Ear()
        service.submit(prompt(60, seed=3), SamplingParams(max_tokens=3), long)
        others = []
        for i in range(200):
            ear = Ear()
            service.submit(prompt(7, seed=10 + i), SamplingParams(max_tokens=1), ear)
            others.append(ear)
        long.wait()
        before = sum(ear.over.is_set() for ear in others)
        for ear in others:
            ear.wait()
        expected = made.plain(prompt(60, seed=3), SamplingParams(max_tokens=3)).token_ids
        assert long.tokens() == expected
    assert before < len(others), "the long prompt did not wait for all of them"
    assert read.count(6) == len(others)
    assert 4 in read, "far parts are half as long"
