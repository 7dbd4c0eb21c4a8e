"""Every rule, whatever it judges, emits the target's law: by enumeration, not by sampling."""

from __future__ import annotations

import pytest
import torch

from draftproof.checks.exact import (
    chain_proposer,
    emitted_law,
    enumerate_outcomes,
    joint_law,
    max_deviation,
    total_variation,
)
from draftproof.core import Draft, Proposal
from draftproof.models.toy import random_law
from draftproof.verification.registry import VERIFIERS
from tests.toys import (
    EXACT,
    constant_law,
    likeliest,
    pairs_of_laws,
    remembered,
    round_program,
    rows_of,
    sibling_proposer,
)

PAIRS = {name: tuple(map(remembered, laws)) for name, laws in pairs_of_laws().items()}
DEPTHS = (1, 2, 3)
CHAINS = {
    "greedy": (Proposal.POINT, Proposal.SAMPLED, Proposal.COUPLED),
    "tokenwise": (Proposal.POINT, Proposal.SAMPLED),
    "blockwise": (Proposal.POINT, Proposal.SAMPLED),
    "tree": (Proposal.POINT, Proposal.SAMPLED, Proposal.DISTINCT),
    "traversal": (Proposal.POINT, Proposal.SAMPLED, Proposal.DISTINCT),
    "coupled": (Proposal.POINT, Proposal.SAMPLED, Proposal.COUPLED),
    "point": (Proposal.POINT,),
}
RULE_AND_CHAIN = [(name, proposal) for name, proposals in CHAINS.items() for proposal in proposals]
TREES = [
    (name, proposal)
    for name in ("greedy", "coupled", "point", "tree", "traversal")
    for proposal in (Proposal.POINT, Proposal.SAMPLED, Proposal.DISTINCT)
    if proposal in VERIFIERS[name].accepts
]


def deviation(name, target, propose, length):
    """Total variation between the emitted tokens and the target's own."""
    rule = VERIFIERS[name]
    target = likeliest(target) if rule.greedy else target
    return total_variation(emitted_law(rule, target, propose, length), joint_law(target, length))


@pytest.mark.parametrize("laws", PAIRS)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("name", "proposal"), RULE_AND_CHAIN)
def test_chain_emits_the_joint_law_of_the_target(name, proposal, depth, laws):
    """Covers rejection at every offset, and p and q cut to different supports by top-k."""
    target, draft = PAIRS[laws]
    propose = chain_proposer(draft, depth, proposal)
    assert deviation(name, target, propose, depth + 1) < EXACT


@pytest.mark.parametrize(("name", "proposal"), RULE_AND_CHAIN)
def test_second_full_round_is_as_exact_as_the_first(name, proposal):
    target, draft = PAIRS["random"]
    assert deviation(name, target, chain_proposer(draft, 2, proposal), 5) < EXACT


@pytest.mark.parametrize("laws", ["random", "zeros", "cut to different supports", "disjoint"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("name", "proposal"), TREES)
def test_tree_with_two_siblings_emits_the_joint_law_of_the_target(name, proposal, depth, laws):
    target, draft = PAIRS[laws]
    propose = sibling_proposer(draft, depth, proposal)
    assert deviation(name, target, propose, depth + 1) < EXACT


GROWTHS = {
    "one path, siblings beside it": (3, 2, 3, lambda child, _path: child == 0),
    "the last sibling grows": (3, 2, 3, lambda child, _path: child == 1),
    "by the token that was drawn": (2, 2, 3, lambda _child, path: path[-1] != 0),
    "three siblings": (1, 3, 4, lambda _child, _path: True),
    "three siblings, one grows": (2, 3, 3, lambda child, _path: child == 1),
    "as many siblings as tokens": (1, 3, 3, lambda _child, _path: True),
}


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("zeros", [0.0, 0.4])
@pytest.mark.parametrize(("name", "proposal"), TREES)
def test_tree_of_any_shape_emits_the_joint_law_of_the_target(name, proposal, zeros, growth):
    """Whether a node has children may depend on anything drawn before them."""
    depth, width, vocab, grows = GROWTHS[growth]
    target, draft = (remembered(random_law(vocab, seed, zeros)) for seed in (20, 21))
    propose = sibling_proposer(draft, depth, proposal, width, grows)
    assert deviation(name, target, propose, depth + 1) < EXACT


@pytest.mark.parametrize(
    "name", ["tokenwise", "blockwise", "tree", "traversal", "coupled", "point"]
)
@pytest.mark.parametrize("fixed", [0, 1, 2])
def test_arbitrary_fixed_drafts_are_harmless(name, fixed):
    """A lookup or argmax draft is a point mass, accepted with probability p(x)."""
    target, _ = PAIRS["zeros"]

    def propose(_prefix, most, _noise):
        return Draft.chain([fixed] * min(3, most), Proposal.POINT)

    assert deviation(name, target, propose, 4) < EXACT


STOPS = {
    "after a token has been seen": lambda _prefix, drawn: not drawn or drawn[-1] != 0,
    "before the first": lambda prefix, _drawn: len(prefix) % 2 == 0,
    "when two agree": lambda _prefix, drawn: len(drawn) < 2 or drawn[-1] != drawn[-2],
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("name", "proposal"), RULE_AND_CHAIN)
def test_depth_decided_from_drawn_tokens_keeps_the_law(name, proposal, stop):
    target, draft = PAIRS["random"]
    propose = chain_proposer(draft, 3, proposal, STOPS[stop])
    assert deviation(name, target, propose, 4) < EXACT


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_reported_deviation_is_rounding(name):
    assert max_deviation(name) < EXACT


# How many tokens are accepted ---------------------------------------------------------------


def mean_accepted(name, target, propose, depth):
    program = round_program(VERIFIERS[name], target, propose, depth)
    return sum(count * chance for count, chance in enumerate_outcomes(program).items())


def mean_capped_ratios(target, draft, depth):
    """sum over i of E[b_i], straight from the definition."""
    total = 0.0
    beams = [((), 1.0, 1.0)]
    for _ in range(depth):
        grown = []
        for prefix, chance, b in beams:
            p, q = target(prefix), draft(prefix)
            grown += [
                ((*prefix, v), chance * q[v], min(1.0, b * p[v] / q[v]))
                for v in range(len(q))
                if q[v] > 0
            ]
        beams = grown
        total += sum(chance * b for _, chance, b in beams)
    return total


def test_blockwise_accepts_eleven_ninths_where_tokenwise_accepts_ten():
    target, draft = constant_law(1 / 3, 2 / 3), constant_law(2 / 3, 1 / 3)
    assert mean_accepted("tokenwise", target, sampled_chain(draft, 2), 2) == pytest.approx(
        10 / 9, abs=EXACT
    )
    assert mean_accepted("blockwise", target, sampled_chain(draft, 2), 2) == pytest.approx(
        11 / 9, abs=EXACT
    )


@pytest.mark.parametrize("laws", PAIRS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_blockwise_accepts_the_capped_ratios_and_never_less_than_tokenwise(laws, depth):
    target, draft = PAIRS[laws]
    propose = sampled_chain(draft, depth)
    block = mean_accepted("blockwise", target, propose, depth)
    assert block == pytest.approx(mean_capped_ratios(target, draft, depth), abs=EXACT)
    assert block >= mean_accepted("tokenwise", target, propose, depth) - EXACT


def test_blockwise_gains_on_random_laws_of_depth_three():
    gains = []
    for i in range(4):
        target, propose = random_law(3, 2 * i), sampled_chain(random_law(3, 2 * i + 1), 3)
        means = [mean_accepted(name, target, propose, 3) for name in ("blockwise", "tokenwise")]
        gains.append(means[0] - means[1])
    assert max(gains) > 0.01


def sampled_chain(draft, depth):
    return chain_proposer(draft, depth, Proposal.SAMPLED)


def verdict_law(name, target, propose):
    """Law of (draft, accepted nodes, next token) in one round."""

    def program(noise):
        drafted = propose((), 3, noise)
        verdict = VERIFIERS[name].verify(drafted, rows_of(target, drafted), 0, noise)
        return drafted.tokens, verdict.accepted, verdict.next_token, verdict.all_accepted

    return enumerate_outcomes(program)


@pytest.mark.parametrize("laws", PAIRS)
def test_blockwise_is_tokenwise_at_depth_one(laws):
    target, draft = PAIRS[laws]
    both = [
        verdict_law(name, target, sampled_chain(draft, 1)) for name in ("blockwise", "tokenwise")
    ]
    assert total_variation(*both) < EXACT


@pytest.mark.parametrize("laws", PAIRS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_all_point_rules_agree_on_fixed_drafts(laws, depth):
    """On point drafts no rule can beat p(draft): all of them are one law."""
    target, draft = PAIRS[laws]
    wanted = verdict_law("point", target, chain_proposer(draft, depth, Proposal.POINT))
    for name in ("tokenwise", "blockwise", "tree", "traversal", "coupled"):
        found = verdict_law(name, target, chain_proposer(draft, depth, Proposal.POINT))
        assert total_variation(found, wanted) < EXACT


@pytest.mark.parametrize("laws", PAIRS)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("rules", [("traversal", "blockwise"), ("tree", "tokenwise")])
def test_tree_rule_on_a_chain_is_the_chain_rule(rules, laws, depth):
    target, draft = PAIRS[laws]
    propose = chain_proposer(draft, depth, Proposal.SAMPLED)
    assert total_variation(*(verdict_law(name, target, propose) for name in rules)) < EXACT


@pytest.mark.parametrize("laws", PAIRS)
def test_rejection_on_fixed_siblings_accepts_what_following_the_targets_draw_does(laws):
    """Both reach p(siblings) at every node, and no lossless rule reaches more."""
    target, draft = PAIRS[laws]
    propose = sibling_proposer(draft, 2, Proposal.POINT)
    assert (
        total_variation(*(verdict_law(name, target, propose) for name in ("tree", "point"))) < EXACT
    )


@pytest.mark.parametrize("laws", PAIRS)
def test_as_many_distinct_siblings_as_tokens_are_never_all_rejected(laws):
    target, draft = PAIRS[laws]
    # Where q has zeros its support alone is drawn, and p may lie outside.
    if min(min(draft(())), 1) == 0:
        return
    propose = sibling_proposer(draft, 1, Proposal.DISTINCT, width=3)
    for name in ("tree", "traversal"):
        accepted = enumerate_outcomes(round_program(VERIFIERS[name], target, propose, 1))
        assert accepted.get(0, 0.0) < EXACT


@pytest.mark.parametrize("proposal", [Proposal.SAMPLED, Proposal.DISTINCT])
def test_traversal_never_accepts_less_than_recursive_rejection(proposal):
    gains = []
    for seed in range(4):
        target, draft = (remembered(random_law(3, 40 + 2 * seed + i)) for i in (0, 1))
        propose = sibling_proposer(draft, 2, proposal)
        means = [mean_accepted(name, target, propose, 2) for name in ("traversal", "tree")]
        gains.append(means[0] - means[1])
    assert min(gains) > -EXACT
    assert max(gains) > 0.005


def test_wrong_first_token_is_never_accepted():
    """The first drafted token is verified like every other."""
    target = constant_law(0.0, 1.0)
    draft = Draft.chain([0, 1], Proposal.POINT)
    for name, rule in VERIFIERS.items():
        law = enumerate_outcomes(
            lambda noise, rule=rule: rule.verify(draft, rows_of(target, draft), 0, noise)
        )
        ((verdict, _),) = law.items()
        assert (verdict.accepted, verdict.next_token) == ((), 1), name
        assert not verdict.all_accepted


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_empty_draft_is_plain_decoding(name):
    target = likeliest(PAIRS["random"][0]) if name == "greedy" else PAIRS["random"][0]
    draft = Draft.chain((), Proposal.POINT)
    p = torch.tensor([target(())], dtype=torch.float64)
    law = enumerate_outcomes(lambda noise: VERIFIERS[name].verify(draft, p, 0, noise))
    assert all(verdict.accepted == () and verdict.all_accepted for verdict in law)
    emitted = {(verdict.next_token,): chance for verdict, chance in law.items()}
    assert total_variation(emitted, joint_law(target, 1)) < EXACT
