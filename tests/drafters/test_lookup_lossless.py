"""Every look-up decodes plain decoding's tokens, alone or in a hybrid, for any course of plans."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from draftproof.core import Plan
from draftproof.drafters.hybrid import HybridDrafter
from draftproof.drafters.lookahead import LookaheadDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.recycling import RecyclingDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from tests import tiny
from tests.lossless.test_equals_plain import (
    PROMPTS,
    V,
    model,
    plain_tokens,
    requests,
    speculator,
    tokens,
)
from tests.toys import Varied, remembered

LOOKUPS = {
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
    "suffix with a corpus": lambda: SuffixDrafter([[0, 1, 2, 3, 4, 5] * 3, [2] * 9]),
    "recycling": lambda: RecyclingDrafter(V),
    "lookahead": LookaheadDrafter,
}
RELATED = random_law(V, seed=1, zeros=0.2, order=1)
DRAFTERS = LOOKUPS | {
    f"hybrid of {name}": lambda make=make: HybridDrafter(make(), model(RELATED))
    for name, make in LOOKUPS.items()
}


class Planned(Varied):
    """A drafter that gets another plan at every call and row, in turn."""

    def __init__(self, drafter, seed):
        super().__init__(drafter, ())
        self._seed = seed

    def begin(self, target_cache):
        drafting = self._drafter.begin(target_cache)
        dice = np.random.default_rng(self._seed)

        def changed(plan):
            depth, width, nodes = dice.integers([0, 1, 1], [7, 4, 13]).tolist()
            floor = [0.0, 0.0, 0.3][int(dice.integers(3))]
            return Plan(min(plan.depth, depth), width, nodes, floor)

        def propose(contexts, plans):
            return drafting.propose(contexts, [changed(plan) for plan in plans])

        return SimpleNamespace(
            propose=propose,
            observe=drafting.observe,
            read=drafting.read,
            release=drafting.release,
            move=drafting.move,
        )


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_and_seeded_tokens_are_those_of_plain_decoding(drafter, depth):
    outputs = speculator(DRAFTERS[drafter](), depth).generate(*requests())
    assert tokens(outputs) == plain_tokens()
    assert (sum(output.stats.drafted for output in outputs) > 0) == (depth > 0)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("seed", range(3))
def test_any_course_of_depths_widths_nodes_and_floors_changes_nothing(drafter, seed):
    made = Planned(DRAFTERS[drafter](), seed)
    outputs = speculator(made, 6).generate(*requests())
    assert tokens(outputs) == plain_tokens()
    assert sum(output.stats.accepted for output in outputs) > 0


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("max_batch", [1, 3])
def test_sequences_join_leave_and_change_rows(drafter, max_batch):
    """Two calls of one drafter: the second meets what the first left behind."""
    prompts, params = requests()
    made = speculator(DRAFTERS[drafter](), 3, max_batch)
    for _ in range(2):
        assert tokens(made.generate(prompts, params)) == plain_tokens()


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_deterministic_cycle_is_soon_drafted_whole(drafter):
    """Otherwise the tests above could pass without a single accepted token."""
    cycle = remembered(lambda prefix: [float(v == (prefix[-1] + 1) % V) for v in range(V)])
    system = speculator(DRAFTERS[drafter](), target=ToyModel(cycle, V))
    output = system.generate([0], SamplingParams(max_tokens=150))
    assert output.token_ids == tuple((1 + i) % V for i in range(150))
    assert output.stats.target_calls <= 75
    if drafter in LOOKUPS:
        assert output.stats.acceptance_rate > 0.5


@pytest.mark.parametrize("eos", [None, 3, [2, 3]])
@pytest.mark.parametrize("drafter", LOOKUPS)
def test_end_ids_of_every_kind_end_a_drafted_text(drafter, eos):
    ends = frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos)
    made = speculator(LOOKUPS[drafter](), end_ids=ends)
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=30, temperature=temperature, seed=2)
        assert tokens(made.generate(PROMPTS, params)) == tokens(made.plain(PROMPTS, params))


# Real layers --------------------------------------------------------------------------------


NAMES = ["suffix", "recycling", "lookahead", "hybrid:suffix,self-int8", "hybrid:recycling,ngram"]


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("drafter", NAMES)
def test_tiny_models_write_their_own_greedy_and_seeded_texts(architecture, drafter):
    target = tiny.shared_target(architecture)
    made = tiny.speculator(target, drafter, depth=4, max_batch=2)
    prompts = [tiny.prompt(9), tiny.prompt(4) * 4, tiny.prompt(1), tiny.prompt(15, seed=2)]
    lengths = [24, 9, 17, 12]
    greedy = [SamplingParams(max_tokens=length) for length in lengths]
    for output, ids, length in zip(made.generate(prompts, greedy), prompts, lengths, strict=True):
        wanted = tiny.own_greedy(tiny.shared_model(architecture), ids, length)
        assert output.token_ids == wanted
    seeded = [
        SamplingParams(max_tokens=length, temperature=0.8, seed=seed)
        for seed, length in enumerate(lengths)
    ]
    assert tokens(made.generate(prompts, seeded)) == tokens(made.plain(prompts, seeded))


@pytest.mark.parametrize("drafter", NAMES)
def test_plans_of_trees_are_lossless_with_real_layers(drafter):
    target = tiny.shared_target("llama")
    inner = tiny.speculator(target, drafter)
    planned = type(inner)(target, Planned(inner.drafter, 1), end_ids=inner.end_ids)
    prompts = [tiny.prompt(9), tiny.prompt(4) * 4, tiny.prompt(1)]
    for params in (
        SamplingParams(max_tokens=30),
        SamplingParams(max_tokens=30, temperature=0.7, seed=5),
    ):
        assert tokens(planned.generate(prompts, params)) == tokens(planned.plain(prompts, params))


def test_a_course_of_plans_is_really_varied():
    seen = []

    class Spy(Varied):
        def begin(self, target_cache):  # noqa: ARG002
            return SimpleNamespace(
                propose=lambda _contexts, plans: seen.extend(plans),
                observe=None,
                read=None,
                release=None,
                move=None,
            )

    drafting = Planned(Spy(NgramDrafter(), ()), 0).begin(None)
    for _ in range(60):
        drafting.propose([None], [Plan(6)])
    for field in ("depth", "width", "nodes", "floor"):
        assert len({getattr(plan, field) for plan in itertools.chain(seen)}) > 1
    assert 0 in {plan.depth for plan in seen}
