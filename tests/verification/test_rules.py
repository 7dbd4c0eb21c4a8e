"""What a rule may and may not do to its inputs, at the edges of the numbers it is given."""

from __future__ import annotations

import pytest
import torch

from draftproof.core import Draft, Proposal, Purpose
from draftproof.models.toy import random_law
from draftproof.sampling.noise import KeyedNoise
from draftproof.verification.registry import VERIFIERS
from tests.toys import rows_of


class Fixed:
    """Noise with one answer to every coin; draws the likeliest token and checks the weights."""

    def __init__(self, accepts):
        self._accepts = accepts
        self.weights = []

    def accepts(self, p, q, position, offset):  # noqa: ARG002
        return self._accepts

    def draw(self, weights, position, purpose, offset=0):  # noqa: ARG002
        assert bool(weights.isfinite().all())
        assert float(weights.sum()) > 0
        self.weights.append(weights.clone())
        return int(weights.argmax())

    def race(self, weights, position):
        return self.draw(weights, position, Purpose.TARGET)


def sampled_chain(tokens, *laws):
    return Draft.chain(tokens, Proposal.SAMPLED, torch.tensor(laws, dtype=torch.float64))


@pytest.mark.parametrize("name", sorted(VERIFIERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_are_byte_identical_afterwards(name, dtype):
    """No rule zeroes or normalises the target's probabilities in place."""
    rule = VERIFIERS[name]
    for seed in range(12):
        target, law = random_law(4, seed), random_law(4, 100 + seed)
        tokens = [seed % 4, (seed // 2) % 4, 1]
        q = torch.tensor([law(tuple(tokens[:i])) for i in range(3)], dtype=dtype)
        draft = Draft.chain(tokens, Proposal.POINT)
        if Proposal.SAMPLED in rule.accepts:
            draft = Draft.chain(tokens, Proposal.SAMPLED, q)
        p = rows_of(target, draft).to(dtype)
        before = p.numpy().tobytes(), q.numpy().tobytes()
        rule.verify(draft, p, 5, KeyedNoise(seed))
        assert (p.numpy().tobytes(), q.numpy().tobytes()) == before


BRANCHING = (-1, -1, -1, 0, 0, 2, 3)
"""anchor - 0, 1, 2; 0 - 3, 4; 2 - 5; 3 - 6."""
TOKENS = [(0, 1, 0, 2, 2, 3, 1), (3, 3, 1, 0, 1, 2, 0), (2, 0, 3, 1, 3, 0, 2)]
JUDGED = [
    (name, proposal)
    for name in ("greedy", "point", "coupled", "tree", "traversal")
    for proposal in Proposal
    if proposal in VERIFIERS[name].accepts
]


def branching(tokens, proposal, law, dtype):
    """Siblings on three levels, equal ones among them, and the law of each where it was drawn."""
    bare = Draft(tokens, BRANCHING, None, Proposal.POINT)
    if proposal not in (Proposal.SAMPLED, Proposal.DISTINCT):
        return Draft(tokens, BRANCHING, None, proposal)
    rows = []
    for node, parent in enumerate(BRANCHING):
        q = torch.tensor(law(tuple(tokens[step] for step in bare.path(parent))), dtype=dtype)
        elder = [child for child in bare.children(parent) if child < node]
        if proposal is Proposal.DISTINCT:
            q[[tokens[child] for child in elder if tokens[child] != tokens[node]]] = 0.0
        rows.append(q / q.sum())
    return Draft(tokens, BRANCHING, torch.stack(rows), proposal)


@pytest.mark.parametrize(("name", "proposal"), JUDGED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_of_branching_drafts_are_byte_identical_afterwards(name, proposal, dtype):
    """On every path through the rule: rejected at once, after one token, kept to a leaf."""
    rule, reached = VERIFIERS[name], set()
    for seed in range(60):
        draft = branching(TOKENS[seed % 3], proposal, random_law(4, 100 + seed), dtype)
        p = rows_of(random_law(4, seed), draft).to(dtype)
        inputs = [p] if draft.q is None else [p, draft.q]
        before = [each.numpy().tobytes() for each in inputs]
        verdict = rule.verify(draft, p, 5, KeyedNoise(seed))
        assert [each.numpy().tobytes() for each in inputs] == before
        reached.add((len(verdict.accepted), verdict.all_accepted))
    assert {(0, False), (1, False)} <= reached
    assert {(2, True), (3, True)} & reached


@pytest.mark.parametrize("name", ["tokenwise", "blockwise", "tree", "traversal"])
@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_extreme_uniforms_never_emit_an_impossible_token(name, bits, monkeypatch):
    """u = 0 must not accept p = 0, and u next to 1 must not draw a token of no weight."""
    monkeypatch.setattr(KeyedNoise, "_bits", lambda *_: bits)
    p = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.5, 0.5]], dtype=torch.float64)
    draft = sampled_chain([0], (0.9, 0.1, 0.0))
    verdict = VERIFIERS[name].verify(draft, p, 3, KeyedNoise(0))
    assert verdict.accepted == ()
    assert verdict.next_token == 1


@pytest.mark.parametrize("name", ["tokenwise", "blockwise", "tree", "traversal"])
def test_rejection_by_rounding_where_p_equals_q_falls_back_to_p(name):
    """The residual is empty then; the correction is drawn from p instead of from nothing."""
    law = (0.2, 0.3, 0.5)
    p = torch.tensor([law, law, law], dtype=torch.float64)
    noise = Fixed(accepts=False)
    verdict = VERIFIERS[name].verify(sampled_chain([0, 1], law, law), p, 3, noise)
    assert verdict.accepted == ()
    assert torch.equal(noise.weights[-1], p[0])


@pytest.mark.parametrize("name", ["tokenwise", "blockwise", "tree", "traversal"])
def test_all_accepted_draws_the_bonus_from_the_last_row(name):
    p = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]], dtype=torch.float64)
    noise = Fixed(accepts=True)
    verdict = VERIFIERS[name].verify(
        sampled_chain([0, 2], p[0].tolist(), p[1].tolist()), p, 3, noise
    )
    assert verdict.accepted == (0, 1)
    assert verdict.all_accepted
    assert torch.equal(noise.weights[-1], p[2])


@pytest.mark.parametrize("name", ["tokenwise", "blockwise", "tree", "traversal"])
def test_drafted_token_that_q_rules_out_is_judged_without_dividing_by_zero(name):
    p = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    verdict = VERIFIERS[name].verify(sampled_chain([2], (0.5, 0.5, 0.0)), p, 3, KeyedNoise(1))
    assert verdict.accepted == ()
    assert verdict.next_token in (0, 1)


@pytest.mark.parametrize("name", ["greedy", "point", "coupled"])
@pytest.mark.parametrize("reached", [0, 1, 2, 3])
def test_tree_follows_the_branch_that_carries_the_token(name, reached):
    """anchor - 0 - 2, anchor - 1 - 3: the accepted path is the child's, not the first one's."""
    draft = Draft((4, 5, 6, 7), (-1, -1, 0, 1), None, Proposal.POINT)
    wanted = {0: (4, 0), 1: (5, 0), 2: (4, 6), 3: (5, 7)}[reached]
    law = {(): wanted[0], (wanted[0],): wanted[1]}
    p = torch.zeros((5, 8), dtype=torch.float64)
    for row, path in enumerate([(), (4,), (5,), (4, 6), (5, 7)]):
        p[row, law.get(path, 1)] = 1.0
    verdict = VERIFIERS[name].verify(draft, p, 9, KeyedNoise(3))
    paths = {0: ((0,), 0), 1: ((1,), 0), 2: ((0, 2), 1), 3: ((1, 3), 1)}
    assert (verdict.accepted, verdict.next_token) == paths[reached]
    assert verdict.all_accepted == (reached > 1)


@pytest.mark.parametrize("name", ["tokenwise", "blockwise"])
def test_rule_for_chains_refuses_a_tree(name):
    draft = Draft((0, 1), (-1, -1), None, Proposal.POINT)
    with pytest.raises(AssertionError, match="chains"):
        VERIFIERS[name].verify(draft, torch.full((3, 3), 1 / 3), 1, KeyedNoise(0))


def test_greedy_takes_the_first_of_equal_logits():
    p = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64)
    draft = Draft.chain((), Proposal.POINT)
    assert VERIFIERS["greedy"].verify(draft, p, 1, KeyedNoise(0)).next_token == 0


@pytest.mark.parametrize("name", ["tokenwise", "blockwise", "tree", "traversal"])
def test_a_correction_of_next_to_no_weight_is_drawn_all_the_same(name):
    """Rounded to 1, p and q agree on token 0; what is left of p is less than rounding."""
    p = torch.tensor([[1.0, 0.0, 1e-20]] * 2, dtype=torch.float64)
    verdict = VERIFIERS[name].verify(sampled_chain([1], (1.0, 1e-9, 0.0)), p, 3, KeyedNoise(1))
    assert (verdict.accepted, verdict.next_token) == ((), 2)
