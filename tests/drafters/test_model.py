"""A drafter with its own cache keeps exactly what was committed and feeds only what is new."""

from __future__ import annotations

import random

import pytest
import torch

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.core import Context, Draft, Plan, Proposal, Step
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.shared import SharedCacheDrafter
from draftproof.models.cache import KVCache
from draftproof.models.hf import HFModel
from draftproof.sampling.noise import KeyedNoise
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp
from tests.tiny import (
    VOCAB,
    assert_row_is_a_prefill,
    own_greedy,
    prompt,
    shared_model,
    shared_target,
    tiny_model,
)


def contexts_of(texts, params=SamplingParams(), proposal=Proposal.POINT) -> list[Context]:  # noqa: B008
    warps = [Warp(params, prompt_length=1, num_tokens=VOCAB) for _ in texts]
    return [
        Context(row, row, text, warp, KeyedNoise(1, row), proposal)
        for row, (text, warp) in enumerate(zip(texts, warps, strict=True))
    ]


def tell(drafting, row: int, text: list[int], draft: Draft, tokens: list[int], kept: int) -> None:
    """A round ended with `tokens`, of which the first `kept` had been drafted."""
    text += tokens
    step = Step(row, tuple(tokens), (), len(draft.tokens), draft.depth, kept, None, None, ())
    contexts = contexts_of([text] * (row + 1))
    drafting.observe(contexts[row], draft, step, torch.empty(0))


def begin(model: HFModel, rows: int, capacity: int = 96):
    return ModelDrafter(model, VOCAB, prefill_chunk=4).begin(KVCache(rows, capacity))


@pytest.mark.parametrize("name", ["gpt2", "opt", "mistral"])
@pytest.mark.parametrize("width", [1, 3])
def test_after_any_verdict_and_any_plan_the_cache_is_a_fresh_prefill(name: str, width: int) -> None:
    model, dice = shared_target(name), random.Random(2)
    texts = [prompt(6), prompt(1), prompt(13)]
    drafting = begin(model, rows=3)
    outcomes = set()
    for _ in range(12):
        plans = [Plan(dice.randint(0, 5), width, dice.randint(5, 20)) for _ in texts]
        drafts = drafting.propose(contexts_of(texts), plans)
        for row, (text, draft, plan) in enumerate(zip(texts, drafts, plans, strict=True)):
            assert draft.depth == plan.depth or (width > 1 and draft.depth < plan.depth)
            assert len(draft.tokens) <= plan.nodes
            if plan.depth:
                assert_row_is_a_prefill(model, drafting._cache, row, text)
                # What it drafts is what the model says after the text, whatever happened before.
                assert draft.tokens[0] == int(model._one_pass(text)[-1].argmax())
            path = draft.path(dice.randrange(-1, len(draft.tokens)))
            fed = [node for node in path if drafting._rolled[row].columns[node] is not None]
            outcomes.add((len(fed) == len(path), bool(path)))
            tokens = [*(draft.tokens[node] for node in path), dice.randrange(VOCAB)]
            before = len(text)
            tell(drafting, row, text, draft, tokens, len(path))
            if plan.depth:
                known = [*text[:before], *tokens[: len(fed)]]
                assert_row_is_a_prefill(model, drafting._cache, row, known)
    assert len(outcomes) == 3


def test_full_acceptance_feeds_two_tokens_and_a_rejection_one(monkeypatch) -> None:
    model = shared_target("gpt2")
    drafting, fed, forward = begin(model, rows=1), [], HFModel.forward

    def spy(self, batch, *rest):
        fed.append(batch.tokens[0].tolist())
        return forward(self, batch, *rest)

    monkeypatch.setattr(HFModel, "forward", spy)
    text = prompt(5)
    (draft,) = drafting.propose(contexts_of([text]), [Plan(3)])
    assert fed == [text[-2:], [draft.tokens[0]], [draft.tokens[1]]]
    tell(drafting, 0, text, draft, [*draft.tokens, 7], 3)
    fed.clear()
    (draft,) = drafting.propose(contexts_of([text]), [Plan(3)])
    assert fed[0] == text[-2:], "the last drafted token and the bonus"
    tell(drafting, 0, text, draft, [draft.tokens[0], 8], 1)
    fed.clear()
    drafting.propose(contexts_of([text]), [Plan(2)])
    assert fed[0] == [8], "the correction alone"


def test_rows_move_with_their_caches() -> None:
    model = shared_target("gpt2")
    texts = [prompt(6), prompt(3), prompt(9)]
    drafting = begin(model, rows=3)
    drafting.propose(contexts_of(texts), [Plan(3)] * 3)
    drafting.move(2, 0)
    moved = [texts[2], texts[1]]
    drafts = drafting.propose(contexts_of(moved), [Plan(2)] * 2)
    for row, (text, draft) in enumerate(zip(moved, drafts, strict=True)):
        assert len(draft.tokens) == 2
        assert_row_is_a_prefill(model, drafting._cache, row, text)
    # A new sequence in the row that was left behind starts from nothing that is wrong.
    fresh = [*moved, prompt(4, seed=5)]
    drafting.propose(contexts_of(fresh), [Plan(2)] * 3)
    assert_row_is_a_prefill(model, drafting._cache, 2, fresh[2])


@pytest.mark.parametrize("kind", ["int8", "early"])
def test_a_drafter_on_the_targets_cache_leaves_its_committed_part_alone(kind: str) -> None:
    target, texts, dice = shared_target("gpt2"), [prompt(6), prompt(2)], random.Random(3)
    model = target.int8_copy() if kind == "int8" else target.first_layers(1)
    cache = KVCache(rows=2, capacity=60)
    for row, text in enumerate(texts):
        target.prefill(text[:-1], cache, row, chunk=4)
    drafting = SharedCacheDrafter(kind, model).begin(cache)
    for _ in range(4):
        depths = [dice.randint(0, 4) for _ in texts]
        drafts = drafting.propose(contexts_of(texts), [Plan(depth) for depth in depths])
        assert [len(draft.tokens) for draft in drafts] == depths
        for row, text in enumerate(texts):
            assert_row_is_a_prefill(target, cache, row, text[:-1])


def test_a_prompt_beyond_the_drafters_positions_makes_only_its_own_row_plain() -> None:
    target = shared_target("llama")
    small = HFModel(tiny_model("gpt2", n_positions=16), "small")
    prompts = [prompt(40), prompt(3), prompt(15)]
    drafter = ModelDrafter(small, VOCAB, prefill_chunk=4)
    made = Speculator(target, drafter, settings=EngineSettings(depth=4))
    outputs = made.generate(prompts, SamplingParams(max_tokens=20))
    for output, ids in zip(outputs, prompts, strict=True):
        assert output.token_ids == own_greedy(shared_model("llama"), ids, 20)
    assert outputs[0].stats.drafted == 0
    assert set(outputs[0].samples[0].origins) == {"plain"}
    # The shorter ones draft as far as the positions reach, then go on plainly.
    assert outputs[1].stats.drafted > outputs[2].stats.drafted > 0


def test_a_row_at_its_last_position_waits_for_a_deeper_one() -> None:
    small = HFModel(tiny_model("gpt2", n_positions=16), "small")
    drafting = begin(small, rows=2)
    long, short = prompt(15), prompt(4)
    drafts = drafting.propose(contexts_of([long, short]), [Plan(5)] * 2)
    assert [len(draft.tokens) for draft in drafts] == [2, 5]


def test_ids_that_the_drafter_does_not_know_make_their_row_plain() -> None:
    small = HFModel(tiny_model("gpt2", vocab_size=50), "small")
    drafting = begin(small, rows=2)
    texts = [[3, 4, 60], [5, 6, 7]]
    drafts = drafting.propose(contexts_of(texts), [Plan(3)] * 2)
    assert [len(draft.tokens) for draft in drafts] == [0, 3]
    assert max(drafts[1].tokens) < 50
