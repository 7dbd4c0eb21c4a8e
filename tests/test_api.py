"""What a user may hand in, and what comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

import draftproof as dp
from draftproof.errors import InvalidPrompt, InvalidSetting, ModelNotFound
from tests.tiny import VOCAB, letter_tokenizer, shared_model

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose first ids are bytes, cut to the tiny vocabulary and a space."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = [*alphabet[: VOCAB - 4], "Ġ"]
    return letter_tokenizer(letters, chat_template=TEMPLATE, unknown="<pad>")


@pytest.fixture(scope="module")
def spec() -> dp.Speculator:
    pair = shared_model("llama"), tokenizer()
    return dp.Speculator.from_pretrained(pair, "early-exit:1", depth=4)


PARAMS = dp.SamplingParams(max_tokens=20)
CHAT = [{"role": "user", "content": "hello"}]


def test_text_ids_tensor_and_chat_are_prompts(spec: dp.Speculator) -> None:
    ids = spec.encode("hello")
    as_text = spec.generate("hello", PARAMS)
    assert as_text.prompt_token_ids == tuple(ids)
    assert spec.generate(ids, PARAMS).token_ids == as_text.token_ids
    assert spec.generate(torch.tensor(ids), PARAMS).token_ids == as_text.token_ids
    chat = spec.generate(CHAT, PARAMS)
    assert chat.prompt_token_ids == tuple(spec.encode("user hello assistant "))


def test_a_list_gives_a_list_in_order_each_as_alone(spec: dp.Speculator) -> None:
    prompts = ["hello", spec.encode("other words"), CHAT, "x"]
    alone = [spec.generate(prompt, PARAMS) for prompt in prompts]
    together = spec.generate(prompts, PARAMS)
    assert [out.token_ids for out in together] == [out.token_ids for out in alone]
    assert [out.text for out in together] == [out.text for out in alone]
    assert spec.generate([], PARAMS) == []


def test_each_prompt_may_have_its_own_params(spec: dp.Speculator) -> None:
    wanted = [dp.SamplingParams(max_tokens=n) for n in (3, 0, 9)]
    outs = spec.generate(["a", "b", "c"], wanted)
    assert [len(out.token_ids) for out in outs] == [3, 0, 9]
    with pytest.raises(InvalidSetting, match="2 SamplingParams were given for 3 prompts"):
        spec.generate(["a", "b", "c"], wanted[:2])


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_streamed_pieces_join_to_the_output(depth: int) -> None:
    pair = (shared_model("llama"), tokenizer())
    spec = dp.Speculator.from_pretrained(pair, "early-exit:1", depth=depth)
    params = dp.SamplingParams(max_tokens=30, temperature=0.8, seed=2, stop=["q", "zz"])
    stream = spec.stream("hello", params)
    pieces = list(stream)
    whole = spec.generate("hello", params)
    assert "".join(piece.text for piece in pieces) == whole.text == stream.output.text
    assert tuple(piece.token_id for piece in pieces) == whole.token_ids
    assert pieces[-1].finish_reason == whole.finish_reason
    assert all(piece.finish_reason is None for piece in pieces[:-1])


def test_depth_width_and_nodes_shape_the_drafts_and_not_the_text(spec: dp.Speculator) -> None:
    pair = (shared_model("llama"), tokenizer())
    settings = dp.EngineSettings(depth=4, nodes=2)
    drafted = {}
    for shape in ({"width": 3, "nodes": 6}, {"width": 3}, {"depth": 2, "width": 2}):
        wide = dp.Speculator.from_pretrained(pair, "early-exit:1", settings=settings, **shape)
        output = wide.generate("hello", PARAMS)
        assert output.token_ids == spec.plain("hello", PARAMS).token_ids
        assert wide.settings == replace(settings, **shape)
        drafted[tuple(shape)] = output.stats.drafted / output.stats.target_calls
    assert drafted["width", "nodes"] > 2 >= drafted["width",]
    with pytest.raises(InvalidSetting, match="chooses the width as well"):
        dp.Speculator.from_pretrained(pair, "early-exit:1", width=2)


def test_a_stream_can_be_left_early(spec: dp.Speculator) -> None:
    stream = spec.stream("hello", PARAMS)
    for _ in stream:
        break
    assert 1 <= len(stream.output.token_ids) <= 1 + spec.settings.depth
    assert (
        stream.output.token_ids
        == spec.plain("hello", PARAMS).token_ids[: len(stream.output.token_ids)]
    )


def test_samples_of_one_prompt_differ_and_repeat_with_a_seed(spec: dp.Speculator) -> None:
    params = dp.SamplingParams(max_tokens=12, temperature=1.5, n=4, seed=3)
    first, again = spec.generate("hello", params), spec.generate("hello", params)
    assert first.samples[0].token_ids == first.token_ids
    assert len({sample.token_ids for sample in first.samples}) == 4
    assert [s.token_ids for s in first.samples] == [s.token_ids for s in again.samples]
    free = dp.SamplingParams(max_tokens=12, temperature=1.5)
    assert len({spec.generate("hello", free).token_ids for _ in range(4)}) == 4
    with pytest.raises(InvalidSetting, match="n is 4"):
        spec.stream("hello", params)


def test_log_probabilities_come_with_every_token_streamed_or_not(spec: dp.Speculator) -> None:
    params = dp.SamplingParams(max_tokens=15, logprobs=2)
    out = spec.generate("hello", params)
    assert out.logprobs is not None
    assert [entry.token_id for entry in out.logprobs] == list(out.token_ids)
    assert all(len(entry.top) == 2 for entry in out.logprobs)
    assert [piece.logprobs for piece in spec.stream("hello", params)] == list(out.logprobs)
    assert spec.generate("hello", PARAMS).logprobs is None


def test_plain_decoding_drafts_nothing(spec: dp.Speculator) -> None:
    plain = spec.plain("hello", PARAMS)
    assert plain.stats.drafted == 0
    assert plain.stats.target_calls == len(plain.token_ids)
    assert set(plain.samples[0].origins) == {"plain"}


def test_bad_prompts_are_refused_by_what_they_are(spec: dp.Speculator) -> None:
    for prompt, words in [
        ("", "no tokens"),
        (b"hello", "is a bytes"),
        (3, "is a int"),
        ([{"role": "user"}], "chat message"),
        ([VOCAB], f"token id {VOCAB}"),
        ([-1], "token id -1"),
        (list(range(3, 90)) * 2, "reads at most 96"),
    ]:
        with pytest.raises(InvalidPrompt, match=words):
            spec.generate(prompt, PARAMS)


def test_without_a_tokenizer_only_ids_are_read() -> None:
    spec = dp.Speculator.from_pretrained(shared_model("llama"), "ngram")
    assert len(spec.generate([3, 4, 5], PARAMS).token_ids) == 20
    assert spec.generate([3, 4, 5], PARAMS).text == ""
    with pytest.raises(InvalidPrompt, match="needs a tokenizer"):
        spec.generate("hello", PARAMS)
    with pytest.raises(InvalidSetting, match="stop strings need a tokenizer"):
        spec.generate([3, 4, 5], dp.SamplingParams(stop="x"))


def test_wrong_construction_names_what_would_work() -> None:
    model = shared_model("llama")
    with pytest.raises(InvalidSetting, match=r"drafter is 'magic'; choose one of self-int8"):
        dp.Speculator.from_pretrained(model, "magic")
    with pytest.raises(InvalidSetting, match="verifier is 'typical'"):
        dp.Speculator.from_pretrained(model, "ngram", verifier="typical")
    with pytest.raises(InvalidSetting, match="depth is 65"):
        dp.Speculator.from_pretrained(model, "ngram", depth=65)
    with pytest.raises(ModelNotFound, match="no-such-model"):
        dp.Speculator.from_pretrained("./no-such-model")
    spec = dp.Speculator.from_pretrained(model, "ngram", verifier="greedy")
    with pytest.raises(InvalidSetting, match="is for temperature 0"):
        spec.generate([3, 4], dp.SamplingParams(temperature=1.0))


def test_params_of_another_kind_and_a_streamed_list_are_refused(spec: dp.Speculator) -> None:
    with pytest.raises(InvalidSetting, match="params holds a dict"):
        spec.generate("hello", {"max_tokens": 4})
    with pytest.raises(InvalidPrompt, match="stream takes one prompt"):
        spec.stream(["a", "b"], PARAMS)
