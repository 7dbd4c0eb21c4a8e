"""Exact laws of everything that draws through `Noise`, by running every branch of every choice.

A number of `KeyedNoise` is a uniform behind a key. `Enumeration` knows for each key the interval
in which its uniform still lies, so a rule that reads one number twice, or a round that reads what
an earlier round has read, is conditioned on the first reading as it would be in a real run.

A race is decided by E / sum(E), which is uniform over the simplex of all laws. The v that wins with
weights w are those for which E[u] w[v] >= E[v] w[u] for every u: each race cuts the simplex with
planes, and probabilities are volumes, however many laws race on one noise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import TypeVar, cast

import torch

from draftproof.core import Draft, Proposal, Purpose
from draftproof.models.toy import Law, random_law
from draftproof.sampling.noise import Noise
from draftproof.verification.base import Verifier
from draftproof.verification.registry import find

T = TypeVar("T")
Tokens = tuple[int, ...]
JointLaw = dict[Tokens, float]
"""Token sequence -> probability."""
Key = tuple[int, Purpose, int]
Span = tuple[float, float]
Piece = tuple[float, tuple[tuple[float, ...], ...]]
"""A simplex: its share of all laws, and its corners."""
Region = tuple[Piece, ...]
Known = Mapping[Key, "Span | Region"]
Propose = Callable[[Tokens, int, Noise], Draft]
"""(tokens so far, most depth, noise) -> draft."""

_ON_THE_PLANE = 1e-14
"""How far rounding takes a corner from the plane that made it, at most."""


class Enumeration:
    """A `Noise` that takes one branch of every choice and knows how probable that was."""

    def __init__(self, path: Sequence[int] = (), known: Known | None = None) -> None:
        """`path` numbers the branches to take first; behind it the first branch is taken."""
        self.probability = 1.0
        self.known: dict[Key, Span | Region] = dict(known or {})
        self.touched: set[Key] = set()
        self.taken: list[tuple[int, int]] = []
        """Per choice: the branch that was taken, and how many there were."""
        self._path = path

    def accepts(self, p: float, q: float, position: int, offset: int) -> bool:
        limit = min(1.0, p / q) if q > 0 else float(p > 0)
        return self._land((position, Purpose.ACCEPT, offset), [0.0, limit, 1.0]) == 0

    def draw(self, weights: torch.Tensor, position: int, purpose: Purpose, offset: int = 0) -> int:
        totals = [0.0, *accumulate(_normalised(weights))]
        edges = [total / totals[-1] for total in totals]
        return self._land((position, purpose, offset), edges)

    def race(self, weights: torch.Tensor, position: int) -> int:
        key, law = (position, Purpose.RACE, 0), _normalised(weights)
        self.touched.add(key)
        region = cast("Region", self.known.get(key) or _all_laws(len(law)))
        won = [_won(region, law, token) for token in range(len(law))]
        index = self._choose([sum(share for share, _ in part) for part in won])
        self.known[key] = won[index]
        return index

    def _land(self, key: Key, edges: Sequence[float]) -> int:
        """In which piece between `edges` the uniform of `key` lies."""
        self.touched.add(key)
        low, high = cast("Span", self.known.get(key, (0.0, 1.0)))
        pieces = [(max(low, a), min(high, b)) for a, b in pairwise(edges)]
        index = self._choose([max(0.0, b - a) for a, b in pieces])
        self.known[key] = pieces[index]
        return index

    def _choose(self, weights: Sequence[float]) -> int:
        """One of the branches with positive weight: the next of the path, else the first."""
        live = [i for i, weight in enumerate(weights) if weight > 0]
        step = len(self.taken)
        branch = self._path[step] if step < len(self._path) else 0
        self.taken.append((branch, len(live)))
        self.probability *= weights[live[branch]] / sum(weights)
        return live[branch]


def enumerate_outcomes(program: Callable[[Noise], T]) -> dict[T, float]:
    """The law of what `program` returns, over all ways in which its noise can fall."""
    law: dict[T, float] = defaultdict(float)
    for outcome, noise in _branches(program, {}):
        law[outcome] += noise.probability
    return dict(law)


def emitted_law(verifier: Verifier, target_law: Law, propose: Propose, length: int) -> JointLaw:
    """Joint law of the first `length` tokens that rounds of `propose` and `verifier` emit.

    As many rounds are run as that takes, each on the noise that the rounds before have left. A
    draft is at most as deep as the tokens still wanted allow, as in a real run.
    """
    rows: dict[Tokens, torch.Tensor] = {}

    def law_after(prefix: Tokens) -> torch.Tensor:
        if prefix not in rows:
            rows[prefix] = torch.tensor(target_law(prefix), dtype=torch.float64)
        return rows[prefix]

    def play(prefix: Tokens, noise: Noise) -> Tokens:
        draft = propose(prefix, length - len(prefix) - 1, noise)
        paths = [[draft.tokens[i] for i in draft.path(node)] for node in range(len(draft.tokens))]
        p = torch.stack([law_after((*prefix, *path)) for path in [[], *paths]])
        verdict = verifier.verify(draft, p, len(prefix), noise)
        return (*(draft.tokens[node] for node in verdict.accepted), verdict.next_token)

    return _Rounds(play, length).finish((), {}).law


def chain_proposer(
    draft_law: Law,
    depth: int,
    proposal: Proposal,
    goes_on: Callable[[Tokens, Tokens], bool] = lambda _prefix, _drawn: True,
) -> Propose:
    """Chains of up to `depth` tokens, drawn from `draft_law` as `proposal` says.

    `goes_on(tokens so far, drafted so far)` decides before each token whether to draft it. POINT
    is the argmax.
    """

    def propose(prefix: Tokens, most: int, noise: Noise) -> Draft:
        drawn: list[int] = []
        laws: list[torch.Tensor] = []
        while len(drawn) < min(depth, most) and goes_on(prefix, tuple(drawn)):
            q = torch.tensor(draft_law((*prefix, *drawn)), dtype=torch.float64)
            if proposal is Proposal.POINT:
                drawn.append(int(q.argmax()))
            elif proposal is Proposal.COUPLED:
                drawn.append(noise.race(q, len(prefix) + len(drawn)))
            else:
                drawn.append(noise.draw(q, len(prefix), Purpose.DRAFT, len(drawn)))
                laws.append(q)
        return Draft.chain(drawn, proposal, torch.stack(laws) if laws else None)

    return propose


def joint_law(law: Law, length: int) -> JointLaw:
    """The law of the first `length` tokens drawn from `law` one by one; zeros left out."""
    joint: JointLaw = {(): 1.0}
    for _ in range(length):
        joint = {
            (*prefix, token): before * chance
            for prefix, before in joint.items()
            for token, chance in enumerate(law(prefix))
            if chance > 0
        }
    return joint


def total_variation(a: Mapping[T, float], b: Mapping[T, float]) -> float:
    """Half the sum of absolute differences: 0 for equal laws, 1 for disjoint ones."""
    return 0.5 * sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in {*a, *b})


def max_deviation(verifier: str | Verifier, num_pairs: int = 4, depth: int = 2) -> float:
    """Largest total variation between what a rule emits and the target, over random toy pairs.

    Every way of drafting chains that the rule accepts is tried; only rounding, about 1e-16, is
    left of a lossless rule.
    """
    rule = find(verifier)
    chains = {Proposal.POINT, Proposal.SAMPLED, Proposal.COUPLED} & rule.accepts
    worst = 0.0
    for number in range(num_pairs):
        target = random_law(3, seed=2 * number, zeros=0.2 * (number % 2))
        draft = random_law(3, seed=2 * number + 1, zeros=0.2 * (number // 2 % 2))
        if rule.greedy:
            target = _likeliest(target)
        wanted = joint_law(target, depth + 1)
        for proposal in chains:
            propose = chain_proposer(draft, depth, proposal)
            emitted = emitted_law(rule, target, propose, depth + 1)
            worst = max(worst, total_variation(emitted, wanted))
    return worst


@dataclass(frozen=True, slots=True)
class _Finish:
    """How a sequence goes on, as far as the keys it reads are known beforehand."""

    touched: frozenset[Key]
    known: Known
    law: JointLaw


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Plays rounds to the end, each continuation once for every noise that it can meet."""

    play: Callable[[Tokens, Noise], Tokens]
    length: int
    finished: dict[Tokens, list[_Finish]] = field(default_factory=lambda: defaultdict(list))

    def finish(self, prefix: Tokens, known: Known) -> _Finish:
        if len(prefix) >= self.length:
            return _Finish(frozenset(), {}, {prefix[: self.length]: 1.0})
        for old in self.finished[prefix]:
            if old.known == _read(known, old.touched):
                return old
        touched: set[Key] = set()
        law: JointLaw = defaultdict(float)
        for tokens, noise in _branches(partial(self.play, prefix), known):
            rest = self.finish((*prefix, *tokens), noise.known)
            touched |= noise.touched | rest.touched
            for outcome, chance in rest.law.items():
                law[outcome] += noise.probability * chance
        new = _Finish(frozenset(touched), _read(known, touched), dict(law))
        self.finished[prefix].append(new)
        return new


def _read(known: Known, keys: set[Key] | frozenset[Key]) -> Known:
    return {key: known[key] for key in keys if key in known}


def _branches(program: Callable[[Noise], T], known: Known) -> Iterator[tuple[T, Enumeration]]:
    """Run `program` once per branch, depth first: every outcome with the noise that led there."""
    path: list[int] = []
    while True:
        noise = Enumeration(path, known)
        yield program(noise), noise
        path = [branch for branch, _ in noise.taken]
        while path and path[-1] + 1 == noise.taken[len(path) - 1][1]:
            path.pop()
        if not path:
            return
        path[-1] += 1


def _all_laws(size: int) -> Region:
    return ((1.0, tuple(tuple(float(i == j) for j in range(size)) for i in range(size))),)


@lru_cache(maxsize=4096)
def _won(region: Region, law: tuple[float, ...], winner: int) -> Region:
    """The part of `region` where `winner` wins the race with `law`."""
    if law[winner] == 0:
        return ()
    for other in range(len(law)):
        region = tuple(_cut(region, law, winner, other))
    return region


def _cut(region: Region, law: tuple[float, ...], first: int, second: int) -> Iterator[Piece]:
    """The part of `region` where `first` comes before `second` in the race with `law`."""
    for share, corners in region:
        leads = [corner[second] * law[first] - corner[first] * law[second] for corner in corners]
        most, least = max(leads), min(leads)
        if least >= -_ON_THE_PLANE:
            yield share, corners
        elif most > _ON_THE_PLANE:
            ahead, behind = leads.index(most), leads.index(least)
            at = most / (most - least)
            ends = zip(corners[ahead], corners[behind], strict=True)
            crossing = tuple(a + at * (b - a) for a, b in ends)
            halves = (share * at, behind), (share * (1 - at), ahead)
            parts = tuple((size, (*corners[:i], crossing, *corners[i + 1 :])) for size, i in halves)
            yield from _cut(parts, law, first, second)


def _normalised(weights: torch.Tensor) -> tuple[float, ...]:
    values = weights.double().tolist()
    assert min(values) >= 0, "weights are negative or not numbers"
    assert 0 < sum(values) < math.inf, "weights have no mass"
    return tuple(value / sum(values) for value in values)


def _likeliest(law: Law) -> Law:
    """The point mass on the argmax: the law at temperature 0."""

    def greedy(prefix: Tokens) -> Sequence[float]:
        chances = list(law(prefix))
        return [float(token == chances.index(max(chances))) for token in range(len(chances))]

    return greedy
