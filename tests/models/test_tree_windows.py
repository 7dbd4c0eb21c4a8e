"""Trees across the edge of a sliding window: as targets read them and as drafters grow them."""

from __future__ import annotations

import pytest

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.drafters.model import ModelDrafter
from draftproof.models.hf import HFModel
from draftproof.sampling.params import SamplingParams
from tests.models.test_architectures import SLIDING, tokens_of
from tests.thicket import Thicket, Watched
from tests.tiny import VOCAB, WINDOW, own_greedy, prompt, speculator, tiny_model

# Whole lengths of one less than the window, the window, one more, and far beyond it.
BUDGETS = (WINDOW - 4, WINDOW - 3, WINDOW - 2, 30)
DEEP = WINDOW + 3
"""The deepest nodes see only the last of their own ancestors."""
PROMPTS = [prompt(3), prompt(1, seed=1), prompt(WINDOW, seed=2), prompt(20, seed=3)]


@pytest.fixture(scope="module", params=SLIDING, ids=lambda case: "-".join(map(str, case[:2])))
def window(request):
    """A model with a window in one of its attention paths, and its own greedy texts."""
    name, attention, changes = request.param
    model = tiny_model(name, seed=1, attn_implementation=attention, **changes)
    return HFModel(model, name), [own_greedy(model, ids, BUDGETS[-1]) for ids in PROMPTS]


@pytest.mark.parametrize("seed", range(2))
def test_a_path_hidden_in_trees_is_kept_on_both_sides_of_the_window(window, seed: int) -> None:
    target, texts = window
    whole = [[*ids, *text] for ids, text in zip(PROMPTS, texts, strict=True)]
    drafter = Thicket(whole, VOCAB, seed)
    made = Speculator(target, drafter, settings=EngineSettings(depth=DEEP))
    for budget in BUDGETS:
        outputs = made.generate(PROMPTS, SamplingParams(max_tokens=budget))
        assert tokens_of(outputs) == [text[:budget] for text in texts]
        alone = made.generate(PROMPTS[0], SamplingParams(max_tokens=budget))
        assert alone.token_ids == texts[0][:budget]
    assert drafter.branches > 20
    assert sum(output.stats.accepted for output in outputs) > 30
    assert sum(output.stats.drafted - output.stats.accepted for output in outputs) > 30


def test_levels_see_in_the_window_what_one_pass_sees(window) -> None:
    """Behind every node of the first drafts stand the likeliest tokens of a pass over its path."""
    target, texts = window
    drafter = Watched(ModelDrafter(target, VOCAB, prefill_chunk=5))
    made = Speculator(target, drafter, settings=EngineSettings(depth=DEEP, width=2))
    outputs = made.generate(PROMPTS, SamplingParams(max_tokens=DEEP + 4))
    assert tokens_of(outputs) == [text[: DEEP + 4] for text in texts]
    first = drafter.drafts[: 2 * len(PROMPTS)]
    assert max(draft.depth for _, draft in first) == DEEP
    for before, draft in first:
        for node in {-1, *draft.parents}:
            text = [*before, *(draft.tokens[step] for step in draft.path(node))]
            best = target._one_pass(text)[-1].topk(2).indices.tolist()
            assert [draft.tokens[child] for child in draft.children(node)] == best


@pytest.mark.parametrize("drafter", ["self-int8", "early-exit:1", "close-model"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafted_trees_change_no_text(window, drafter: str, temperature: float) -> None:
    target, texts = window
    made = speculator(target, drafter, depth=4, width=3, nodes=14)
    params = SamplingParams(max_tokens=14, temperature=temperature, seed=4)
    outputs = made.generate(PROMPTS, params)
    if temperature:
        assert tokens_of(outputs) == tokens_of(made.plain(PROMPTS, params))
    else:
        assert tokens_of(outputs) == [text[:14] for text in texts]
    assert sum(output.stats.drafted for output in outputs) > 100
