"""A cache row is at any time what a fresh prefill of its committed tokens would give."""

from __future__ import annotations

import gc
import random
import tracemalloc
import weakref

import pytest
import torch

from draftproof.api import Speculator
from draftproof.config import MAX_NODES, EngineSettings
from draftproof.core import Draft, Plan, Proposal
from draftproof.decode.round import run_round
from draftproof.engine.request import Drafts, Language, make_sequences
from draftproof.errors import LimitExceeded
from draftproof.models.cache import KVCache, Slots
from draftproof.models.pack import pack
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from tests.tiny import (
    ROUGH,
    VOCAB,
    Saboteur,
    assert_row_is_a_prefill,
    own_greedy,
    prompt,
    shared_model,
    shared_target,
    speculator,
)

MANY = SamplingParams(max_tokens=60)


@pytest.mark.parametrize("name", ["gpt2", "opt", "gemma2"])
def test_after_every_round_a_row_holds_its_committed_tokens(name: str) -> None:
    target, prompts = shared_target(name), [prompt(6), prompt(1), prompt(11)]
    texts = [[*ids, *own_greedy(shared_model(name), ids)] for ids in prompts]
    sabotage = Saboteur(texts, VOCAB, seed=3)
    language, drafts = Language(None, VOCAB, frozenset()), Drafts("x", sabotage.proposals, None)
    sequences = []
    for ids in prompts:
        sequences += make_sequences(ids, MANY, target, language, drafts, first_id=len(sequences))
    cache = KVCache(rows=3, capacity=80)
    for row, ids in enumerate(prompts):
        sequences[row].row = row
        target.prefill(ids[:-1], cache, row, chunk=4)
    kept = set()
    for _ in range(12):
        steps = run_round(target, cache, sabotage, sequences, [Plan(4)] * 3).steps
        kept |= {len(step.tokens) for step in steps}
        for row, sequence in enumerate(sequences):
            assert_row_is_a_prefill(target, cache, row, sequence.tokens[:-1])
    assert kept >= {1, 2, 3}, "all lengths of accepted drafts should occur"


@pytest.mark.parametrize("name", ["llama", "opt", "mistral"])
def test_keeping_a_path_of_a_tree_closes_its_gaps(name: str) -> None:
    target, dice = shared_target(name), random.Random(4)
    cache, texts = KVCache(rows=2, capacity=90), [prompt(5), prompt(2)]
    for row, ids in enumerate(texts):
        target.prefill(ids[:-1], cache, row, chunk=512)
    for _ in range(8):
        trees = []
        for _ in texts:
            size = dice.randint(0, 6)
            parents = tuple(dice.randint(-1, i - 1) for i in range(size))
            tokens = tuple(dice.choices(range(VOCAB), k=size))
            trees.append(Draft(tokens, parents, None, Proposal.POINT))
        anchors = [text[-1] for text in texts]
        output = target.forward(pack(anchors, trees, cache.lengths, target.device), cache)
        for row, tree in enumerate(trees):
            node = dice.randint(-1, len(tree.tokens) - 1)
            path = tree.path(node)
            texts[row] += [tree.tokens[i] for i in path]
            # The logits of the last kept column are those of one pass over its path.
            alone = target._one_pass(texts[row])[-1]
            close = ROUGH.get(name, 1e-9)
            assert torch.allclose(output.logits[row, node + 1], alone, rtol=0, atol=close)
            cache.keep(row, [0, *(i + 1 for i in path)])
            texts[row].append(dice.randrange(VOCAB))
            assert_row_is_a_prefill(target, cache, row, texts[row][:-1])


def test_rows_are_copied_whole_or_in_part_and_then_live_apart() -> None:
    target, cache = shared_target("llama"), KVCache(rows=3, capacity=20)
    text = prompt(7)
    target.prefill(text, cache, row=0, chunk=3)
    cache.copy(0, 2)
    cache.copy(0, 1, length=4)
    target.prefill([8, 9], cache, row=1, chunk=2)
    cache.truncate(0, 2)
    target.prefill([11], cache, row=0, chunk=1)
    assert_row_is_a_prefill(target, cache, 0, [*text[:2], 11])
    assert_row_is_a_prefill(target, cache, 1, [*text[:4], 8, 9])
    assert_row_is_a_prefill(target, cache, 2, text)


@pytest.mark.parametrize("drafter", ["self-int8", "close-model", "ngram"])
def test_sequences_that_join_leave_and_move_rows_are_as_if_alone(drafter: str) -> None:
    prompts = [prompt(length, seed=length) for length in (3, 9, 1, 14, 5, 2, 8)]
    params = [SamplingParams(max_tokens=n) for n in (9, 3, 14, 5, 1, 11, 7)]
    made = speculator(shared_target("llama"), drafter, depth=3, max_batch=3, prefill_chunk=4)
    for output, ids, wanted in zip(made.generate(prompts, params), prompts, params, strict=True):
        assert output.token_ids == own_greedy(shared_model("llama"), ids, wanted.max_tokens)


def test_a_draft_that_was_dropped_leaves_no_numbers_to_be_seen() -> None:
    target, cache = shared_target("llama"), KVCache(rows=1, capacity=12)
    target.prefill(prompt(4), cache, row=0, chunk=4)
    anchor, empty = [3], [Draft.chain((), Proposal.POINT)]
    batch = pack(anchor, empty, cache.lengths, target.device)
    before = target.forward(batch, cache).logits
    wild = [Draft.chain((9, 8, 7), Proposal.POINT)]
    target.forward(pack(anchor, wild, cache.lengths, target.device), cache)
    assert torch.equal(target.forward(batch, cache).logits, before)


def test_slots_beyond_the_capacity_are_refused() -> None:
    cache = KVCache(rows=2, capacity=8)
    cache.lengths[1] = 6
    assert cache.slots(0, 2, 2) == Slots(0, (0, 6), 2, 0)
    with pytest.raises(LimitExceeded, match="9 cache slots are needed and 8 were allocated"):
        cache.slots(0, 2, 3)


def test_the_whole_size_is_checked_before_anything_is_read_or_allocated(monkeypatch) -> None:
    target = shared_target("llama")
    heads, width, layers = 2, 8, 2
    assert target.cache_bytes_per_token == 2 * heads * width * layers * 8
    monkeypatch.setattr(torch, "zeros", lambda *_a, **_k: pytest.fail("allocated"))
    huge = SamplingParams(max_tokens=80)
    limit = 4 * (1 + 80 + MAX_NODES + 2) * target.cache_bytes_per_token
    with pytest.raises(LimitExceeded, match=r"4 rows of 147 tokens.*lower max_tokens"):
        speculator(target, "ngram", 2, max_cache_bytes=limit - 1).generate([[5]] * 4, huge)


def test_a_cache_that_just_fits_is_not_refused() -> None:
    target = shared_target("llama")
    limit = (1 + 5 + MAX_NODES + 2) * target.cache_bytes_per_token
    made = speculator(target, "ngram", depth=2, max_cache_bytes=limit)
    assert len(made.generate([5], SamplingParams(max_tokens=5)).token_ids) == 5
    # A second model's cache has the same limit of its own.
    other = speculator(target, "close-model", depth=2, max_cache_bytes=limit)
    assert len(other.generate([5], SamplingParams(max_tokens=5)).token_ids) == 5


def test_the_size_per_token_is_that_of_what_is_stored() -> None:
    for name in ("llama", "gpt2", "gemma3"):
        target, cache = shared_target(name), KVCache(rows=3, capacity=11)
        target.prefill([4], cache, row=0, chunk=1)
        stored = [*cache._keys.values(), *cache._values.values()]
        whole = sum(tensor.numel() * tensor.element_size() for tensor in stored)
        assert target.cache_bytes_per_token * 3 * 11 == whole


def count_new_tensors() -> int:
    """Live tensors made since `gc.freeze`."""
    gc.collect()
    return sum(type(thing) is torch.Tensor for thing in gc.get_objects())


def test_memory_is_flat_over_a_thousand_rounds() -> None:
    toy = ToyModel(random_law(5, seed=1), 5)
    drafter = Saboteur([], 5)  # knows no text, so it drafts nothing: a round adds one token
    made = Speculator(toy, drafter, settings=EngineSettings(depth=2))
    stream = iter(made.stream([1], SamplingParams(max_tokens=1100)))
    gc.freeze()
    try:
        for _ in range(50):
            next(stream)
        tensors = count_new_tensors()
        tracemalloc.start()
        for _ in range(1000):
            next(stream)
        grown = tracemalloc.get_traced_memory()[0]
        assert count_new_tensors() <= tensors + 2
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    # The tokens, steps and texts of a thousand rounds, and nothing like a thousand tensors.
    assert grown < 1_500_000


@pytest.mark.parametrize("drafter", ["self-int8", "close-model"])
def test_no_cache_outlives_its_generation(monkeypatch, drafter: str) -> None:
    made = speculator(shared_target("llama"), drafter)
    stores, allocate = [], KVCache._allocate

    def spy(self, like):
        store = allocate(self, like)
        stores.append(weakref.ref(store))
        return store

    monkeypatch.setattr(KVCache, "_allocate", spy)
    output = made.generate(prompt(5), SamplingParams(max_tokens=20))
    stream = iter(made.stream(prompt(5)))
    next(stream)
    del stream  # left early
    gc.collect()
    assert stores
    assert output.token_ids
    assert all(store() is None for store in stores)
