"""Negative controls: the enumeration that passes our rules must reject rules known to be wrong.

Each of these has been shipped by some system; a check that cannot see them is worth nothing.
"""

from __future__ import annotations

import pytest
import torch

from draftproof.checks.exact import (
    chain_proposer,
    emitted_law,
    joint_law,
    total_variation,
)
from draftproof.core import Draft, Proposal, Purpose, Verdict
from draftproof.models.toy import random_law
from draftproof.sampling.draw import residual
from draftproof.verification.blockwise import Blockwise, capped_ratios
from draftproof.verification.coupled import Coupled
from draftproof.verification.tokenwise import Tokenwise
from tests.toys import EXACT, ResampleFromTarget, RightResidual

DEPTH = 2
BIASED = 0.01


def crafted_pair():
    """The first draft token is half as likely in p as in q, and two tokens are left behind it."""
    p = {0: (0.3, 0.7, 0.0, 0.0), 1: (0.5, 0.5, 0.0, 0.0), 2: (0.25, 0.25, 0.25, 0.25)}
    q = {0: (0.6, 0.4, 0.0, 0.0), 1: (0.0, 0.2, 0.4, 0.4), 2: (0.25, 0.25, 0.25, 0.25)}
    return lambda prefix: p[len(prefix)], lambda prefix: q[len(prefix)]


PAIRS = [(random_law(3, 10 + 2 * i), random_law(3, 11 + 2 * i)) for i in range(6)]
PAIRS.append(crafted_pair())


def worst_deviation(rule, proposer, depth=DEPTH):
    """Largest error over all pairs; `proposer(draft law, depth)` makes the draft."""
    return max(
        total_variation(
            emitted_law(rule, target, proposer(draft, depth), depth + 1),
            joint_law(target, depth + 1),
        )
        for target, draft in PAIRS
    )


def sampled(draft, depth):
    return chain_proposer(draft, depth, Proposal.SAMPLED)


def argmax(draft, depth):
    return chain_proposer(draft, depth, Proposal.POINT)


class ScalarResidual(ResampleFromTarget):
    """Subtracts the one number q(x) from the whole vector instead of q."""

    def correction(self, p, q, x):
        left = (p - q[x]).clamp(min=0)
        return left if left.sum() > 0 else p


class FullRedraw(ResampleFromTarget):
    """Accepts the argmax draft with probability p(x), but corrects from all of p."""


class FirstFailedCoin(Blockwise):
    """Blockwise that stops at the first tail instead of taking the last head."""

    def verify(self, draft, p, position, noise):
        depth = len(draft.tokens)
        b = capped_ratios(draft, p)
        tau = 0
        for i in range(1, depth + 1):
            if i == depth:
                heads = noise.accepts(b[i], 1.0, position, i)
            else:
                m = float(residual(p[i], draft.q[i], b[i]).sum())
                heads = noise.accepts(m, m + 1 - b[i], position, i)
            if not heads:
                break
            tau = i
        return _finished(draft, p, tau, b[tau], position, noise)


class ResidualWithoutRatio(Blockwise):
    """Blockwise accepts, but the correction comes from (p - q)+ without b."""

    def verify(self, draft, p, position, noise):
        tau = len(super().verify(draft, p, position, noise).accepted)
        return _finished(draft, p, tau, 1.0, position + 100, noise)


class RightRatio(Blockwise):
    """The same code with the right scale: the difference is b and nothing else."""

    def verify(self, draft, p, position, noise):
        tau = len(super().verify(draft, p, position, noise).accepted)
        return _finished(draft, p, tau, capped_ratios(draft, p)[tau], position + 100, noise)


def _finished(draft, p, tau, scale, position, noise):
    depth = len(draft.tokens)
    weights = p[depth]
    if tau < depth:
        left = residual(p[tau], draft.q[tau], scale)
        weights = left if left.sum() > 0 else p[tau]
    y = noise.draw(weights, position, Purpose.CORRECTION)
    return Verdict(tuple(range(tau)), y, all_accepted=tau == depth)


def discarding(draft, depth):
    """Draws x ~ q and silently drops it, with all that would follow, where q(x) < 1/4."""
    drawing = chain_proposer(draft, depth, Proposal.SAMPLED)

    def propose(prefix, most, noise):
        drawn = drawing(prefix, most, noise)
        kept = 0
        while kept < len(drawn.tokens) and drawn.q[kept][drawn.tokens[kept]] >= 0.25:
            kept += 1
        q = drawn.q[:kept] if kept else None
        return Draft.chain(drawn.tokens[:kept], Proposal.SAMPLED, q)

    return propose


def argmax_as_if_sampled(draft, depth):
    """The argmax of q, handed over with the whole of q in the ratio."""
    return _with_q(draft, depth, lambda q, _position, _offset, _noise: int(q.argmax()))


def top_two_as_if_all(draft, depth):
    """Drawn from the two likeliest tokens, handed over with the uncut q."""

    def pick(q, position, offset, noise):
        cut = torch.where(q >= q.sort().values[-2], q, 0.0)
        return noise.draw(cut, position, Purpose.DRAFT, offset)

    return _with_q(draft, depth, pick)


def drawn_from_all_of_q(draft, depth):
    """The same code, drawn from the q it hands over."""
    return _with_q(
        draft,
        depth,
        lambda q, position, offset, noise: noise.draw(q, position, Purpose.DRAFT, offset),
    )


def _with_q(draft, depth, pick):
    def propose(prefix, most, noise):
        tokens, laws = [], []
        for offset in range(min(depth, most)):
            q = torch.tensor(draft((*prefix, *tokens)), dtype=torch.float64)
            tokens.append(pick(q, len(prefix), offset, noise))
            laws.append(q)
        return Draft.chain(tokens, Proposal.SAMPLED, torch.stack(laws) if laws else None)

    return propose


WRONG = {
    "one number subtracted from the whole vector": (ScalarResidual(), sampled),
    "rejected argmax corrected from all of p": (FullRedraw(), argmax),
    "unlikely drafts silently discarded": (Tokenwise(), discarding),
    "unlikely drafts silently discarded, blockwise": (Blockwise(), discarding),
    "correction from p instead of the residual": (ResampleFromTarget(), sampled),
    "argmax draft with softmax q": (Tokenwise(), argmax_as_if_sampled),
    "argmax draft with softmax q, blockwise": (Blockwise(), argmax_as_if_sampled),
    "top-2 draft with the uncut q": (Tokenwise(), top_two_as_if_all),
    "blockwise stops at the first tail": (FirstFailedCoin(), sampled),
    "blockwise residual without the ratio": (ResidualWithoutRatio(), sampled),
}
RIGHT = {
    "residual": (RightResidual(), sampled),
    "residual of an argmax": (RightResidual(), argmax),
    "drawn from the q handed over": (Tokenwise(), drawn_from_all_of_q),
    "blockwise residual with the ratio": (RightRatio(), sampled),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rule_is_detected(name):
    assert worst_deviation(*WRONG[name]) > BIASED


@pytest.mark.parametrize("name", RIGHT)
def test_same_code_without_the_fault_passes(name):
    assert worst_deviation(*RIGHT[name]) < EXACT


def test_uniform_of_zero_with_weak_inequality_would_be_seen():
    """Accepting where p is 0 has probability 2^-53 a draw; here the branch itself is forbidden."""

    class AcceptsImpossible(Tokenwise):
        def verify(self, draft, p, position, noise):
            return super().verify(draft, p.clamp(min=1e-3), position, noise)

    target, draft = (lambda _prefix: (0.0, 0.5, 0.5)), (lambda _prefix: (0.8, 0.1, 0.1))
    emitted = emitted_law(AcceptsImpossible(), target, sampled(draft, 1), 2)
    assert any(0 in tokens for tokens in emitted)
    emitted = emitted_law(Tokenwise(), target, sampled(draft, 1), 2)
    assert not any(0 in tokens for tokens in emitted)


# The position in the key --------------------------------------------------------------------


class KeyedByToken:
    """Noise keyed by the token's own position, so that a rejected tail's numbers come again."""

    def __init__(self, noise, purposes):
        self._noise = noise
        self._purposes = purposes

    def accepts(self, p, q, position, offset):
        return self._noise.accepts(p, q, *self._key(position, offset, Purpose.ACCEPT))

    def draw(self, weights, position, purpose, offset=0):
        position, offset = self._key(position, offset, purpose)
        return self._noise.draw(weights, position, purpose, offset)

    def race(self, weights, position):
        return self._noise.race(weights, position)

    def _key(self, position, offset, purpose):
        return (position + offset, 0) if purpose in self._purposes else (position, offset)


def rekeyed(rule, purposes):
    """The rule and a way of drafting, both on noise keyed by the token's own position."""

    class Rekeyed(type(rule)):
        def verify(self, draft, p, position, noise):
            return super().verify(draft, p, position, KeyedByToken(noise, purposes))

    def proposer(draft, depth):
        propose = chain_proposer(draft, depth, Proposal.SAMPLED)
        return lambda prefix, most, noise: propose(prefix, most, KeyedByToken(noise, purposes))

    return Rekeyed(), proposer


@pytest.mark.parametrize("purposes", [{Purpose.ACCEPT}, {Purpose.DRAFT}])
def test_blockwise_is_biased_where_numbers_of_a_rejected_tail_come_again(purposes):
    assert worst_deviation(*rekeyed(Blockwise(), purposes)) > 1e-3


@pytest.mark.parametrize("purposes", [{Purpose.ACCEPT}, {Purpose.DRAFT}])
def test_tokenwise_never_looks_at_the_tail_and_stays_exact(purposes):
    assert worst_deviation(*rekeyed(Tokenwise(), purposes)) < EXACT


def test_blockwise_keyed_by_where_the_draft_starts_is_exact():
    assert worst_deviation(*rekeyed(Blockwise(), set())) < EXACT


def test_correction_that_shares_the_number_of_the_coin_is_detected():
    """Reading one number twice within a round is seen as well."""

    class Sharing(Tokenwise):
        def verify(self, draft, p, position, noise):
            class Shared(KeyedByToken):
                def draw(self, weights, position, purpose, offset=0):  # noqa: ARG002
                    return noise.draw(weights, position, Purpose.ACCEPT, 0)

            return super().verify(draft, p, position, Shared(noise, ()))

    assert worst_deviation(Sharing(), sampled) > BIASED


def test_coupled_draft_that_is_emitted_without_the_target_is_detected():
    """A coupled rule has to emit the target's winner, not the draft's."""

    class Trusting(Coupled):
        def verify(self, draft, p, position, noise):
            verdict = super().verify(draft, p, position, noise)
            if draft.tokens and not verdict.accepted:
                return Verdict((), draft.tokens[0], all_accepted=False)
            return verdict

    def coupled(draft, depth):
        return chain_proposer(draft, depth, Proposal.COUPLED)

    assert worst_deviation(Trusting(), coupled) > BIASED
    assert worst_deviation(Coupled(), coupled) < EXACT
