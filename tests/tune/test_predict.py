"""What is predicted from a probe is what decoding at that depth does."""

from __future__ import annotations

from collections import Counter

import pytest

from draftproof.stats.counters import Stats
from draftproof.theory.acceptance import Acceptance
from draftproof.theory.decoding import simulate_decoding
from draftproof.theory.machine import CostCurves
from draftproof.tune.predict import Probe, Shape

CURVES = CostCurves(
    verify={1: 1.0, 2: 1.1, 5: 1.4, 9: 2.0, 17: 3.4}, draft={1: {1: 0.2, 8: 1.6}}, rest=0.05
)
DEEP = 8


def stats_of(depth: int, rate: float, rounds: int = 20_000) -> Stats:
    """Counts and seconds of chains of `depth`, each token accepted with `rate` after the last."""
    accepted = Counter({i: round(rounds * rate ** (i + 1)) for i in range(depth)})
    return Stats(
        generated=rounds + sum(accepted.values()),
        target_calls=rounds,
        drafted=depth * rounds,
        accepted=sum(accepted.values()),
        drafted_per_position=Counter(dict.fromkeys(range(depth), rounds)),
        accepted_per_position=accepted,
        draft_s=rounds * CURVES.draft_seconds(depth),
        verify_s=rounds * CURVES.verify_seconds(1 + depth),
        rest_s=rounds * CURVES.rest,
    )


def probe(rate: float, stats: Stats | None = None, curves: CostCurves = CURVES) -> Probe:
    shape = Shape("mine", DEEP, 1, None)
    return Probe(shape, stats or stats_of(DEEP, rate), stats_of(0, rate), curves, 0)


@pytest.mark.parametrize("rate", [0.3, 0.7, 0.95])
def test_every_depth_is_as_fast_as_decoding_at_that_depth(rate):
    plain = stats_of(0, rate)
    for depth, forecast in enumerate(probe(rate).forecasts(), start=1):
        real = stats_of(depth, rate)
        speedup = (real.tokens_per_second or 0) / (plain.tokens_per_second or 1)
        assert forecast.shape.depth == depth
        assert forecast.speedup == pytest.approx(speedup, rel=1e-3)
        assert forecast.tokens_per_call == pytest.approx(real.tokens_per_call, rel=1e-3)


def test_simulated_decoding_agrees():
    """The simulation plays texts token by token and knows nothing of the forecast's sums."""
    from draftproof.core import Plan

    for depth, forecast in enumerate(probe(0.8).forecasts(), start=1):
        played = simulate_decoding(Plan(depth), Acceptance((0.8,)), CURVES, num_tokens=40_000)
        assert forecast.speedup == pytest.approx(played.speedup, rel=0.02)


@pytest.mark.parametrize("slower", [0.5, 3.0])
def test_curves_from_another_hour_are_scaled_to_what_was_measured(slower):
    """Curves that are wrong by a factor change nothing where their shape is right."""
    wrong = CostCurves(
        verify={n: slower * s for n, s in CURVES.verify.items()},
        draft={1: {n: slower * s for n, s in CURVES.draft[1].items()}},
        rest=CURVES.rest,
    )
    right = [forecast.speedup for forecast in probe(0.8).forecasts()]
    found = [forecast.speedup for forecast in probe(0.8, curves=wrong).forecasts()]
    assert found == pytest.approx(right, rel=1e-6)


def test_rounds_without_a_draft_cost_a_plain_pass():
    """A look-up that proposes in half of the rounds, all of it accepted."""
    stats = stats_of(DEEP, 1.0, rounds=1_000)
    for counts in (stats.drafted_per_position, stats.accepted_per_position):
        for i in counts:
            counts[i] = 500
    stats.generated, stats.drafted, stats.draft_s = 1_000 + 500 * DEEP, 500 * DEEP, 0.0
    stats.verify_s = 500 * (CURVES.verify_seconds(1) + CURVES.verify_seconds(1 + DEEP))
    for depth, forecast in enumerate(probe(1.0, stats).forecasts(), start=1):
        seconds = 0.5 * (CURVES.verify_seconds(1) + CURVES.verify_seconds(1 + depth)) + CURVES.rest
        speedup = (1 + 0.5 * depth) * (CURVES.verify_seconds(1) + CURVES.rest) / seconds
        assert forecast.speedup == pytest.approx(speedup, rel=1e-3)


def test_of_a_tree_only_the_probe_itself_is_known():
    tree = Probe(Shape("mine", 4, 3, 12), stats_of(4, 0.9), stats_of(0, 0.9), CURVES, 0)
    (forecast,) = tree.forecasts()
    assert forecast.shape == tree.shape
    assert "width 3, 12 nodes" in forecast.shape.label
