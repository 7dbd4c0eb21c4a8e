"""A tiny saved model, a hand-made result, and decoders that only count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftproof.bench.machine import Machine
from draftproof.bench.matrix import OURS, PLAIN, Cell, Matrix
from draftproof.bench.record import Record
from draftproof.bench.session import Result, Settings
from draftproof.bench.summary import categories, summarise
from draftproof.bench.workloads import Item, Selection, Task
from tests.test_api import tokenizer
from tests.tiny import tiny_model

PLAIN_CELL = Cell(PLAIN, None, None, 0.0, 1)
OUR_CELL = Cell(OURS, "ngram", 4, 0.0, 1, 1)
PEER_CELL = Cell("transformers", None, None, 0.0, 1)


def matrix(**changes) -> Matrix:
    fields = {
        "drafters": ("ngram",),
        "depths": (4,),
        "temperatures": (0.0,),
        "batches": (1,),
        "peers": ("transformers",),
    }
    return Matrix(**(fields | changes))


def record(cell: Cell, group: int = 0, rate: float = 10.0, **changes) -> Record:
    """Ten tokens, decoded at `rate` tokens per second behind a prompt read in one second."""
    made = Record(
        cell=cell,
        id=f"item-{group}",
        category="chat",
        repeat=0,
        group=group,
        seed=0,
        prompt_ids=(1, 2),
        token_ids=tuple(range(10)),
        decode_tokens=10,
        decode_s=10 / rate,
        total_s=1 + 10 / rate,
        peak_bytes=1 << 20,
        exactness="reference" if cell.system == PLAIN else "identical",
    )
    return replace(made, **changes)


def task(name: str, category: str = "chat") -> Task:
    return Task(Item(name, category, ({"role": "user", "content": name},)), (1, 2, 3))


def result(records: list[Record], settings: Settings) -> Result:
    machine = Machine("A processor", 2, 1, 1 << 30, 10.0, "cpu", "3.11", {"torch": "2"})
    by_category = [
        row for name in categories(records) for row in summarise(settings.matrix, records, name)
    ]
    return Result(
        settings=settings,
        target="tiny",
        dtype="float32",
        selection=Selection("prompts.jsonl", (task("one"),), 3, 4),
        machine=machine,
        rows=tuple(summarise(settings.matrix, records)),
        rows_by_category=tuple(by_category),
        seconds=1.0,
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose generation settings would end and penalise texts."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    model = tiny_model("llama", max_position_embeddings=512)
    model.generation_config.eos_token_id = list(range(3, 60))
    model.generation_config.repetition_penalty = 9.0
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path
