"""Every drafter with every rule that can judge it, in batches of every kind, on real layers.

Greedy and seeded requests of different lengths share each batch.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.core import Plan
from draftproof.drafters.base import remembers, takes_static_trees
from draftproof.drafters.foreign import foreign_drafter
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.drafters.registry import Surroundings, make_drafter
from draftproof.engine import engine as engine_module
from draftproof.errors import InvalidSetting
from draftproof.models.hf import HFModel
from draftproof.sampling.params import SamplingParams
from draftproof.static_tree import StaticTree
from draftproof.verification.registry import VERIFIERS
from tests.foreign import byte_level, foreign_pair, sentencepiece
from tests.tiny import prompt, tiny_model

VOCAB = len(byte_level())
ARCHITECTURES = ("llama", "qwen2-mixed", "gpt2")
BATCHES = (1, 3, 8)
DRAFTERS = (
    "none",
    "ngram",
    "suffix",
    "recycling",
    "lookahead",
    "self-int8",
    "early-exit:1",
    "hybrid:ngram,early-exit:1",
    "hybrid:suffix,self-int8",
    "model",
    "model-tli",
    "model-slem",
)
TREE = StaticTree.parse("[(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 0, 0)]")
RULES = (
    ("coupled", 1),
    ("coupled", 3),
    ("point", 3),
    ("tokenwise", 1),
    ("blockwise", 1),
    ("tree", 3),
    ("traversal", 3),
    ("traversal", TREE),
    ("coupled", TREE),
)
"""With the width of their drafts, or with a static tree of that size."""
LENGTHS = (9, 1, 14, 3, 6, 2, 11, 5)


@functools.cache
def target_of(architecture):
    return HFModel(tiny_model(architecture, vocab_size=VOCAB), architecture)


@functools.cache
def foreign_model():
    return HFModel(tiny_model("gpt2", 2, vocab_size=len(sentencepiece())), "pieces")


def drafter_of(name, target):
    """A drafter by name; that of "model" is close to the target and has a cache of its own."""
    if name == "none":
        return NoDrafter()
    if name == "model":
        return ModelDrafter(target.int8_copy(), VOCAB, prefill_chunk=5)
    if name.startswith("model-"):
        pair = foreign_pair(byte_level(), sentencepiece(), foreign_model(), VOCAB)
        return foreign_drafter(pair, name.removeprefix("model-"))
    around = Surroundings(target, None, "auto", "auto", EngineSettings(depth=3))
    return make_drafter(name, around)


@functools.cache
def made(architecture, name):
    return drafter_of(name, target_of(architecture))


def requests(seeded):
    """Prompts of different lengths, each with its parameters; half of them sampled if `seeded`."""
    prompts = [prompt(length, seed=length, vocab=VOCAB - 3) for length in LENGTHS]
    params = [
        SamplingParams(
            max_tokens=3 + number % 4,
            temperature=1.0 if seeded and number % 2 else 0.0,
            seed=number,
        )
        for number in range(len(prompts))
    ]
    return prompts, params


@functools.cache
def plain(architecture, seeded):
    system = Speculator(target_of(architecture), NoDrafter())
    return [
        system.plain(ids, params).token_ids for ids, params in zip(*requests(seeded), strict=True)
    ]


def generated(architecture, name, rule, width, batch, seeded):
    """Outputs of as many requests as make a batch, and some that join it."""
    shape = {"tree": width} if width is TREE else {"depth": 3, "width": width, "nodes": 7}
    settings = EngineSettings(**shape, max_batch=batch, prefill_chunk=4)
    drafter = made(architecture, name)
    system = Speculator(target_of(architecture), drafter, verifier=rule, settings=settings)
    prompts, params = requests(seeded)
    count = {1: 2, 3: 5, 8: 8}[batch]
    return system.generate(prompts[:count], params[:count])


CELLS = [
    (name, rule, width)
    for name in DRAFTERS
    for rule, width in RULES
    if VERIFIERS[rule].accepts & made("llama", name).proposals
    if name != "none" or (rule, width) == ("coupled", 1)
    if width is not TREE or takes_static_trees(made("llama", name))
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("name", "rule", "width"), CELLS)
def test_texts_are_those_of_plain_decoding(architecture, name, rule, width):
    keyed = VERIFIERS[rule].keyed
    # A drafter that remembers makes no seeded text with a rule that reads the seed's own numbers.
    seeded = keyed or not remembers(made(architecture, name))
    wanted = plain(architecture, seeded)
    outputs = {
        batch: generated(architecture, name, rule, width, batch, seeded) for batch in BATCHES
    }
    for batch, several in outputs.items():
        for number, output in enumerate(several):
            sampled = seeded and number % 2 == 1
            same = outputs[8][number].token_ids if sampled and not keyed else wanted[number]
            assert output.token_ids == same, f"request {number} in batches of {batch}"
    if name not in ("none", "ngram"):
        assert sum(output.stats.drafted for output in outputs[8]) > 0
    if not seeded:
        with pytest.raises(InvalidSetting, match="learns from other requests"):
            generated(architecture, name, rule, width, 1, seeded=True)


class Scheduled:
    """A controller of all sequences that plans by a list, over and over."""

    def __init__(self, plans):
        self._plans = itertools.cycle(plans)

    def plan(self, max_depth, context_length, batch_size):  # noqa: ARG002
        plan = next(self._plans)
        return replace(plan, depth=min(plan.depth, max_depth))

    def observe(self, draft, step, cost):
        """Learns nothing."""


PLANS = st.builds(
    Plan,
    depth=st.integers(0, 6),
    width=st.integers(1, 4),
    nodes=st.sampled_from([1, 3, 8, 64]),
    floor=st.sampled_from([0.0, 0.0, 0.2]),
    min_confidence=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    tree=st.sampled_from([None, None, TREE, StaticTree.by_level(2, 1, 1, 2)]),
)


@settings(max_examples=25, deadline=None)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    name=st.sampled_from(DRAFTERS[1:]),
    plans=st.lists(PLANS, min_size=1, max_size=7),
    batch=st.integers(1, 8),
)
def test_any_schedule_of_plans_gives_the_text_of_plain_decoding(architecture, name, plans, batch):
    """Rows draft deep, wide or nothing side by side, and join while others are in the middle."""
    system = Speculator(
        target_of(architecture),
        made(architecture, name),
        verifier="coupled",
        settings=EngineSettings(depth=6, max_batch=batch, prefill_chunk=4),
    )
    with mock.patch.object(engine_module, "FixedPlan", return_value=Scheduled(plans)):
        outputs = system.generate(*requests(seeded=True))
    assert [output.token_ids for output in outputs] == plain(architecture, seeded=True)
