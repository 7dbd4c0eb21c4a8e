"""Trees on the compiled step, as Llama and Qwen run on a CPU in float32, give plain tokens."""

from __future__ import annotations

import functools
from collections import defaultdict
from contextlib import contextmanager

import pytest
import torch

pytest.importorskip("numba")

from draftproof.api import Speculator
from draftproof.config import EngineSettings, ServiceSettings
from draftproof.drafters.shared import SharedCacheDrafter
from draftproof.engine import loop
from draftproof.models.compiled import CompiledStep
from draftproof.models.hf import HFModel
from draftproof.sampling.params import SamplingParams
from draftproof.service.service import Service
from tests.service.conftest import PATIENCE, Ear, Notes, assert_nothing_is_left
from tests.thicket import Watched
from tests.tiny import prompt, tiny_model

NAMES = ["llama", "qwen2"]


class Passes:
    """Who computed what: the rows of each compiled step's batches; passes of the modules."""

    def __init__(self):
        self.rows, self.by_modules = defaultdict(list), 0


@functools.cache
def models(name):
    """A target in float32 and its int8 copy."""
    target = HFModel(tiny_model(name, dtype=torch.float32), name)
    return target, target.int8_copy()


@pytest.fixture
def passes(monkeypatch, name):
    models(name)  # to make them takes passes of both kinds
    seen, step, modules = Passes(), CompiledStep.__call__, HFModel._by_modules

    def compiled(self, batch, *rest):
        seen.rows[self].append(len(batch.tokens))
        return step(self, batch, *rest)

    def stock(*given):
        seen.by_modules += 1
        return modules(*given)

    monkeypatch.setattr(CompiledStep, "__call__", compiled)
    monkeypatch.setattr(HFModel, "_by_modules", stock)
    return seen


def steps(name):
    """The compiled steps of both."""
    found = {model._step for model in models(name)}
    assert all(isinstance(step, CompiledStep) for step in found)
    assert len(found) == 2
    return found


def system(name, **settings):
    target, copy = models(name)
    settings = EngineSettings(depth=3, width=3, nodes=9, **settings)
    return Speculator(target, SharedCacheDrafter("self-int8", copy), settings=settings)


def continued(text, whole):
    """Which of the `whole` texts begins with `text`."""
    return next(i for i, one in enumerate(whole) if one[: len(text)] == text)


def second_choices(drafts, whole):
    """Kept tokens that were not the drafter's first choice at their place."""
    found = 0
    for text, draft in drafts:
        node = -1
        for token in whole[continued(text, whole)][len(text) :]:
            child = draft.child(node, token)
            if child is None:
                break
            found += child != draft.children(node)[0]
            node = child
    return found


@pytest.mark.parametrize("setting", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 1}])
@pytest.mark.parametrize("name", NAMES)
def test_trees_on_the_compiled_step_give_plain_tokens(passes, name, setting):
    """Three requests of different lengths in two rows: the third joins when the first has ended."""
    alone = system(name, max_batch=2)
    watched = Watched(alone.drafter)
    made = Speculator(alone.target, watched, settings=alone.settings)
    prompts = [prompt(n, seed=n) for n in (5, 23, 12)]
    params = [SamplingParams(max_tokens=n, **setting) for n in (6, 60, 45)]
    outputs = made.generate(prompts, params)
    assert passes.by_modules == 0
    assert {step: max(rows) for step, rows in passes.rows.items()} == dict.fromkeys(steps(name), 2)
    plain = [alone.plain(ids, one).token_ids for ids, one in zip(prompts, params, strict=True)]
    assert [output.token_ids for output in outputs] == plain
    whole = [[*ids, *text] for ids, text in zip(prompts, plain, strict=True)]
    turns = [continued(text, whole) for text, _ in watched.drafts]
    joined = turns.index(2)
    assert 0 in turns[:joined]
    assert 0 not in turns[joined:]
    assert 1 in turns[joined:]
    trees = [draft for _, draft in watched.drafts if draft.depth == 3]
    assert {len(tree.tokens) for tree in trees} == {9}
    assert second_choices(watched.drafts, whole) > 0


# In a service -------------------------------------------------------------------------------

SCARCE = 330
"""Tokens of the cache: three or four rows, each with room for a draft."""


@contextmanager
def serving(made, **limits):
    """(service, notes), running; afterwards nothing may be left of any request."""
    notes = Notes()
    service = Service(made, settings=ServiceSettings(**limits), listener=notes)
    service.start()
    assert service.wait_until_ready(PATIENCE)
    try:
        yield service, notes
        assert service.drain(PATIENCE)
        assert_nothing_is_left(service)
    finally:
        service.close()


def requests():
    """Prompts with one beginning or another; greedy and seeded in turn."""
    beginnings = [prompt(24, seed=90), prompt(16, seed=91)]
    for i in range(10):
        ids = [*beginnings[i % 3 == 0], *prompt(1 + i % 5, seed=i)]
        sampled = {"temperature": 1.0, "seed": i} if i % 2 else {}
        yield ids, SamplingParams(max_tokens=10 + 3 * i, **sampled)


@pytest.mark.parametrize("name", NAMES)
def test_preempted_requests_that_share_a_beginning_give_plain_tokens(monkeypatch, passes, name):
    """In a service whose cache is too small for all of them."""
    monkeypatch.setattr(loop, "_AHEAD", 4)  # rows have to grow, and there is no room for it
    per_token = models(name)[0].cache_bytes_per_token
    made = system(name, max_batch=6, max_cache_bytes=SCARCE * per_token)
    asked, ears = list(requests()), []
    with serving(made, prefill_chunk=4, max_length=96) as (service, notes):
        for ids, params in asked:
            ears.append(Ear())
            service.submit(ids, params, ears[-1])
        found = [ear.wait().tokens() for ear in ears]
    assert passes.by_modules == 0
    assert set(passes.rows) == steps(name)
    assert max(max(rows) for rows in passes.rows.values()) > 1
    assert any(report.preemptions and report.shared_tokens for report in notes.reports)
    assert sum(report.stats.accepted for report in notes.reports) > 50
    assert found == [made.plain(ids, params).token_ids for ids, params in asked]
