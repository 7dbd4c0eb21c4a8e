"""Events for those who watch: what they say, what is hidden, and that nothing grows."""

from __future__ import annotations

import json

import pytest

from draftproof.errors import Overloaded
from draftproof.server.live import MAX_EVENTS, MAX_WATCHERS, Live, Submitted, Together, describe
from draftproof.server.metrics import Metrics
from tests.server.reports import ended, round_of, turn


def test_a_watcher_hears_what_happens_in_order():
    live = Live()
    with live.watch() as watcher:
        live.submitted(1)
        first, last = round_of(turn("p")), ended()
        live.round(first)
        live.ended(last)
        assert watcher.take() == ([Submitted(1), first, last], 0)
        assert watcher.take() == ([], 0)


def test_nobody_watches_and_nothing_is_kept():
    live = Live()
    with live.watch() as watcher:
        assert live.watchers == 1
    live.round(round_of(turn("p")))
    assert live.watchers == 0
    assert watcher.take() == ([], 0)


def test_a_slow_watcher_loses_the_oldest_events_and_is_told():
    live = Live()
    with live.watch() as slow, live.watch() as quick:
        for i in range(MAX_EVENTS + 5):
            live.submitted(i)
            assert len(quick.take()[0]) == 1
        events, missed = slow.take()
        assert missed == 5
        assert [event.request_id for event in events] == list(range(5, MAX_EVENTS + 5))


def test_watchers_are_limited():
    live = Live()
    watching = [live.watch() for _ in range(MAX_WATCHERS)]
    for one in watching:
        one.__enter__()
    with pytest.raises(Overloaded, match="close one"), live.watch():
        pass
    watching[0].__exit__(None, None, None)
    with live.watch():
        assert live.watchers == MAX_WATCHERS


def test_a_message_joins_the_turns_of_a_sample():
    message = describe(
        [
            Submitted(1),
            round_of(turn("aac", drafted=4), turn("p", request=2)),
            round_of(turn("b", drafted=0, depth=3), turn("p", sample=1)),
            ended(2, outcome="length"),
        ],
        show_text=False,
    )
    assert message == {
        "submitted": [1],
        "turns": [
            _turn(1, 0, [3, 1], 4, "aacb"),
            _turn(2, 0, [0, 1], 0, "p"),
            _turn(1, 1, [0, 1], 0, "p"),
        ],
        "ended": [{"request": 2, "outcome": "length"}],
    }


def test_texts_are_in_a_message_only_when_asked_for():
    secret = round_of(turn("ap", texts=["the secret", " is out"]))
    assert "secret" not in json.dumps(describe([secret], show_text=False))
    shown = describe([secret], show_text=True)["turns"][0]
    assert shown["texts"] == ["the secret", " is out"]


def test_together_tells_everyone():
    metrics, live = Metrics(), Live()
    together = Together(metrics, live)
    with live.watch() as watcher:
        together.submitted(1)
        together.refused("draining")
        together.round(round_of(turn("p")))
        together.ended(ended())
        assert len(watcher.take()[0]) == 3
    assert metrics.total().stats.generated == 1


def _turn(request, sample, plan, drafted, origins):
    return {
        "request": request,
        "sample": sample,
        "drafter": "ngram",
        "plan": plan,
        "drafted": drafted,
        "origins": list(origins),
    }
