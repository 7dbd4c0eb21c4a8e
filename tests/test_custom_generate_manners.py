"""What else `generate` promises its callers: streams, stops, padding, refusals, no traces."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from transformers import (
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
)

import draftproof as dp
from draftproof.errors import DraftproofError, InvalidSetting
from tests.test_api import tokenizer
from tests.test_custom_generate import Recorder, ids, left_padded
from tests.tiny import shared_model, tiny_model

GREEDY = {"max_new_tokens": 30, "do_sample": False}


def both(options, model=None, inputs=None, depth=4):
    """The ids of generate, and those of generate with drafts."""
    model = model or shared_model("llama")
    inputs = inputs or {"inputs": ids()}
    speculate = dp.custom_generate(drafter="early-exit:1", depth=depth)
    theirs = model.generate(**inputs, **GREEDY | options)
    return theirs, model.generate(**inputs, **GREEDY | options, custom_generate=speculate)


@pytest.mark.parametrize("depth", [1, 4, 7])
def test_a_stop_string_ends_the_same_token(depth):
    """Every third pair of characters of the plain text is a stop string once."""
    words = tokenizer()
    plain = words.decode(shared_model("llama").generate(ids(), **GREEDY)[0, 7:])
    stopped = 0
    for at in range(0, 20, 3):
        criterion = StopStringCriteria(words, [plain[at : at + 2]])
        theirs, ours = both({"stopping_criteria": StoppingCriteriaList([criterion])}, depth=depth)
        assert torch.equal(ours, theirs)
        stopped += theirs.shape[1] < 37
    assert stopped


def test_rows_that_stop_at_different_places_are_padded_as_in_generate():
    options = {"eos_token_id": list(range(3, 20)), "pad_token_id": 1}
    theirs, ours = both(options, inputs=left_padded())
    assert torch.equal(ours, theirs)
    assert (theirs[:, -1] == 1).any(), "some row has to end early for this to test anything"


class StopsPerRow(StoppingCriteria):
    """Row 0 after 4 new tokens, row 1 after 9, the others never."""

    def __init__(self, prompt):
        self._prompt = prompt

    def __call__(self, input_ids, scores, **kwargs):  # noqa: ARG002
        new = input_ids.shape[1] - self._prompt
        limits = [4, 9, 10**9]
        return torch.tensor([new >= limits[row] for row in range(len(input_ids))])


def test_a_criterion_that_tells_rows_apart():
    options = {
        "stopping_criteria": StoppingCriteriaList([StopsPerRow(9)]),
        "eos_token_id": 2,  # generate pads ended rows only where an end token is known
        "pad_token_id": 0,
    }
    theirs, ours = both(options, inputs=left_padded())
    assert torch.equal(ours, theirs)
    assert (theirs[0, 9 + 4 :] == 0).all()


def test_time_that_has_run_out_ends_after_one_token():
    long_over = MaxTimeCriteria(max_time=1.0, initial_timestamp=0.0)
    theirs, ours = both({"stopping_criteria": StoppingCriteriaList([long_over])})
    assert torch.equal(ours, theirs)
    assert ours.shape == (1, 8)


def test_sampled_rows_of_one_prompt_are_grouped_as_in_generate():
    model, speculate = shared_model("llama"), dp.custom_generate(drafter="self-int8")
    out = model.generate(
        **left_padded(),
        max_new_tokens=6,
        do_sample=True,
        num_return_sequences=2,
        custom_generate=speculate,
    )
    prompts = left_padded()["inputs"].repeat_interleave(2, dim=0)
    assert torch.equal(out[:, :9], prompts)


def test_a_text_streamer_gives_the_text_of_generate():
    words, model = tokenizer(), shared_model("llama")

    def streamed(**options):
        streamer = TextIteratorStreamer(words, skip_prompt=True, timeout=60)
        arguments = {"inputs": ids(), "streamer": streamer} | GREEDY | options
        thread = Thread(target=model.generate, kwargs=arguments)
        thread.start()
        text = "".join(streamer)
        thread.join()
        return text

    expected = streamed()
    assert expected
    assert streamed(custom_generate=dp.custom_generate(drafter="early-exit:1")) == expected


def test_a_streamer_of_several_rows_is_refused():
    with pytest.raises((ValueError, DraftproofError), match="stream"):
        both({"streamer": Recorder()}, inputs={"inputs": ids(2)})


def test_return_dict_holds_the_same_ids():
    theirs, ours = both({"return_dict_in_generate": True})
    assert torch.equal(ours.sequences, theirs.sequences)
    assert type(ours) is type(theirs)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 3}, "num_beams is 3"),
        ({"return_dict_in_generate": True, "output_logits": True}, "output_logits"),
        ({"return_dict_in_generate": True, "output_hidden_states": True}, "output_hidden_states"),
        ({"return_dict_in_generate": True, "output_attentions": True}, "output_attentions"),
        ({"synced_gpus": True}, "synced_gpus"),
    ],
)
def test_what_is_not_kept_is_refused_in_one_sentence(options, named):
    speculate = dp.custom_generate(drafter="ngram")
    with pytest.raises(InvalidSetting, match=named) as caught:
        shared_model("llama").generate(ids(), **GREEDY, **options, custom_generate=speculate)
    assert "\n" not in str(caught.value)


def test_embeddings_instead_of_ids_are_refused():
    model = shared_model("llama")
    with pytest.raises(InvalidSetting, match="inputs_embeds"):
        model.generate(
            inputs_embeds=model.get_input_embeddings()(ids()),
            **GREEDY,
            custom_generate=dp.custom_generate(drafter="ngram"),
        )


def test_a_mask_with_holes_is_refused():
    mask = torch.ones((1, 7), dtype=torch.long)
    mask[0, 3] = 0
    with pytest.raises(InvalidSetting, match="left padding"):
        both({}, inputs={"inputs": ids(), "attention_mask": mask})


def test_right_padding_is_refused():
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    with pytest.raises(InvalidSetting, match="left padding"):
        both({}, inputs={"inputs": ids(), "attention_mask": mask})


def test_the_decoding_method_serves_two_models_in_turn():
    speculate = dp.custom_generate(drafter="early-exit:1")
    for name in ("llama", "gpt2", "llama"):
        model = shared_model(name)
        expected = model.generate(ids(), **GREEDY)
        assert torch.equal(model.generate(ids(), **GREEDY, custom_generate=speculate), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_that_changed_between_calls_are_the_ones_used(dtype):
    """The decoding method is kept, and the model trained on: its new weights have to speak."""
    model, kept = tiny_model("llama", dtype=dtype), dp.custom_generate(drafter="self-int8")
    before = model.generate(ids(), **GREEDY, custom_generate=kept)
    model.load_state_dict(tiny_model("llama", seed=5, dtype=dtype).state_dict())
    fresh = model.generate(ids(), **GREEDY, custom_generate=dp.custom_generate(drafter="none"))
    assert not torch.equal(fresh, before)
    assert torch.equal(model.generate(ids(), **GREEDY, custom_generate=kept), fresh)


def test_no_hook_or_module_is_left_on_the_model():
    model = tiny_model("llama").train()
    calls = []
    model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    before = [(name, type(part), len(part._forward_hooks)) for name, part in model.named_modules()]
    speculate = dp.custom_generate(drafter="self-int8")
    model.generate(ids(), **GREEDY, custom_generate=speculate)
    after = [(name, type(part), len(part._forward_hooks)) for name, part in model.named_modules()]
    assert after == before
    assert calls, "the user's own hook runs"
    assert all(part.training for part in model.modules())
