"""Siblings raced with the sequence's own noise, judged by the race it runs with p: exactly.

Siblings of a node, its cousins of the same level, the target's own draw and what later rounds
draft at the same place all read one vector E.
"""

from __future__ import annotations

import pytest
import torch

from draftproof.checks.exact import (
    emitted_law,
    enumerate_outcomes,
    joint_law,
    total_variation,
)
from draftproof.core import Context, Draft, Plan, Proposal, Verdict
from draftproof.drafters.intersection import ShiftedNoise
from draftproof.drafters.rollout import roll_out
from draftproof.models.cache import KVCache
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp
from draftproof.verification.base import drafted_law
from draftproof.verification.coupled import Coupled
from draftproof.verification.traversal import Traversal
from draftproof.verification.tree import Tree, remainder
from tests.toys import (
    EXACT,
    constant_law,
    pairs_of_laws,
    remembered,
    round_program,
    sibling_proposer,
)

BIASED = 0.005
PAIRS = {name: tuple(map(remembered, laws)) for name, laws in pairs_of_laws().items()}


def raced_siblings(law, depth, width, grows=lambda _child, _path: True, recorded=False):
    """Trees whose siblings are the first `width` of the race of E with q.

    `grows(number among its siblings, drafted path)` decides whether a node gets children. With
    `recorded` the draft is handed over as drawn without replacement, which it is in law.
    """

    whole = remembered(lambda path: torch.tensor(law(path), dtype=torch.float64))

    def propose(prefix, most, noise):
        tokens, parents, laws, level = [], [], [], [(-1, ())]
        for step in range(min(depth, most)):
            grown = []
            for node, path in level:
                left = whole((*prefix, *path)).clone()
                for child in range(width):
                    if not float(left.sum()) > 0:
                        break
                    token = noise.race(left, len(prefix) + step)
                    if recorded:
                        laws.append(left / left.sum())
                    left[token] = 0.0
                    if grows(child, (*path, token)):
                        grown.append((len(tokens), (*path, token)))
                    tokens.append(token)
                    parents.append(node)
            level = grown
        if recorded and tokens:
            return Draft(tuple(tokens), tuple(parents), torch.stack(laws), Proposal.DISTINCT)
        return Draft(tuple(tokens), tuple(parents), None, Proposal.COUPLED)

    return propose


def deviation(rule, target, propose, length):
    return total_variation(emitted_law(rule, target, propose, length), joint_law(target, length))


@pytest.mark.parametrize("laws", PAIRS)
@pytest.mark.parametrize(("depth", "width"), [(1, 2), (2, 2), (1, 3), (2, 3)])
def test_raced_siblings_leave_the_law_of_the_target(laws, depth, width):
    target, draft = PAIRS[laws]
    assert deviation(Coupled(), target, raced_siblings(draft, depth, width), depth + 1) < EXACT


@pytest.mark.parametrize("laws", ["zeros", "cut to different supports", "disjoint"])
def test_three_full_levels_of_two_siblings_leave_the_law_of_the_target(laws):
    target, draft = PAIRS[laws]
    assert deviation(Coupled(), target, raced_siblings(draft, 3, 2), 4) < EXACT


GROWTHS = {
    "three levels, the first grows": (3, 2, 3, lambda child, _path: child == 0),
    "three levels, the second of three grows": (3, 3, 3, lambda child, _path: child == 1),
    "by the token that was drawn": (2, 2, 3, lambda _child, path: path[-1] == 0),
    "three of four": (1, 3, 4, lambda _child, _path: True),
    "three of four, the second grows": (2, 3, 4, lambda child, _path: child == 1),
}


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_raced_trees_of_any_shape_leave_the_law_of_the_target(growth, zeros):
    depth, width, vocab, grows = GROWTHS[growth]
    target, draft = (remembered(random_law(vocab, seed, zeros)) for seed in (20, 21))
    propose = raced_siblings(draft, depth, width, grows)
    assert deviation(Coupled(), target, propose, depth + 1) < EXACT


def rolled_out(law, depth, width):
    """The real loop's tree; a start token stands first."""
    model = ToyModel(lambda tokens: law(tokens[1:]), 3)
    warp = Warp(SamplingParams(temperature=1.0), prompt_length=1, num_tokens=3)

    def propose(prefix, most, noise):
        cache, text = KVCache(rows=1, capacity=40), [0, *prefix]
        model.prefill(text[:-1], cache, 0, 8)
        context = Context(0, 0, text, warp, ShiftedNoise(noise, -1), Proposal.COUPLED)
        return roll_out(model, cache, [context], [Plan(min(depth, most), width)], 3)[0].draft

    return propose


@pytest.mark.parametrize("laws", ["random", "equal", "cut to different supports"])
@pytest.mark.parametrize(("depth", "width"), [(1, 3), (2, 2)])
def test_the_loop_of_the_drafters_makes_the_same_tree_of_the_same_noise(laws, depth, width):
    _, draft = PAIRS[laws]
    real, ours = rolled_out(draft, depth, width), raced_siblings(draft, depth, width)

    def program(noise):
        a, b = real((1,), depth, noise), ours((1,), depth, noise)
        return a.tokens, a.parents, (a.tokens, a.parents) == (b.tokens, b.parents)

    outcomes = enumerate_outcomes(program)
    assert len(outcomes) > 1
    assert all(same for *_, same in outcomes)


@pytest.mark.parametrize("laws", ["random", "cut to different supports"])
def test_trees_of_the_loop_leave_the_law_of_the_target(laws):
    target, draft = PAIRS[laws]
    assert deviation(Coupled(), target, rolled_out(draft, 2, 2), 3) < EXACT


@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_raced_siblings_are_drawn_without_replacement(zeros):
    law = remembered(random_law(4, 21, zeros))
    raced, drawn = raced_siblings(law, 1, 3), sibling_proposer(law, 1, Proposal.DISTINCT, 3)
    laws = [
        enumerate_outcomes(lambda noise, propose=propose: propose((), 1, noise).tokens)
        for propose in (raced, drawn)
    ]
    assert len(laws[0]) > 1
    assert total_variation(*laws) < EXACT


@pytest.mark.parametrize(("width", "share"), [(1, 7 / 12), (2, 89 / 105), (3, 1.0)])
def test_how_often_a_raced_sibling_is_kept(width, share):
    """p = (1/2, 1/3, 1/6), q its reverse. With two siblings it is none of them where the first
    with p is the last with q, as only token 0 can be: with t = E[0]

        2t/3 < E[1] < 2t and t/3 < E[2] < 3t:   1/2 - 3/14 - 3/10 + 1/6 = 16/105
    """
    p, q = (1 / 2, 1 / 3, 1 / 6), (1 / 6, 1 / 3, 1 / 2)
    propose = raced_siblings(constant_law(*q), 1, width)
    program = round_program(Coupled(), constant_law(*p), propose, 1)
    assert enumerate_outcomes(program)[1] == pytest.approx(share, abs=EXACT)


# Negative controls --------------------------------------------------------------------------

CONTROLS = {
    depth: [tuple(remembered(random_law(size, 60 + 2 * i + j)) for j in (0, 1)) for i in range(3)]
    for depth, size in ((1, 4), (2, 3))
}


def worst_deviation(rule, proposer, depth):
    """Largest error over all pairs; `proposer(target law, draft law, depth)` makes the draft."""
    return max(
        deviation(rule, target, proposer(target, draft, depth), depth + 1)
        for target, draft in CONTROLS[depth]
    )


def siblings(_target, draft, depth):
    return raced_siblings(draft, depth, 2)


def recorded(_target, draft, depth):
    return raced_siblings(draft, depth, 2, recorded=True)


class SecondChance(Coupled):
    """Draws the noise of a node anew where none of its siblings has won."""

    def verify(self, draft, p, position, noise):
        verdict = super().verify(draft, p, position, noise)
        if not draft.tokens or verdict.accepted:
            return verdict
        again = super().verify(draft, p, position + 100, noise)
        return again if again.accepted else verdict


class OnlyChance(SecondChance):
    """The same code, noise drawn anew for all that was drafted and used whatever it says."""

    def verify(self, draft, p, position, noise):
        return Coupled.verify(self, draft, p, position + 100, noise)


class Sibling(Coupled):
    """Emits the last sibling where the target's own draw is none of them."""

    def verify(self, draft, p, position, noise):
        verdict = super().verify(draft, p, position, noise)
        if not draft.tokens or verdict.accepted:
            return verdict
        return Verdict((), draft.tokens[draft.children(-1)[-1]], all_accepted=False)


class SharedNoise(Tree):
    """Recursive rejection whose correction is raced with the noise that chose the siblings."""

    def verify(self, draft, p, position, noise):
        left = p[0]
        for child in draft.children(-1):
            token, q = draft.tokens[child], drafted_law(draft, child, p)
            if noise.accepts(float(left[token]), float(q[token]), position, child):
                return Verdict((child,), noise.race(p[child + 1], position + 1), True)
            left = remainder(left, q)
        return Verdict((), noise.race(left, self.where(position)), all_accepted=False)

    def where(self, position):
        return position


class FreshNoise(SharedNoise):
    """The same code with noise of its own."""

    def where(self, position):
        return position + 100


def decided_by_the_target(target, draft, depth):
    """The target's own draw and one sibling more, handed over as if both were drawn from q."""
    drawing = raced_siblings(draft, depth, 2, recorded=True)

    def propose(prefix, most, noise):
        drawn = drawing(prefix, most, noise)
        if not drawn.tokens:
            return drawn
        y = noise.race(torch.tensor(target(prefix), dtype=torch.float64), len(prefix))
        other = next(token for token in (*drawn.tokens, 0, 1) if token != y)
        whole = torch.tensor(draft(prefix), dtype=torch.float64)
        rest = whole.clone()
        rest[y] = 0.0
        q = torch.stack([whole, rest / rest.sum()])
        return Draft((y, other), (-1, -1), q, Proposal.DISTINCT)

    return propose


WRONG = {
    "noise drawn anew where it helps": (SecondChance(), siblings, 1),
    "a sibling emitted in place of the target's draw": (Sibling(), siblings, 1),
    "correction raced with the noise of the siblings": (SharedNoise(), recorded, 1),
    "siblings decided by the target's draw": (Tree(), decided_by_the_target, 1),
    "traversal of what a rejected tail has raced for": (Traversal(), recorded, 2),
}
RIGHT = {
    "noise drawn anew always": (OnlyChance(), siblings, 1),
    "the target's draw emitted": (Coupled(), siblings, 1),
    "correction raced with noise of its own": (FreshNoise(), recorded, 1),
    "siblings decided by the target's draw, coupled": (Coupled(), decided_by_the_target, 1),
    "raced siblings of one level, traversal": (Traversal(), recorded, 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_of_the_shared_noise_is_detected(name):
    assert worst_deviation(*WRONG[name]) > BIASED


@pytest.mark.parametrize("name", RIGHT)
def test_same_code_without_the_fault_passes(name):
    assert worst_deviation(*RIGHT[name]) < EXACT
