"""Random numbers by key: the same key gives the same number, any other key an unrelated one."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from draftproof.checks.statistics import goodness_of_fit
from draftproof.core import Purpose
from draftproof.sampling.noise import KeyedNoise

ERROR_RATE = 1e-6
"""A right generator fails a test with this probability; the seeds are fixed, so it never flakes."""
FINE = torch.ones(1 << 16)


def number(seed=1, sample=0, position=5, purpose=Purpose.DRAFT, offset=2):
    return KeyedNoise(seed, sample).draw(FINE, position, purpose, offset)


def test_same_key_gives_the_same_number_in_any_order():
    noise = KeyedNoise(3)
    keys = list(itertools.product(range(4), (Purpose.DRAFT, Purpose.CORRECTION), range(3)))
    there = [noise.draw(FINE, position, purpose, offset) for position, purpose, offset in keys]
    fresh = KeyedNoise(3)
    back = [fresh.draw(FINE, *key) for key in reversed(keys)][::-1]
    assert there == back
    assert len(set(there)) > 20


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"seed": 2**64 - 1},
        {"sample": 1},
        {"position": 6},
        {"purpose": Purpose.CORRECTION},
        {"purpose": Purpose.ACCEPT},
        {"purpose": Purpose.TARGET},
        {"offset": 3},
        {"position": 2, "offset": 5},
    ],
)
def test_every_part_of_the_key_counts(change):
    assert number(**change) != number()


def test_numbers_of_neighbouring_keys_are_unrelated():
    """Seeds, samples, positions, purposes and offsets side by side: all cells equally often."""
    counts = Counter()
    for seed, sample in itertools.product(range(4), range(4)):
        noise = KeyedNoise(seed, sample)
        cells = [
            noise.draw(torch.ones(4), position, purpose, offset)
            for position, purpose, offset in itertools.product(
                range(8), (Purpose.TARGET, Purpose.DRAFT, Purpose.CORRECTION), range(8)
            )
        ]
        counts.update(itertools.pairwise(cells))
    law = dict.fromkeys(itertools.product(range(4), repeat=2), 1 / 16)
    assert goodness_of_fit(counts, law, ERROR_RATE).passed


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.25, 0.5, 0.999, 1.0])
def test_coin_falls_with_its_probability(p):
    noise = KeyedNoise(11)
    counts = Counter(noise.accepts(p, 1.0, position, 0) for position in range(6000))
    assert goodness_of_fit(counts, {True: p, False: 1 - p}, ERROR_RATE).passed
    assert noise.accepts(2.0, 1.0, 0, 0)
    assert not noise.accepts(0.0, 0.0, 0, 0)


WEIGHTS = torch.tensor([0.0, 3.0, 0.0, 1.0, 0.5, 0.0])
LAW = dict(enumerate((WEIGHTS / WEIGHTS.sum()).double().tolist()))


def test_draw_follows_unnormalised_weights():
    noise = KeyedNoise(12)
    counts = Counter(noise.draw(WEIGHTS, position, Purpose.DRAFT) for position in range(6000))
    assert goodness_of_fit(counts, LAW, ERROR_RATE).passed


def test_race_follows_the_weights():
    noise = KeyedNoise(13)
    counts = Counter(noise.race(WEIGHTS, position) for position in range(6000))
    assert goodness_of_fit(counts, LAW, ERROR_RATE).passed


def test_exponentials_are_exponential():
    noise = KeyedNoise(14)
    values = torch.cat([noise.exponentials(position, torch.ones(64)) for position in range(100)])
    cells = Counter((20 * torch.exp(-values)).floor().int().tolist())
    assert goodness_of_fit(cells, dict.fromkeys(range(20), 1 / 20), ERROR_RATE).passed


@pytest.mark.parametrize("bits", [0, 1, 2**11, 2**63, 2**64 - 2**11, 2**64 - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_weight_is_never_drawn_however_the_uniform_falls(bits, dtype, monkeypatch):
    monkeypatch.setattr(KeyedNoise, "_bits", lambda *_: bits)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        weights = torch.rand(9, generator=generator, dtype=dtype) * 1e-3
        weights[torch.rand(9, generator=generator) < 0.5] = 0.0
        weights[8 if bits else 0] = 0.0
        if weights.sum() == 0:
            continue
        assert weights[KeyedNoise(0).draw(weights, 0, Purpose.DRAFT)] > 0


class Constant:
    """A generator of which every number is the same."""

    def __init__(self, number: float) -> None:
        self.number = number

    def standard_exponential(self, count):
        return np.full(count, self.number)

    def integers(self, _limit):
        return 3


@pytest.mark.parametrize("number", [0.0, 1e-300, 1.0, 750.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_weight_never_wins_a_race_however_the_noise_falls(number, dtype, monkeypatch):
    monkeypatch.setattr(np.random, "Generator", lambda _source: Constant(number))
    for alive in range(9):
        weights = torch.zeros(9, dtype=dtype)
        weights[alive] = 1e-3
        assert KeyedNoise(0).race(weights, 0) == alive


@pytest.mark.parametrize("size", [1, 511, 512, 513, 5000])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 4.0, 30.0])
def test_race_is_the_least_of_all_its_quotients(size, sharpness):
    """Whatever blocks it leaves out; flat laws, peaked ones, and laws with zeros."""
    generator = torch.Generator().manual_seed(size)
    for position in range(40):
        weights = torch.softmax(sharpness * torch.randn(size, generator=generator), dim=0)
        weights[torch.rand(size, generator=generator) < 0.3] = 0.0
        weights[-1] = weights.max() + 1e-3
        quotients = KeyedNoise(8).exponentials(position, weights) / weights
        assert KeyedNoise(8).race(weights, position) == int(quotients.argmin())


def test_noise_is_exponential_across_and_inside_blocks():
    """2000 positions, two ids of one block and one of another: margins and all pairs."""
    rows = torch.stack(
        [KeyedNoise(21).exponentials(k, torch.ones(600))[[0, 1, 599]] for k in range(2000)]
    )
    cells = (4 * torch.exp(-rows)).floor().long()
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        counts = Counter((4 * cells[:, a] + cells[:, b]).tolist())
        assert goodness_of_fit(counts, dict.fromkeys(range(16), 1 / 16), ERROR_RATE).passed


def test_smaller_vocabulary_reads_a_prefix_of_the_same_noise():
    """A drafter with fewer ids races on the target's own numbers, whichever asks first."""
    large, small = torch.ones(100), torch.ones(60)
    first, second = KeyedNoise(5), KeyedNoise(5)
    wide = first.exponentials(9, large)
    assert torch.equal(first.exponentials(9, small), wide[:60])
    assert torch.equal(second.exponentials(9, small), wide[:60])
    assert torch.equal(second.exponentials(9, large), wide)


def test_old_positions_can_be_asked_again():
    noise = KeyedNoise(6)
    before = [noise.race(FINE, position) for position in range(100)]
    assert [noise.race(FINE, position) for position in range(100)] == before
    assert len(set(before)) > 90


def test_unseeded_noise_differs_every_time():
    numbers = {KeyedNoise(None).draw(FINE, 0, Purpose.DRAFT) for _ in range(20)}
    assert len(numbers) > 10


def test_global_generators_are_neither_read_nor_moved():
    torch.manual_seed(0)
    np.random.seed(0)
    states = torch.get_rng_state(), np.random.get_state()[1]
    KeyedNoise(None).race(FINE, 3)
    number()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
