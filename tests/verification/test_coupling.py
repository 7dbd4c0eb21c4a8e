"""How often two exponential races on the same noise agree: closed form against real noise."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch

from draftproof.checks.exact import enumerate_outcomes, total_variation
from draftproof.checks.statistics import goodness_of_fit
from draftproof.models.toy import random_law
from draftproof.sampling.noise import KeyedNoise
from tests.toys import EXACT, pairs_of_laws

P, Q = (1 / 2, 1 / 3, 1 / 6), (1 / 6, 1 / 3, 1 / 2)
ERROR_RATE = 1e-6


def race_pair(q, p, i, j):
    """P(argmin E/q = i and argmin E/p = j) for one vector E of iid Exp(1); q, p normalised.

    Given that i wins q's race at time t, E[i] = q[i] t and every other E[k] is q[k] t plus a
    fresh exponential. With A(r) = sum over k of max(q[k], r p[k]), r the ratio of both times:

        q[i] / A(q[i] / p[i])                         for i = j
        q[i] p[j] integral of dr / A(r)^2             for i != j, from q[j]/p[j] to q[i]/p[i]

    A is linear between the ratios q[k]/p[k], where dr / A(r)^2 over [a, b] is
    (b - a) / (A(a) A(b)).
    """
    if q[i] == 0 or p[j] == 0:
        return 0.0

    def total(r):
        return sum(max(qk, r * pk) for qk, pk in zip(q, p, strict=True))

    if i == j:
        return q[i] / total(q[i] / p[i])
    ratios = [qk / pk if pk > 0 else math.inf for qk, pk in zip(q, p, strict=True)]
    marks = sorted({ratio for ratio in ratios if ratios[j] <= ratio <= ratios[i]})
    # Behind the last finite ratio A grows as r itself.
    pieces = [
        (b - a) / (total(a) * total(b)) if b < math.inf else 1 / total(a)
        for a, b in pairwise(marks)
    ]
    return q[i] * p[j] * sum(pieces)


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


THREE = [torch.tensor(random_law(4, seed, 0.2)(()), dtype=torch.float64) for seed in (5, 6, 8)]


def three_races(noise, position=3, order=(0, 1, 2)):
    """Winners of three laws, and the second of the first law."""
    winners = {number: noise.race(THREE[number], position) for number in order}
    rest = THREE[0].clone()
    rest[winners[0]] = 0.0
    return winners[0], winners[1], winners[2], noise.race(rest, position)


def test_any_number_of_races_at_one_position_has_one_law_whatever_comes_first():
    laws = [
        enumerate_outcomes(lambda noise, order=order: three_races(noise, order=order))
        for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0))
    ]
    assert len(laws[0]) > 10
    for other in laws[1:]:
        assert total_variation(laws[0], other) < EXACT


def test_keyed_noise_follows_the_enumeration_of_several_races():
    noise = KeyedNoise(seed=8)
    counts = Counter(three_races(noise, position) for position in range(6000))
    law = enumerate_outcomes(three_races)
    assert sum(law.values()) == pytest.approx(1.0, abs=EXACT)
    assert goodness_of_fit(counts, law, ERROR_RATE).passed
    # Each pair of winners as it should be, the third independent of them.
    pairs = enumerate_outcomes(lambda noise: three_races(noise)[:2])
    third = enumerate_outcomes(lambda noise: three_races(noise)[2])
    triples = Counter(outcome[:3] for outcome in counts.elements())
    wrong = {(*pair, k): a * b for pair, a in pairs.items() for k, b in third.items()}
    assert not goodness_of_fit(triples, wrong, ERROR_RATE).passed
