"""How often two exponential races on the same noise agree: closed form against real noise."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from draftproof.checks.exact import enumerate_outcomes, race_pair
from draftproof.checks.statistics import goodness_of_fit
from draftproof.models.toy import random_law
from draftproof.sampling.noise import KeyedNoise
from tests.toys import EXACT, pairs_of_laws

P, Q = (1 / 2, 1 / 3, 1 / 6), (1 / 6, 1 / 3, 1 / 2)
ERROR_RATE = 1e-6


def joint(q, p):
    size = range(len(p))
    return {(i, j): race_pair(q, p, i, j) for i in size for j in size}


def agreement(q, p):
    """sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), as the paper writes it."""
    both = [i for i in range(len(p)) if p[i] > 0 and q[i] > 0]
    return sum(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(len(p))) for i in both)


def test_golden_pair_agrees_seven_times_in_twelve():
    assert sum(race_pair(Q, P, i, i) for i in range(3)) == pytest.approx(7 / 12, abs=EXACT)


@pytest.mark.parametrize("laws", pairs_of_laws())
def test_joint_law_of_two_races_has_the_right_margins_and_agreement(laws):
    target, draft = pairs_of_laws()[laws]
    p, q = target(()), draft(())
    law = joint(q, p)
    for i in range(3):
        assert sum(law[i, j] for j in range(3)) == pytest.approx(q[i], abs=EXACT)
        assert sum(law[j, i] for j in range(3)) == pytest.approx(p[i], abs=EXACT)
    agreed = sum(law[i, i] for i in range(3))
    assert agreed == pytest.approx(agreement(q, p), abs=EXACT)
    distance = 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))
    assert (1 - distance) / (1 + distance) - EXACT <= agreed <= 1 - distance + EXACT


@pytest.mark.parametrize(
    ("q", "p"),
    [(Q, P), (random_law(5, 1)(()), random_law(5, 2)(())), ((0.5, 0.5, 0.0), (0.0, 0.3, 0.7))],
)
def test_keyed_noise_follows_the_joint_law(q, p):
    """The noise that decoding uses; a right run fails with probability one in a million."""
    noise = KeyedNoise(seed=7)
    laws = torch.tensor([q, p], dtype=torch.float64)
    counts = Counter(
        (noise.race(laws[0], position), noise.race(laws[1], position)) for position in range(6000)
    )
    assert goodness_of_fit(counts, joint(q, p), ERROR_RATE).passed
    independent = {(i, j): q[i] * p[j] for i in range(len(q)) for j in range(len(p))}
    assert not goodness_of_fit(counts, independent, ERROR_RATE).passed


def test_enumeration_of_two_races_is_the_closed_form_in_both_orders():
    p, q = torch.tensor(P, dtype=torch.float64), torch.tensor(Q, dtype=torch.float64)
    forward = enumerate_outcomes(lambda noise: (noise.race(q, 3), noise.race(p, 3)))
    backward = enumerate_outcomes(lambda noise: (noise.race(p, 3), noise.race(q, 3))[::-1])
    for pair, chance in joint(Q, P).items():
        assert forward.get(pair, 0.0) == pytest.approx(chance, abs=EXACT)
        assert backward.get(pair, 0.0) == pytest.approx(chance, abs=EXACT)


def test_equal_laws_race_to_the_same_winner_and_other_positions_are_independent():
    p = torch.tensor(P, dtype=torch.float64)
    same = enumerate_outcomes(lambda noise: (noise.race(p, 3), noise.race(2 * p, 3)))
    assert all(first == second for first, second in same)
    apart = enumerate_outcomes(lambda noise: (noise.race(p, 3), noise.race(p, 4)))
    for (i, j), chance in apart.items():
        assert chance == pytest.approx(P[i] * P[j], abs=EXACT)
    assert len(apart) == 9
