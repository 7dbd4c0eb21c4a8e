"""Counters and origins of branching drafts, against a count by hand; equal siblings in a run."""

from __future__ import annotations

import pytest

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.core import Draft, Proposal
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from draftproof.verification.registry import VERIFIERS
from tests.lossless.test_bookkeeping import saying
from tests.toys import Scripted, remembered

V = 5
TREES = sorted(name for name, rule in VERIFIERS.items() if rule.trees)


class Planted(Scripted):
    """Drafts the tree that `script(context tokens, depth)` says, (tokens, parents), as POINT."""

    name = "planted"

    def draft(self, tokens, plan):
        return Draft(*map(tuple, self._script(tokens, plan.depth)), None, Proposal.POINT)


# Length of the text -> (tokens, parents) of what is drafted behind it.
PLANTED = {
    1: ((2, 0, 1, 3, 1, 4, 2), (-1, -1, -1, 1, 1, 3, 4)),
    5: ((0, 1, 2, 3), (-1, -1, 0, 0)),
    7: ((0, 1, 3), (-1, -1, -1)),
    8: ((3, 3, 0), (-1, -1, 1)),
    10: ((), ()),
    11: ((3, 2), (-1, -1)),
}


def planted(rule=None):
    drafter = Planted(lambda tokens, _depth: PLANTED[len(tokens)])
    target = ToyModel(saying([0, 1, 2, 3]), V)
    return Speculator(target, drafter, verifier=rule, settings=EngineSettings(depth=3))


def certain(rule, **others):
    """What to ask for so that `rule` judges: the greedy one does at temperature 0."""
    return SamplingParams(temperature=0.0 if rule == "greedy" else 1.0, seed=1, **others)


@pytest.mark.parametrize("rule", TREES)
def test_counters_of_trees_equal_a_hand_count(rule):
    """Target says 0 1 2 3 0 1 2 3 0 1 2 3, and is certain, so that every rule keeps the same.

    round   drafted                      kept      emitted
    1       2, 0 (3 (4), 1 (2)), 1       0 1 2     0 1 2 3    up to a leaf, bonus
    2       0 (2, 3), 1                  0         0 1        one level, correction
    3       0, 1, 3                      (none)    2          correction
    4       3, 3 (0)                     3         3 0        up to a leaf, bonus
    5       (none)                                 1          plain
    6       3, 2                         2         2 3        up to a leaf, bonus

    In round 4 the elder of two equal siblings is a leaf; what the younger one has below it is not
    looked at.
    """
    output = planted(rule).generate([4], certain(rule, max_tokens=12))
    assert output.token_ids == (0, 1, 2, 3) * 3
    assert output.samples[0].origins == (
        *("accepted", "accepted", "accepted", "bonus"),
        *("accepted", "correction"),
        "correction",
        *("accepted", "bonus"),
        "plain",
        *("accepted", "bonus"),
    )
    stats = output.stats
    assert (stats.prompt_tokens, stats.generated, stats.target_calls) == (1, 12, 6)
    assert (stats.drafted, stats.accepted, stats.undrafted_calls) == (19, 6, 1)
    # A position counts once a draft, however many siblings stand there.
    assert stats.as_dict()["drafted_per_position"] == [5, 3, 1]
    assert stats.as_dict()["accepted_per_position"] == [4, 1, 1]
    assert stats.acceptance_rate == 6 / 19
    assert stats.tokens_per_call == 2.0
    assert stats.calls_saved == 6


@pytest.mark.parametrize("rule", TREES)
def test_branch_that_is_cut_by_the_end_of_the_text_counts_up_to_there(rule):
    """Round 1 keeps 0 1 2, and the text ends with 1."""
    output = planted(rule).generate([4], certain(rule, max_tokens=12, stop_token_ids=[1]))
    assert output.token_ids == (0, 1)
    assert output.samples[0].origins == ("accepted", "accepted")
    stats = output.stats
    assert (stats.generated, stats.target_calls, stats.drafted, stats.accepted) == (2, 1, 7, 2)
    assert stats.as_dict()["drafted_per_position"] == [1, 1, 1]
    assert stats.as_dict()["accepted_per_position"] == [1, 1, 0]


# Equal siblings -----------------------------------------------------------------------------

TARGET = remembered(random_law(V, seed=31))


def equal_siblings(tokens, depth):
    """The likeliest token before and behind another, and the same again below both."""
    drafted, parents, level = [], [], [(-1, tokens)]
    for _ in range(depth):
        grown = []
        for node, text in level:
            law = TARGET(text)
            best = max(range(V), key=lambda v, law=law: law[v])
            for token in (best, (best + len(text)) % V, best):
                grown.append((len(drafted), (*text, token)))
                drafted.append(token)
                parents.append(node)
        level = grown[::2]
    return drafted, parents


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_token_twice_below_one_node_changes_no_token(temperature):
    """As a drafter of the user's own may submit it; several requests side by side."""
    system = Speculator(
        ToyModel(TARGET, V), Planted(equal_siblings), settings=EngineSettings(depth=3)
    )
    prompts = [[0], [1, 2, 3], [4, 4], [3, 0, 2, 1]]
    params = [
        SamplingParams(max_tokens=9 + i, temperature=temperature, seed=i)
        for i in range(len(prompts))
    ]
    outputs = system.generate(prompts, params)
    plain = [system.plain(ids, one).token_ids for ids, one in zip(prompts, params, strict=True)]
    assert [output.token_ids for output in outputs] == plain
    assert sum(output.stats.accepted for output in outputs) > 10
