"""Interleaving, warm-up, filling up of batches, and what is kept of a run that is cut short."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from draftproof.bench.matrix import PLAIN
from draftproof.bench.runner import WARM_UP_TOKENS, Schedule, run
from draftproof.errors import InvalidSetting
from draftproof.models.toy import ToyModel
from tests.bench.conftest import matrix, record, task
from tests.toys import constant_law

TEXT = (0,) * 10


class Decoders:
    """Writes down what is asked, and answers the same text; `fails_at` calls later it breaks."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.plain = SimpleNamespace(target=ToyModel(constant_law(0.6, 0.4), 2), num_tokens=2)
        self.calls = []
        self._fails_at = fails_at

    def run(self, cell, group, max_tokens):
        self.calls.append((cell.label, group, max_tokens))
        if len(self.calls) == self._fails_at:
            raise KeyboardInterrupt
        return [
            record(cell, group.number, repeat=group.repeat, token_ids=TEXT, exactness=None)
            for _ in group.tasks
        ]


def schedule(prompts=3, repeats=1, seed=0, **changes):
    tasks = tuple(task(f"p{i}") for i in range(prompts))
    return Schedule(matrix(**changes), tasks, max_tokens=20, repeats=repeats, seed=seed)


def ran(plan, decoders=None):
    decoders, written = decoders or Decoders(), []
    records = run(decoders, plan, written.append, lambda *_: None)
    assert records == written
    warm = len(list(plan.warm_ups()))
    return decoders.calls[:warm], decoders.calls[warm:], records


def test_every_cell_is_warmed_up_briefly_before_anything_counts():
    warm, measured, records = ran(schedule())
    assert [label for label, *_ in warm] == ["plain", "ngram, depth 4", "transformers"]
    assert {tokens for *_, tokens in warm} == {WARM_UP_TOKENS}
    assert {tokens for *_, tokens in measured} == {20}
    assert len(records) == len(measured)


def test_each_prompt_meets_every_cell_in_turn_and_each_cell_is_first_sometimes():
    _, measured, _ = ran(schedule(prompts=3, repeats=2))
    turns = [measured[i : i + 3] for i in range(0, len(measured), 3)]
    for turn in turns:
        assert {label for label, *_ in turn} == {"plain", "ngram, depth 4", "transformers"}
        assert len({(group.number, group.repeat) for _, group, _ in turn}) == 1
    firsts = Counter(turn[0][0] for turn in turns)
    assert set(firsts.values()) == {2}


def test_all_is_compared_with_plain_decoding_whoever_came_first():
    _, _, records = ran(schedule())
    verdicts = {(r.cell.system == PLAIN, r.exactness) for r in records}
    assert verdicts == {(True, "reference"), (False, "identical")}


def test_the_last_batch_is_filled_up_from_the_first_prompts():
    _, measured, _ = ran(schedule(prompts=3, batches=(2,)))
    names = {tuple(t.item.id for t in group.tasks) for _, group, _ in measured}
    assert names == {("p0", "p1"), ("p2", "p0")}


def test_a_seed_belongs_to_a_prompt():
    _, measured, _ = ran(schedule(prompts=3, repeats=2, batches=(1, 2), seed=2**64 - 1))
    seeds = {
        (prompt.item.id, seed)
        for _, group, _ in measured
        for prompt, seed in zip(group.tasks, group.seeds, strict=True)
    }
    assert seeds == {("p0", 2**64 - 1), ("p1", 0), ("p2", 1)}


def test_peers_that_cannot_take_part_are_not_asked():
    _, measured, _ = ran(schedule(batches=(1, 2), peers=("transformers-lookup",)))
    sizes = {len(group.tasks) for label, group, _ in measured if label == "transformers-lookup"}
    assert sizes == {1}


def test_what_was_measured_before_an_interruption_is_kept():
    """The second turn starts with drafts, so their text has nothing to be compared with yet."""
    plan, written = schedule(), []
    with pytest.raises(KeyboardInterrupt):
        run(Decoders(fails_at=3 + 3 + 2), plan, written.append, lambda *_: None)
    assert len(written) == 4
    assert written[-1].exactness is None
    assert None not in {record.exactness for record in written[:-1]}


def test_a_batch_larger_than_all_prompts_is_refused():
    with pytest.raises(InvalidSetting, match="batch is 4 and there are 3 prompts"):
        schedule(prompts=3, batches=(1, 4))
