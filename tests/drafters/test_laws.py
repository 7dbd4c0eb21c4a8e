"""What a drafter says about its tokens is how it drew them."""

from __future__ import annotations

import pytest
import torch

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.core import Plan, Proposal, Purpose
from draftproof.drafters.base import Drafting
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.shared import SharedCacheDrafter
from draftproof.models.hf import HFModel
from draftproof.sampling.noise import KeyedNoise
from draftproof.sampling.params import SamplingParams
from draftproof.verification.tokenwise import Tokenwise
from tests.tiny import VOCAB, prompt, shared_target, tiny_model

SHAPED = {"temperature": 1.3, "top_k": 2, "top_p": 0.7}


class Listening(Drafting):
    """A drafter that keeps what another one proposed."""

    def __init__(self, inner) -> None:
        self.name, self.proposals, self.inner = inner.name, inner.proposals, inner
        self.heard: list = []

    def begin(self, target_cache):
        self.drafting = self.inner.begin(target_cache)
        return self

    def propose(self, contexts, plans):
        drafts = self.drafting.propose(contexts, plans)
        self.heard += zip(contexts, [list(c.tokens) for c in contexts], drafts, strict=True)
        return drafts

    def move(self, source, target):
        self.drafting.move(source, target)


def made_with(kind: str, target: HFModel, model: HFModel) -> Listening:
    if kind == "own cache":
        return Listening(ModelDrafter(model, target.vocab_size, prefill_chunk=4))
    return Listening(SharedCacheDrafter(kind, model))


def run(drafter: Listening, target: HFModel, depth: int = 3, **params) -> list:
    settings = EngineSettings(depth=depth)
    made = Speculator(target, drafter, settings=settings, verifier=params.pop("verifier", None))
    made.generate([prompt(9), prompt(1)], SamplingParams(max_tokens=12, **params))
    return drafter.heard


KINDS = [("own cache", "int8"), ("shared cache", "int8"), ("shared cache", "early")]


def copy_of(target: HFModel, how: str) -> HFModel:
    return target.int8_copy() if how == "int8" else target.first_layers(1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("kind", "how"), KINDS)
def test_recorded_q_is_the_shaped_law_that_was_drawn_from(kind, how, dtype) -> None:
    target = HFModel(tiny_model("llama", dtype=dtype), "llama")
    model = copy_of(target, how)
    heard = run(made_with(kind, target, model), target, **SHAPED, verifier="tokenwise")
    checked = 0
    for context, tokens, draft in heard:
        assert draft.proposal is Proposal.SAMPLED
        for i, token in enumerate(draft.tokens):
            q = draft.q[i]
            assert q.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
            assert abs(float(q.sum()) - 1) < 1e-6
            # Logits tied with the second largest stay, and bfloat16 ties: one is strictly above.
            least = q[q > 0].min()
            assert int((q > least).sum()) <= 1, "top_k=2 was recorded, not the raw law"
            # The very number that was drawn with gives the same token from the recorded law.
            assert context.noise.draw(q, len(tokens), Purpose.DRAFT, i) == token
            if dtype is torch.float64 and kind == "own cache":
                logits = model._one_pass([*tokens, *draft.tokens[:i]])[-1]
                law = context.warp.draft_law(logits, [*tokens, *draft.tokens[:i]])
                assert torch.allclose(law, q, atol=1e-6)
            checked += 1
    assert checked > 10


def test_the_rule_accepts_by_the_array_that_was_drawn_from(monkeypatch) -> None:
    target = HFModel(tiny_model("llama", dtype=torch.bfloat16), "llama")
    judged, verify = [], Tokenwise.verify

    def spy(self, draft, p, position, noise):
        judged.append(draft)
        return verify(self, draft, p, position, noise)

    monkeypatch.setattr(Tokenwise, "verify", spy)
    drafter = made_with("shared cache", target, target.int8_copy())
    heard = run(drafter, target, **SHAPED, verifier="tokenwise")
    assert [id(draft) for draft in judged] == [id(draft) for _, _, draft in heard]


@pytest.mark.parametrize(("kind", "how"), KINDS)
def test_a_greedy_draft_is_a_point_and_never_a_softmax(kind: str, how: str) -> None:
    target = shared_target("llama")
    heard = run(made_with(kind, target, copy_of(target, how)), target)
    drafts = [draft for _, _, draft in heard if draft.tokens]
    assert drafts
    assert all(draft.proposal is Proposal.POINT and draft.q is None for draft in drafts)


@pytest.mark.parametrize(("kind", "how"), KINDS)
def test_a_seeded_draft_races_with_the_targets_own_noise(kind: str, how: str) -> None:
    target = shared_target("llama")
    heard = run(made_with(kind, target, copy_of(target, how)), target, temperature=1.0, seed=3)
    drafts = [draft for _, _, draft in heard if draft.tokens]
    assert drafts
    assert all(draft.proposal is Proposal.COUPLED and draft.q is None for draft in drafts)


@pytest.mark.parametrize(("kind", "how"), KINDS)
def test_no_draft_is_deeper_than_its_plan_at_any_depth(kind: str, how: str) -> None:
    target = shared_target("llama")
    for depth in (1, 2, 5):
        heard = run(made_with(kind, target, copy_of(target, how)), target, depth=depth)
        assert max(len(draft.tokens) for _, _, draft in heard) == depth


def test_a_law_over_fewer_ids_is_padded_with_zeros_and_a_longer_one_cut() -> None:
    target = shared_target("llama")
    for width in (VOCAB - 20, VOCAB + 20):
        model = HFModel(tiny_model("llama", seed=2, vocab_size=width), "other")
        drafter = made_with("own cache", target, model)
        low = {"temperature": 1.0, "verifier": "tokenwise"}
        settings = EngineSettings(depth=3)
        made = Speculator(target, drafter, settings=settings, verifier=low.pop("verifier"))
        ids = [token % 70 for token in prompt(9)]
        made.generate(ids, SamplingParams(max_tokens=12, **low))
        laws = [draft.q for _, _, draft in drafter.heard if draft.tokens]
        assert laws
        for q in laws:
            assert q.shape[1] == VOCAB
            assert not q[:, width:].any()
            assert torch.allclose(q.sum(dim=1), torch.ones(len(q), dtype=q.dtype))


def test_an_empty_plan_draws_nothing_from_the_noise() -> None:
    class Silent(KeyedNoise):
        def draw(self, *_arguments, **_named):
            pytest.fail("a token was drawn that nobody asked for")

    target = shared_target("llama")
    drafter = made_with("shared cache", target, target.int8_copy())
    heard = run(drafter, target, temperature=1.0)
    context = heard[0][0]
    silent = type(context)(0, 0, context.tokens, context.warp, Silent(1), Proposal.SAMPLED)
    assert drafter.propose([silent], [Plan(0)])[0].tokens == ()
