"""Which rule judges which drafts: the whole table, and what is said when a pair is refused."""

from __future__ import annotations

import pytest

from draftproof.core import Proposal
from draftproof.errors import InvalidSetting, ProposalMismatch
from draftproof.sampling.params import SamplingParams
from draftproof.verification.registry import VERIFIERS, choose, find, pair
from tests.toys import RightResidual

ALL = frozenset(Proposal)
ACCEPTS = {
    "greedy": ALL,
    "coupled": ALL,
    "tokenwise": {Proposal.POINT, Proposal.SAMPLED},
    "blockwise": {Proposal.POINT, Proposal.SAMPLED},
    "point": {Proposal.POINT},
    "tree": {Proposal.POINT, Proposal.SAMPLED, Proposal.DISTINCT},
    "traversal": {Proposal.POINT, Proposal.SAMPLED, Proposal.DISTINCT},
}
MODEL = frozenset({Proposal.POINT, Proposal.SAMPLED, Proposal.COUPLED})
NGRAM = frozenset({Proposal.POINT})


def test_every_rule_is_in_the_table():
    assert set(ACCEPTS) == set(VERIFIERS)
    assert all(rule.name == name for name, rule in VERIFIERS.items())


@pytest.mark.parametrize("proposal", Proposal)
@pytest.mark.parametrize("name", sorted(ACCEPTS))
def test_rule_pairs_with_exactly_the_proposals_it_accepts(name, proposal):
    assert (proposal in VERIFIERS[name].accepts) == (proposal in ACCEPTS[name])
    if proposal in ACCEPTS[name]:
        assert pair(frozenset({proposal}), "mine", name).proposal is proposal
        return
    with pytest.raises(ProposalMismatch) as error:
        pair(frozenset({proposal}), "mine", name)
    for part in ("mine", name, proposal.value):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("proposals", "params", "verifier", "rule", "proposal"),
    [
        (MODEL, SamplingParams(), None, "greedy", Proposal.POINT),
        (MODEL, SamplingParams(seed=1), None, "greedy", Proposal.POINT),
        (MODEL, SamplingParams(), "blockwise", "greedy", Proposal.POINT),
        (MODEL, SamplingParams(temperature=1.0), None, "blockwise", Proposal.SAMPLED),
        (MODEL, SamplingParams(temperature=1.0, seed=1), None, "coupled", Proposal.COUPLED),
        (MODEL, SamplingParams(temperature=1.0), "tokenwise", "tokenwise", Proposal.SAMPLED),
        (
            MODEL,
            SamplingParams(temperature=1.0, seed=1),
            "blockwise",
            "blockwise",
            Proposal.SAMPLED,
        ),
        (MODEL, SamplingParams(temperature=1.0), "point", "point", Proposal.POINT),
        (NGRAM, SamplingParams(), None, "greedy", Proposal.POINT),
        (NGRAM, SamplingParams(temperature=1.0), None, "point", Proposal.POINT),
        (NGRAM, SamplingParams(temperature=1.0, seed=1), None, "coupled", Proposal.POINT),
    ],
)
def test_choice_of_rule(proposals, params, verifier, rule, proposal):
    chosen = choose(proposals, "mine", params, verifier)
    assert (chosen.verifier.name, chosen.proposal) == (rule, proposal)


def test_wide_drafts_are_judged_by_a_rule_for_trees():
    warm = SamplingParams(temperature=1.0)
    chosen = choose(ALL, "mine", warm, None, width=2)
    assert (chosen.verifier.name, chosen.proposal) == ("traversal", Proposal.DISTINCT)
    assert choose(MODEL, "mine", warm, "tree", width=2).proposal is Proposal.SAMPLED
    assert choose(NGRAM, "mine", warm, None, width=2).verifier.name == "point"
    for name in ("tokenwise", "blockwise"):
        with pytest.raises(InvalidSetting, match=rf"{name}.*width is 2"):
            choose(ALL, "mine", warm, name, width=2)


@pytest.mark.parametrize("name", ["tokenwise", "blockwise", "tree", "traversal", "point"])
def test_a_seed_is_not_shared_with_drafts_that_other_requests_left(name):
    """The numbers that made an earlier answer may not judge it when it comes back as a draft."""
    seeded = SamplingParams(temperature=1.0, seed=4)
    with pytest.raises(InvalidSetting, match=rf"{name}.*seed"):
        choose(NGRAM, "suffix", seeded, name, remembers=True)
    assert choose(NGRAM, "suffix", seeded, None, remembers=True).verifier.name == "coupled"
    assert choose(NGRAM, "suffix", seeded, name).verifier.name == name
    unseeded = SamplingParams(temperature=1.0)
    assert choose(NGRAM, "suffix", unseeded, name, remembers=True).verifier.name == name


def test_greedy_rule_is_refused_above_temperature_zero():
    with pytest.raises(InvalidSetting, match=r"greedy.*temperature is 0\.7"):
        choose(MODEL, "mine", SamplingParams(temperature=0.7), "greedy")


def test_unknown_rule_is_refused_with_the_known_names():
    with pytest.raises(InvalidSetting) as error:
        find("hopeful")
    for name in ("hopeful", *VERIFIERS):
        assert name in str(error.value)


def test_rule_of_the_users_own_is_paired_by_what_it_accepts():
    rule = RightResidual()
    assert find(rule) is rule
    assert pair(MODEL, "mine", rule).proposal is Proposal.SAMPLED
    with pytest.raises(ProposalMismatch, match="distinct"):
        pair(frozenset({Proposal.DISTINCT}), "mine", rule)
