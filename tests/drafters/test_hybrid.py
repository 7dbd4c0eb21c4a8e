"""A hybrid drafts with the look-up where that is confident, else with the other drafter."""

from __future__ import annotations

import pytest
import torch

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.control.fixed import FixedPlan
from draftproof.core import Draft, Plan, Proposal
from draftproof.drafters.base import Drafting
from draftproof.drafters.hybrid import HybridDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.recycling import RecyclingDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.engine.entry import Entry
from draftproof.engine.loop import Loop
from draftproof.models.cache import KVCache
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from draftproof.verification.registry import VERIFIERS, choose
from tests.drafters.lookups import begin, context, saying, step_of
from tests.toys import remembered


class Counting(Drafting):
    """Always drafts 9s, and remembers what it was asked and told."""

    name = "counting"
    proposals = frozenset({Proposal.POINT})

    def __init__(self):
        self.asked, self.told = [], []

    def begin(self, target_cache):  # noqa: ARG002
        return self

    def propose(self, contexts, plans):  # noqa: ARG002
        self.asked.append([plan.depth for plan in plans])
        return [Draft.chain([9] * plan.depth, Proposal.POINT) for plan in plans]

    def observe(self, context, draft, step, logits):  # noqa: ARG002
        self.told.append(("observe", context.row, draft.tokens))

    def release(self, row):
        self.told.append(("release", row))

    def move(self, source, target):
        self.told.append(("move", source, target))


def test_each_sequence_gets_the_drafter_that_is_confident_for_it():
    other = Counting()
    drafting = begin(HybridDrafter(SuffixDrafter(), other))
    known = [1, 2, 3, 4, 5, 1, 2, 3]
    texts = [known, [1, 2, 3], [5, 6, 5]]
    contexts = [context(text, row) for row, text in enumerate(texts)]
    drafts = drafting.propose(contexts, [Plan(4)] * 3)
    assert [draft.tokens for draft in drafts] == [(4, 5, 1, 2), (9,) * 4, (9,) * 4]
    assert other.asked == [[0, 4, 4]], "one matched token is not enough for four"
    drafts = drafting.propose(contexts, [Plan(4), Plan(0), Plan(1)])
    assert [draft.tokens for draft in drafts] == [(4, 5, 1, 2), (), (6,)]


def test_a_plan_says_what_a_looked_up_draft_may_be_and_has_to_promise():
    other = Counting()
    drafting = begin(HybridDrafter(SuffixDrafter(), other))
    known = context([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3])

    def draft(**limits):
        (made,) = drafting.propose([known], [Plan(2, lookup=Plan(5, **limits))])
        return made

    long = draft()
    assert long.tokens == (4, 5, 6, 7, 8), "the look-up's own depth"
    promised = [4 / (4 + i) for i in range(1, 6)]
    assert long.promised == pytest.approx(sum(promised))
    assert draft(nodes=3).tokens == (4, 5, 6)
    assert draft(floor=0.55).tokens == (4, 5, 6), "each node has to be worth its column"
    surplus = sum(promised[:3]) - 3 * 0.55
    assert draft(floor=0.55, bar=surplus - 0.01).tokens == (4, 5, 6)
    unused = draft(floor=0.55, bar=surplus + 0.01)
    assert (unused.tokens, unused.promised) == ((9, 9), None)
    (made,) = drafting.propose([known], [Plan(0, lookup=Plan(5))])
    assert made.tokens == long.tokens, "in a round without the other drafter, too"
    assert drafting.propose([known], [Plan(2, lookup=Plan(0))])[0].tokens == (9, 9)


def test_a_round_says_what_the_model_of_a_hybrid_was_asked_for_and_not_what_was_looked_up():
    target = ToyModel(LAW, 6)
    other = ModelDrafter(ToyModel(random_law(6, 1, order=1), 6), 6, prefill_chunk=3)
    settings = EngineSettings(depth=4)
    system = Speculator(target, HybridDrafter(NgramDrafter(), other), settings=settings)
    costs = []

    class Heard(FixedPlan):
        def observe(self, draft, step, cost):  # noqa: ARG002
            costs.append((draft, cost))

    sequences = system.sequences(system.drafter, [1, 2, 3, 1, 2, 3, 1, 2], SamplingParams(), 0)
    (sequence,) = sequences
    cache = KVCache(1, 64 + sequence.max_length)
    loop = Loop(target, cache, system.drafter.begin(cache), 1, chunk=8)
    loop.add(Entry(sequence, lambda: Heard(4), 0))
    while loop.busy:
        loop.turn()
    looked_up = [cost for draft, cost in costs if draft.promised is not None]
    others = [(draft, cost) for draft, cost in costs if draft.promised is None]
    assert looked_up
    assert others
    assert {(cost.levels, cost.drafting) for cost in looked_up} == {(0, 0)}
    assert all(cost.columns > 1 for cost in looked_up)
    assert all(cost.levels == len(draft.tokens) for draft, cost in others)


def test_both_drafters_hear_of_every_round_and_row():
    other, lookup = Counting(), RecyclingDrafter(vocab_size=10)
    drafting = begin(HybridDrafter(lookup, other))
    (draft,) = drafting.propose([context([1])], [Plan(2)])
    assert draft.tokens == (9, 9)
    drafting.observe(context([1, 2]), draft, step_of([2], draft), saying([2], [3], [4]))
    drafting.release(1)
    drafting.move(2, 1)
    assert other.told == [("observe", 0, (9, 9)), ("release", 1), ("move", 2, 1)]
    (draft,) = drafting.propose([context([1])], [Plan(1)])
    assert draft.tokens == (2,), "recycling learned from the other's draft"


LAW = remembered(random_law(6, seed=1))


def hybrid(lookup, seed=1):
    other = ModelDrafter(ToyModel(random_law(6, seed, order=1), 6), 6, prefill_chunk=3)
    return HybridDrafter(lookup, other)


def test_every_rule_that_can_judge_the_other_drafter_judges_point_drafts():
    for rule in VERIFIERS.values():
        assert Proposal.POINT in rule.accepts, rule.name
    for params in (SamplingParams(), SamplingParams(temperature=1.0, seed=1)):
        drafter = hybrid(NgramDrafter())
        assert choose(drafter.proposals, drafter.name, params, None)


@pytest.mark.parametrize("verifier", [None, "tokenwise", "blockwise", "coupled"])
def test_point_and_sampled_drafts_take_turns_under_one_rule(verifier):
    """Looked-up and drawn drafts in one text; the text's frequencies are the target's own."""
    law = [0.1, 0.2, 0.3, 0.4]
    target = ToyModel(lambda _prefix: law, 4)
    other = ModelDrafter(ToyModel(lambda _prefix: [0.4, 0.3, 0.2, 0.1], 4), 4, prefill_chunk=3)
    heard = []

    class Heard(HybridDrafter):
        def begin(self, target_cache):
            drafting = super().begin(target_cache)
            propose = drafting.propose

            def listening(contexts, plans):
                drafts = propose(contexts, plans)
                heard.extend(draft.proposal for draft in drafts if draft.tokens)
                return drafts

            drafting.propose = listening
            return drafting

    settings = EngineSettings(depth=3)
    drafter = Heard(NgramDrafter(), other)
    system = Speculator(target, drafter, settings=settings, verifier=verifier)
    params = [SamplingParams(max_tokens=60, temperature=1.0, seed=seed) for seed in range(40)]
    outputs = system.generate([[0]] * 40, params)
    drawn = Proposal.COUPLED if verifier in (None, "coupled") else Proposal.SAMPLED
    assert set(heard) == {Proposal.POINT, drawn}
    counts = torch.zeros(4)
    for output in outputs:
        for token in output.token_ids:
            counts[token] += 1
    # 2400 draws: five standard deviations are 0.05.
    assert torch.allclose(counts / counts.sum(), torch.tensor(law), atol=0.05)


def test_a_hybrid_is_named_after_its_parts():
    assert hybrid(NgramDrafter()).name == "hybrid:ngram,model:toy"
