"""A record's line and its verdict."""

from __future__ import annotations

import json

import pytest

from draftproof.bench.matrix import OURS, Cell
from draftproof.bench.record import judge
from draftproof.models.toy import ToyModel
from tests.bench.conftest import OUR_CELL, PEER_CELL, PLAIN_CELL, record
from tests.toys import constant_law

TARGET = ToyModel(constant_law(0.5, 0.3, 0.2), 3)
TIED = ToyModel(constant_law(0.4 + 1e-11, 0.4, 0.2 - 1e-11), 3)


def verdict(cell, target=TARGET, tokens=(0, 0, 1), seed=0):
    plain = record(PLAIN_CELL, prompt_ids=(0,), token_ids=(0, 0, 0), exactness=None)
    other = record(cell, prompt_ids=(0,), token_ids=tokens, exactness=None, seed=seed)
    return judge(other, plain, target, num_tokens=3)


@pytest.mark.parametrize("cell", [OUR_CELL, PEER_CELL])
def test_greedy_texts_of_all_are_held_against_plain_decoding(cell):
    assert verdict(cell, tokens=(0, 0, 0)).exactness == "identical"
    wrong = verdict(cell)
    assert wrong.exactness == "DIFFERENT"
    assert (wrong.difference.position, wrong.difference.found) == (2, 1)
    assert verdict(cell, target=TIED).exactness == "near-tie"


def test_a_text_that_ends_early_is_different():
    assert verdict(OUR_CELL, target=TIED, tokens=(0, 0)).exactness == "DIFFERENT"


def test_sampled_texts_are_compared_with_our_own_only():
    peer, ours = (Cell(name, None, None, 1.0, 1) for name in ("transformers", OURS))
    assert verdict(peer).exactness == "not comparable"
    assert verdict(peer).difference is None
    assert verdict(ours, tokens=(0, 0, 0)).exactness == "identical"
    assert verdict(ours).exactness == "DIFFERENT"


def test_plain_decoding_is_the_reference():
    assert verdict(PLAIN_CELL, tokens=(0, 0, 0)).exactness == "reference"


def test_a_line_holds_the_cell_the_counts_and_the_difference():
    told = json.loads(verdict(OUR_CELL, target=TIED).line())
    assert told | OUR_FIELDS == told
    assert told["difference"]["near_tie"] is True
    assert told["token_ids"] == [0, 0, 1]
    assert json.loads(verdict(PEER_CELL, tokens=(0, 0, 0)).line())["draft_s"] is None


OUR_FIELDS = {
    "system": "draftproof",
    "drafter": "ngram",
    "depth": 4,
    "batch": 1,
    "width": 1,
    "tree": None,
    "prompt_tokens": 1,
    "generated": 3,
    "exactness": "near-tie",
}
