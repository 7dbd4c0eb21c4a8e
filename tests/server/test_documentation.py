"""docs/server.md names every field, and every one that is refused, and no other."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from draftproof.config import Speculation
from draftproof.sampling.params import SamplingParams
from draftproof.server.chat import ChatRequest
from draftproof.server.completions import CompletionRequest
from draftproof.server.fields import ASKS_FOR_NOTHING, SpeculationWish

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
KNOWN = CompletionRequest.model_fields.keys() | ChatRequest.model_fields.keys()


def first_column(mark: str) -> set[str]:
    table = re.search(rf"<!-- {mark} -->\n((?:\|.*\n)+)", PAGE)
    assert table is not None
    cells = (row.split("|")[1] for row in table[1].splitlines()[2:])
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_every_field_is_described():
    assert first_column("fields") == KNOWN


def test_every_refused_field_is_named():
    assert first_column("refused") == set(ASKS_FOR_NOTHING)


def test_the_wish_is_described_and_is_the_services():
    assert first_column("speculation") == SpeculationWish.model_fields.keys()
    assert {field.name for field in fields(Speculation)} | {"stats"} == set(
        SpeculationWish.model_fields
    )


def test_every_field_of_the_library_can_be_sent():
    beyond = {"stop_rule", "logits_processors"}  # functions
    under_other_names = {"grammar": {"response_format", "regex", "choice"}}
    for field in fields(SamplingParams):
        if field.name not in beyond:
            assert under_other_names.get(field.name, {field.name}) <= KNOWN, field.name
