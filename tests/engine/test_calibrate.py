"""Costs are measured as they are, on a clock that the models move."""

from __future__ import annotations

import pytest

from draftproof.config import EngineSettings
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.engine.calibrate import measure_costs, situation
from draftproof.models.toy import ToyModel, random_law
from draftproof.stats import timing

V = 5


class Clock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


class Timed(ToyModel):
    """A pass takes `base` seconds, `column` for each column of the batch, `token` for each token
    of context that a column reads."""

    def __init__(self, clock, base, column, token=0.0, **others):
        super().__init__(random_law(V, seed=1), V, **others)
        self._clock = clock
        self._seconds = base, column, token

    def forward(self, batch, cache, columns=None):
        base, column, token = self._seconds
        rows, width = batch.tokens.shape
        self._clock.now += base + rows * width * (column + token * max(cache.lengths))
        return super().forward(batch, cache, columns)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_curves_are_what_the_passes_took(clock):
    target = Timed(clock, base=1.0, column=0.1, token=1e-3)
    drafter = ModelDrafter(Timed(clock, base=0.25, column=0.0), V, 4)
    curves = measure_costs(target, drafter, [1, 2, 3], rows=1)
    for columns in (1, 3, 33):
        expected = 1.0 + columns * (0.1 + 1e-3 * curves.context)
        assert curves.verify_seconds(columns, curves.context) == pytest.approx(expected)
    assert curves.verify_seconds(9, 500) == pytest.approx(1.0 + 9 * (0.1 + 0.5))
    assert curves.draft_seconds(1) == pytest.approx(0.25)
    assert curves.draft_seconds(4) == pytest.approx(1.0)
    assert curves.draft_seconds(8) == pytest.approx(2.0)


def test_drafting_takes_longer_behind_a_long_context(clock):
    target = Timed(clock, base=1.0, column=0.1)
    drafter = ModelDrafter(Timed(clock, base=0.25, column=0.0, token=1e-3), V, 4)
    curves = measure_costs(target, drafter, [1, 2, 3], rows=1)
    for levels in (1, 4, 8):
        near = curves.draft_seconds(levels, context_length=curves.context)
        assert curves.draft_seconds(levels, context_length=500) - near == pytest.approx(
            levels * 1e-3 * (500 - curves.context)
        )
        assert curves.draft_seconds(levels) == near


def test_a_batch_costs_what_a_batch_costs(clock):
    target = Timed(clock, base=1.0, column=0.1)
    drafter = ModelDrafter(Timed(clock, base=0.25, column=0.05), V, 4)
    curves = measure_costs(target, drafter, [1], rows=4)
    assert curves.verify_seconds(5) == pytest.approx(1.0 + 4 * 5 * 0.1)
    assert curves.draft_seconds(1) == pytest.approx(0.25 + 4 * 0.05)


def test_a_drafter_without_a_model_is_free(clock):
    curves = measure_costs(Timed(clock, 1.0, 0.1), NgramDrafter(), [1, 2], rows=1)
    assert curves.draft_seconds(32) == 0.0
    assert curves.widest == 1


@pytest.mark.parametrize("limit", [2, 3, 10, 40, 80])
def test_a_model_that_reads_few_tokens_is_asked_for_no_more(clock, limit):
    seen = []

    class Watched(Timed):
        def forward(self, batch, cache, columns=None):
            seen.append(int(batch.positions.max()))
            return super().forward(batch, cache, columns)

    drafter = ModelDrafter(Timed(clock, 0.1, 0.0, max_positions=limit), V, 4)
    curves = measure_costs(Watched(clock, 1.0, 0.1, max_positions=limit), drafter, [1], rows=2)
    assert max(seen) < limit
    assert curves.verify_seconds(1) > 0


def test_a_situation_names_what_costs_depend_on(clock):
    target, settings = Timed(clock, 1.0, 0.1), EngineSettings()
    here = situation(target, NgramDrafter(), settings)
    assert "toy" in here
    assert "ngram" in here
    assert "threads" in here
    model = ModelDrafter(target, V, 4)
    assert here != situation(target, model, settings)


def test_many_rows_leave_out_wide_passes_far_away_too(clock):
    target = Timed(clock, base=1.0, column=0.1, token=1e-3)
    curves = measure_costs(target, NgramDrafter(), [1, 2, 3], rows=16)
    assert 9 not in curves.verify
    assert set(curves.attention) == {1, 5}
