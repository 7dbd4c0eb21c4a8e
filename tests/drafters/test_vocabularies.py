"""Two models draft together when their tokens are the same, however their logits are padded."""

from __future__ import annotations

import pytest
import torch

from draftproof.api import Speculator
from draftproof.errors import VocabularyMismatch
from draftproof.models.hf import HFModel
from draftproof.sampling.params import SamplingParams
from tests.tiny import tiny_model, word_tokenizer

WORDS = ["<unk>", "a", "b", "c", "d", "e", "f", "g", "h", "i"]
PROMPT = "a b c a d"


def padded_model(width: int, seed: int):
    """A model with `width` logits of which those beyond the words are often the largest."""
    model = tiny_model("llama", seed, torch.float32, vocab_size=width)
    with torch.no_grad():
        model.lm_head.weight[len(WORDS) :] *= 4
    return model


@pytest.fixture
def saved(tmp_path):
    """Saves a model and a tokenizer as a folder that `model:PATH` can name."""

    def save(model, words) -> str:
        model.save_pretrained(tmp_path / "drafter")
        word_tokenizer(words).save_pretrained(tmp_path / "drafter")
        return f"model:{tmp_path / 'drafter'}"

    return save


@pytest.mark.parametrize(("target_size", "drafter_size"), [(10, 12), (12, 10), (16, 12), (12, 12)])
@pytest.mark.parametrize("verifier", [None, "tokenwise"])
def test_padded_logits_do_not_matter(saved, target_size, drafter_size, verifier) -> None:
    target = padded_model(target_size, seed=1).double()
    drafter = saved(padded_model(drafter_size, seed=2), WORDS)
    made = Speculator.from_pretrained(
        (target, word_tokenizer(WORDS)), drafter, depth=3, verifier=verifier
    )
    greedy = SamplingParams(max_tokens=20)
    assert made.generate(PROMPT, greedy).token_ids == made.plain(PROMPT, greedy).token_ids
    for seed in range(3):
        params = SamplingParams(max_tokens=20, temperature=1.5, seed=seed)
        output = made.generate(PROMPT, params)
        assert output.stats.drafted > 0
        assert max(output.token_ids) < len(WORDS)
        if verifier is None:
            assert output.token_ids == made.plain(PROMPT, params).token_ids


def test_padding_would_be_emitted_if_it_were_not_known_as_such() -> None:
    model = padded_model(16, seed=1).double()
    pair = (model, word_tokenizer(WORDS))
    greedy = SamplingParams(max_tokens=20)
    blind = Speculator.from_pretrained(model, "ngram").generate([1, 2, 3, 1, 4], greedy)
    assert max(blind.token_ids) >= len(WORDS)
    knowing = Speculator.from_pretrained(pair, "ngram").generate(PROMPT, greedy)
    assert max(knowing.token_ids) < len(WORDS)


@pytest.mark.parametrize("name", ["model", "model-tli"])
def test_shuffled_and_unknown_words_are_drafted_by_meaning(saved, name) -> None:
    shuffled = [*WORDS[:4], "e", "d", *WORDS[6:9], "z"]
    pair = (padded_model(10, seed=1).double(), word_tokenizer(WORDS))
    drafter = saved(padded_model(12, seed=2), shuffled).replace("model", name, 1)
    made = Speculator.from_pretrained(pair, drafter, depth=3)
    assert made.drafter.name.startswith("model-tli:")
    for params in (SamplingParams(max_tokens=20), SamplingParams(temperature=1.5, seed=1)):
        output = made.generate(PROMPT, params)
        assert output.stats.drafted > 0
        assert output.token_ids == made.plain(PROMPT, params).token_ids


def test_vocabularies_without_a_word_in_common_are_refused_with_the_measure(saved) -> None:
    drafter = saved(padded_model(10, seed=2), [word.upper() for word in WORDS])
    pair = (padded_model(10, seed=1), word_tokenizer(WORDS))
    with pytest.raises(VocabularyMismatch, match=r"0 tokens in common, of 10 .*: 0% .*self-int8"):
        Speculator.from_pretrained(pair, drafter)


def test_different_sizes_without_tokenizers_are_refused(tmp_path) -> None:
    padded_model(12, seed=2).save_pretrained(tmp_path)
    with pytest.raises(VocabularyMismatch, match=r"10 ids and .* 12, and without both tokenizers"):
        Speculator.from_pretrained(padded_model(10, seed=1), f"model:{tmp_path}")


@pytest.mark.parametrize("name", ["model-tli", "model-slem"])
def test_a_method_for_other_vocabularies_needs_both_tokenizers(tmp_path, name) -> None:
    padded_model(10, seed=2).save_pretrained(tmp_path)
    with pytest.raises(VocabularyMismatch, match="without both tokenizers"):
        Speculator.from_pretrained(padded_model(10, seed=1), f"{name}:{tmp_path}")


def test_a_second_model_follows_a_loaded_targets_device(saved, monkeypatch) -> None:
    seen = []
    take = HFModel.__init__

    def spy(self, model, *rest):
        seen.append(model.device)
        take(self, model, *rest)

    monkeypatch.setattr(HFModel, "__init__", spy)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    pair = (padded_model(10, seed=1), word_tokenizer(WORDS))
    Speculator.from_pretrained(pair, saved(padded_model(10, seed=2), WORDS))
    assert seen == [torch.device("cpu")] * 2
