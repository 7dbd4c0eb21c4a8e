"""Trees at the borders: ends, budgets, batches, limits of models and vocabularies, memory."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

from draftproof.api import Speculator
from draftproof.config import MAX_NODES, EngineSettings
from draftproof.core import Draft, Proposal
from draftproof.drafters.base import Drafting
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.recycling import RecyclingDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.models.hf import HFModel
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from draftproof.verification.registry import VERIFIERS
from tests.lossless.test_bookkeeping import END, text_system
from tests.lossless.test_equals_plain import (
    DRAFTERS,
    PROMPTS,
    TARGET,
    Bounded,
    V,
    model,
    plain_tokens,
    requests,
    speculator,
    tokens,
)
from tests.models.test_cache import count_new_tensors
from tests.thicket import Thicket, Watched
from tests.tiny import VOCAB, own_greedy, prompt, shared_model, shared_target, tiny_model
from tests.tiny import speculator as tiny_speculator
from tests.toys import Varied, opposite, rows_of

RELATED = random_law(V, seed=1, zeros=0.2, order=1)
WIDE = {"width": 3, "nodes": 14}


def wide(drafter, depth=4, target=None, verifier=None, **shape):
    settings = EngineSettings(depth=depth, prefill_chunk=3, **(WIDE | shape))
    return Speculator(target or ToyModel(TARGET, V), drafter, settings=settings, verifier=verifier)


# What is verified ---------------------------------------------------------------------------


class Scattered(Drafting):
    """Drafts every token but `right(context tokens)` as siblings, then that one if `shown`."""

    name = "scattered"
    proposals = frozenset({Proposal.POINT})

    def __init__(self, right, shown):
        self._right, self._shown = right, shown

    def begin(self, target_cache):  # noqa: ARG002
        return self

    def propose(self, contexts, plans):
        drafts = []
        for context, plan in zip(contexts, plans, strict=True):
            right = self._right(tuple(context.tokens))
            tokens = [token for token in range(V) if token != right]
            tokens = [*tokens, right] if self._shown else tokens
            tokens = tokens if plan.depth else []
            drafts.append(Draft(tuple(tokens), (-1,) * len(tokens), None, Proposal.POINT))
        return drafts


@pytest.mark.parametrize("shown", [False, True])
def test_every_sibling_of_the_first_level_is_verified(shown):
    """All wrong, or only the last one right: one of six is kept, by its own row of p."""
    wanted = speculator(DRAFTERS["none"]()).plain([0], SamplingParams(max_tokens=8)).token_ids
    ids = (0, *wanted)
    drafter = Scattered(lambda seen: ids[len(seen)] if len(seen) < len(ids) else 0, shown)
    output = speculator(drafter).generate([0], SamplingParams(max_tokens=8))
    assert output.token_ids == wanted
    rounds = output.stats.target_calls - output.stats.undrafted_calls
    assert output.stats.accepted == (rounds if shown else 0)
    assert output.stats.drafted == rounds * (V - 1 + shown)


@pytest.mark.parametrize("name", sorted(name for name, rule in VERIFIERS.items() if rule.trees))
def test_token_without_probability_is_kept_by_no_rule(name):
    """Siblings and their children, all impossible under p; what is drafted changes nothing."""
    draft = Draft((0, 1, 0, 1), (-1, -1, 0, 1), None, Proposal.POINT)
    p = rows_of(lambda _prefix: (0.0, 0.0, 1.0), draft)

    class Certain:
        """Only tokens and coins of probability 0 or 1 come up."""

        def accepts(self, p, q, *_key):  # noqa: ARG002
            assert p == 0
            return False

        def draw(self, law, *_key):
            return int(law.argmax())

        race = draw

    verdict = VERIFIERS[name].verify(draft, p, 0, Certain())
    assert (verdict.accepted, verdict.next_token, verdict.all_accepted) == ((), 2, False)


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("width", [2, 4])
def test_end_token_in_a_branch_ends_the_text(place, width):
    script = [0, 1, 2, 3, 0, 1, 2]
    script[place] = END
    system = text_system(script, draft=opposite(random_law(5, 3)), end_ids=frozenset({END}))
    settings = EngineSettings(depth=6, width=width)
    system = Speculator(
        system.target,
        system.drafter,
        tokenizer=system.tokenizer,
        end_ids=system.end_ids,
        settings=settings,
    )
    output = system.generate([0], SamplingParams(max_tokens=20))
    assert output.token_ids == tuple(script[: place + 1])
    assert output.finish_reason == "stop"


# Shapes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, MAX_NODES])
@pytest.mark.parametrize("rule", [None, "tree", "traversal", "point"])
def test_nodes_width_and_depth_are_those_that_were_set_in_every_call(nodes, rule):
    drafter = Watched(model(RELATED))
    system = wide(drafter, depth=3, verifier=rule, nodes=nodes)
    params = SamplingParams(max_tokens=14, temperature=1.0, seed=3)
    first = system.generate(PROMPTS, params)
    seen = [draft for _, draft in drafter.drafts]
    assert max(len(draft.tokens) for draft in seen) <= nodes
    assert max(draft.depth for draft in seen) <= min(3, nodes)
    children = [len(draft.children(node)) for draft in seen for node in (-1, *draft.parents)]
    assert max(children) == min(3, nodes)
    if rule is None:
        assert tokens(first) == tokens(system.plain(PROMPTS, params))
    drafter.drafts.clear()
    assert tokens(system.generate(PROMPTS, params)) == tokens(first), "calls share nothing"
    assert [draft.tokens for _, draft in drafter.drafts] == [draft.tokens for draft in seen]


@pytest.mark.parametrize("drafter", ["perfect", "related", "random", "adversarial"])
@pytest.mark.parametrize("max_batch", [1, 3, 8])
def test_ragged_trees_join_leave_and_change_rows(drafter, max_batch):
    """Rows of 0 to 6 levels and up to 4 siblings side by side; each is its solo run."""
    dice = np.random.default_rng(max_batch)
    plans = [
        {"depth": int(depth), "width": int(width), "nodes": int(nodes)}
        for depth, width, nodes in dice.integers([0, 1, 1], [7, 5, 25], size=(101, 3))
    ]
    prompts, params = requests()
    order = dice.permutation(len(prompts))
    lengths = [1 + int(i) % 10 for i in order]
    system = speculator(Varied(DRAFTERS[drafter](), plans), 6, max_batch)
    outputs = system.generate(
        [prompts[i] for i in order],
        [replace(params[i], max_tokens=n) for i, n in zip(order, lengths, strict=True)],
    )
    assert tokens(outputs) == [plain_tokens()[i][:n] for i, n in zip(order, lengths, strict=True)]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
@pytest.mark.parametrize("max_batch", [2, 3, 8])
def test_ragged_trees_of_real_layers_are_as_if_alone(name, max_batch):
    prompts = [prompt(length, seed=length) for length in (3, 9, 1, 14, 5, 2, 8, 11)]
    lengths = (9, 3, 14, 5, 1, 11, 7, 12)
    texts = [
        own_greedy(shared_model(name), ids, n) for ids, n in zip(prompts, lengths, strict=True)
    ]
    whole = [[*ids, *text] for ids, text in zip(prompts, texts, strict=True)]
    drafter = Thicket(whole, VOCAB, seed=max_batch)
    settings = EngineSettings(depth=5, max_batch=max_batch, prefill_chunk=4)
    system = Speculator(shared_target(name), drafter, settings=settings)
    outputs = system.generate(prompts, [SamplingParams(max_tokens=n) for n in lengths])
    assert tokens(outputs) == texts
    assert sum(output.stats.accepted for output in outputs) > 10


# Limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["perfect", "related", "random", "trees"])
@pytest.mark.parametrize("ids", [[0], [1, 2, 3, 4], [1] * 17, [1] * 18, [1] * 19])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_context_is_filled_to_its_limit_with_trees(drafter, ids, temperature):
    """Levels are left out near the end; no node of any branch has a position beyond it."""
    system = wide(DRAFTERS[drafter](), 5, target=Bounded(TARGET, V, max_positions=20))
    params = SamplingParams(max_tokens=100, temperature=temperature, seed=2)
    output = system.generate(ids, params)
    assert len(ids) + len(output.token_ids) == 20
    assert output.finish_reason == "length"
    assert output.token_ids == system.plain(ids, params).token_ids


@pytest.mark.parametrize("drafter", ["self-int8", "early-exit:1", "ngram"])
@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_learned_positions_are_filled_to_the_last(name, drafter):
    limit = {"gpt2": "n_positions", "opt": "max_position_embeddings"}[name]
    source = tiny_model(name, seed=3, **{limit: 24})
    system = tiny_speculator(HFModel(source, name), drafter, depth=6, width=3, nodes=20)
    prompts = [prompt(n, seed=n) for n in (3, 21, 22, 23)]
    outputs = system.generate(prompts, SamplingParams(max_tokens=60))
    assert [len(ids) + len(o.token_ids) for ids, o in zip(prompts, outputs, strict=True)] == [
        24
    ] * 4
    assert tokens(outputs) == [own_greedy(source, ids, 24 - len(ids)) for ids in prompts]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompt_longer_than_the_drafter_reads_leaves_only_that_row_without_trees(temperature):
    """The target reads 64 tokens, the drafter 16; why a round had no draft is counted."""
    drafter = Watched(ModelDrafter(Bounded(TARGET, V, max_positions=16), V, prefill_chunk=4))
    system = wide(drafter, target=Bounded(TARGET, V, max_positions=64))
    prompts = [[1, 2, 3], [i % V for i in range(40)], [4], [2] * 12, [2] * 15, [2] * 16]
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=3)
    outputs = system.generate(prompts, params)
    assert tokens(outputs) == [system.plain(ids, params).token_ids for ids in prompts]
    for text, draft in drafter.drafts:
        assert not draft.tokens or len(text) + draft.depth <= 17
    long = outputs[1].stats
    assert (long.drafted, long.undrafted_calls) == (0, 20)
    assert long.plain_rounds == {"no_room": 1, "no_draft": 19}
    assert 1 <= outputs[5].stats.drafted <= 3, "one level behind 16 tokens"
    for output in (outputs[0], outputs[2], outputs[3], outputs[4]):
        assert output.stats.drafted > output.stats.target_calls - output.stats.undrafted_calls


@pytest.mark.parametrize(("target_size", "drafter_size"), [(10, 12), (12, 10), (12, 12)])
@pytest.mark.parametrize("rule", [None, "tree", "traversal", "point"])
def test_padding_is_in_no_branch(target_size, drafter_size, rule):
    """Ten tokens, logits padded to different sizes, and more siblings asked for than there are."""
    made = [
        tiny_model("llama", seed, vocab_size=size)
        for seed, size in ((1, target_size), (2, drafter_size))
    ]
    with torch.no_grad():
        for each in made:
            each.lm_head.weight[10:] *= 4
    target, other = (HFModel(each, "llama") for each in made)
    drafter = Watched(ModelDrafter(other, target.vocab_size, prefill_chunk=4))
    system = Speculator(
        target, drafter, verifier=rule, settings=EngineSettings(depth=2, width=12, nodes=30)
    )
    system.num_tokens = 10
    for temperature in (0.0, 1.5):
        params = SamplingParams(max_tokens=12, temperature=temperature, seed=1)
        output = system.generate([3, 4, 5], params)
        assert max(output.token_ids) < 10
        if rule is None or temperature == 0:
            assert output.token_ids == system.plain([3, 4, 5], params).token_ids
    assert {token for _, draft in drafter.drafts for token in draft.tokens} == set(range(10))


# Memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize(
    "make", [lambda: model(RELATED), SuffixDrafter, lambda: RecyclingDrafter(V)]
)
def test_a_thousand_requests_leave_no_tensor_behind(make, depth):
    """Without drafts, and with trees."""
    system = wide(make(), depth) if depth else speculator(make(), 0)
    params = SamplingParams(max_tokens=2, temperature=1.0, seed=1)
    system.generate([PROMPTS[0]] * 20, params)
    gc.freeze()
    try:
        for _ in range(50):
            system.generate([PROMPTS[0]] * 20, params)
        assert count_new_tensors() <= 2
    finally:
        gc.unfreeze()
