"""Rows behind which no token is possible: an error exactly where plain decoding meets one."""

from __future__ import annotations

import pytest
import torch

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.errors import InvalidSetting
from draftproof.models.toy import ToyModel
from draftproof.sampling.params import SamplingParams
from tests.toys import Scripted

V, END = 4, 3
NEXT = {1: 2, 2: END, END: 0, 0: 0}
"""Plain decoding behind 1 says 2, END; a model would go on with 0 for ever."""


def law(prefix):
    return [0.97 if token == NEXT[prefix[-1]] else 0.01 for token in range(V)]


class Ends:
    """Nothing may follow `last`: bans every token there, or raises."""

    def __init__(self, last, raises):
        self.last, self.raises = last, raises

    def __call__(self, ids, scores):
        if int(ids[0, -1]) != self.last:
            return scores
        if self.raises:
            raise ValueError("nothing may follow")
        return torch.full_like(scores, -torch.inf)


def system(script, end_ids=frozenset({END})):
    drafter = Scripted(lambda _tokens: script)
    return Speculator(ToyModel(law, V), drafter, end_ids=end_ids, settings=EngineSettings(depth=4))


def params(last, raises, temperature, **others):
    return SamplingParams(
        max_tokens=6,
        temperature=temperature,
        seed=1,
        top_k=1,
        logits_processors=[Ends(last, raises)],
        **others,
    )


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("script", [[2, END], [2, END, 0, 0], [2]])
def test_what_lies_behind_the_end_of_the_text_is_never_asked(script, temperature, raises):
    """An accepted end token, or a stop id, has a row behind it that plain decoding never sees."""
    made = system(script)
    wanted = params(END, raises, temperature)
    assert made.generate([1], wanted).token_ids == (2, END)
    assert made.plain([1], wanted).token_ids == (2, END)
    stopped = params(END, raises, temperature, stop_token_ids=[END])
    assert system(script, frozenset()).generate([1], stopped).token_ids == (2, END)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("script", [[2, END, 0], [2, 0, 0], [2], []])
def test_a_row_on_the_way_that_is_dead_is_an_error_whatever_was_drafted(script, temperature):
    """Token 0, which an all-zero row would give, may not carry a draft across it."""
    made = system(script)
    for decode in (made.generate, made.plain):
        with pytest.raises(InvalidSetting, match="no token is possible"):
            decode([1], params(2, False, temperature))
        with pytest.raises(ValueError, match="nothing may follow"):
            decode([1], params(2, True, temperature))
