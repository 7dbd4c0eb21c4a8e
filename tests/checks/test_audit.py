"""The audit passes lossless pairs, names near-ties, and fails what is wrong anywhere."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from draftproof.api import Speculator
from draftproof.checks.audit import ERROR_RATE, audit
from draftproof.checks.prompts import AUDIT_PROMPTS
from draftproof.config import EngineSettings
from draftproof.core import TargetOutput
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.recycling import RecyclingDrafter
from draftproof.drafters.shared import SharedCacheDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.errors import InvalidSetting
from draftproof.models.hf import HFModel
from draftproof.models.toy import ToyModel, random_law
from draftproof.verification.tokenwise import Tokenwise
from tests import tiny
from tests.toys import ResampleFromTarget, Scripted, remembered

pytest.importorskip("scipy")

PROMPTS = {"a": tiny.prompt(5, seed=1), "b": tiny.prompt(9, seed=2), "c": tiny.prompt(1, seed=3)}
SMALL = {"prompts": PROMPTS, "max_tokens": 16, "samples": 32}
QUICK = {**SMALL, "samples": 1}

V = 6
TARGET = remembered(random_law(V, seed=11))
TOY = {"prompts": {"a": [1, 2], "b": [3]}, "max_tokens": 16, "samples": 1}


def toy(verifier=None, drafter=None, target=TARGET, **settings):
    drafter = drafter or ModelDrafter(ToyModel(remembered(random_law(V, seed=12)), V), V, 4)
    target = ToyModel(target, V, settings.pop("max_positions", None))
    settings = EngineSettings(**settings)
    return Speculator(target, drafter, verifier=verifier, settings=settings)


def decoder(dtype=torch.float64):
    """A tiny Llama that is less sure of itself, so that drafts get rejected."""
    model = tiny.tiny_model("llama", dtype=dtype)
    model.lm_head.weight.data *= 0.5
    return model


@pytest.fixture(scope="module")
def target():
    return HFModel(decoder(), "tiny")


def failed(result):
    return {name for name, held in result.checks.items() if not held}


# Lossless pairs -----------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["self-int8", "ngram", "early-exit:1", "model", "none"])
def test_a_lossless_pair_passes(target, drafter):
    result = audit(tiny.speculator(target, drafter), **SMALL)
    assert failed(result) == set()
    assert result.passed
    assert all(row.differences == () for row in result.comparisons)
    assert {(row.prompt, row.mode) for row in result.comparisons} == {
        (name, mode) for name in PROMPTS for mode in ("greedy", "seeded")
    }
    drafts = [row.acceptance_rate is not None for row in result.comparisons]
    assert any(drafts) == (drafter != "none")


@pytest.mark.parametrize("verifier", ["tokenwise", "blockwise", "coupled"])
def test_the_rules_of_the_pair_are_the_ones_that_are_tested(verifier):
    result = audit(toy(verifier), **TOY)
    assert failed(result) == {"wrong rules are caught"}  # one text shows no wrong rule
    assert result.rules == {"greedy": "greedy", "seeded": "coupled", "sampled": verifier}


def test_a_target_with_little_room_is_audited_on_the_ends_of_the_prompts():
    few = {"prompts": {"long": [1, 2] * 30}, "max_tokens": 15, "samples": 2}
    result = audit(toy(max_positions=20, depth=0), **few)
    assert failed(result) <= {"wrong rules are caught"}  # two texts show no wrong rule
    assert all(row.num_tokens == 15 for row in result.comparisons)


def test_too_few_samples_to_see_a_wrong_rule_are_no_proof():
    result = audit(toy(), **TOY)
    assert failed(result) == {"wrong rules are caught"}
    assert not result.passed


def test_the_audit_repeats_itself():
    first, second = (audit(toy(), **TOY) for _ in range(2))
    assert first.distribution == second.distribution
    assert first.controls == second.controls


# What is wrong ------------------------------------------------------------------------------


class NamedTokenwise(ResampleFromTarget):
    """Wrong, under a name that is right."""


def test_a_wrong_rule_fails_by_enumeration_and_in_the_pipeline():
    sharp = ModelDrafter(ToyModel(_sharpened, V), V, 4)
    result = audit(toy(NamedTokenwise(), sharp), **{**TOY, "samples": 32})
    assert failed(result) >= {"rules are exact", "distribution is the target's"}
    assert result.rules["sampled"] == Tokenwise.name
    assert not result.passed


def _sharpened(prefix):
    weights = [chance**3 for chance in TARGET(prefix)]
    return [weight / sum(weights) for weight in weights]


@dataclass
class Corrupted:
    """A target that adds noise of a size to the logits of all columns but the anchor's."""

    model: HFModel
    noise: float

    def __getattr__(self, name):
        return getattr(self.model, name)

    def forward(self, batch, cache, columns=None):
        logits = self.model.forward(batch, cache, columns).logits
        generator = torch.Generator().manual_seed(int(batch.tokens.sum()))
        added = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
        added[:, 0] = 0
        return TargetOutput(logits + (self.noise * added).to(logits.dtype))


def corrupted(noise, model):
    return Speculator(Corrupted(model, noise), SharedCacheDrafter("shared", model))


def test_a_corrupted_verification_pass_is_no_near_tie(target):
    result = audit(corrupted(0.5, target), **QUICK)
    assert {"greedy equals plain", "seeded equals plain"} <= failed(result)
    real = [d for row in result.comparisons for d in row.differences if not d.is_near_tie]
    assert real
    assert all(difference.gap > difference.tolerance for difference in real)


def test_the_same_harness_without_corruption_passes(target):
    assert failed(audit(corrupted(0.0, target), **QUICK)) == {"wrong rules are caught"}


def test_rounding_that_decides_a_tie_is_named_with_its_gap_and_what_follows_is_compared():
    """Two tokens share a row of the head up to 1e-6, so noise of 1e-5 decides between them."""
    model = decoder(torch.float32)
    head = model.lm_head.weight.data
    head[1:96:2] = head[0:96:2] * (1 - 1e-7)
    result = audit(corrupted(1e-5, HFModel(model, "tied")), **QUICK)
    ties = [d for row in result.comparisons for d in row.differences]
    assert ties
    assert all(tie.is_near_tie and tie.gap < 1e-4 for tie in ties)
    assert not failed(result) & {"greedy equals plain", "seeded equals plain"}
    # Behind a tie that went the other way the texts differ, and are compared all the same.
    assert any(len(row.differences) > 1 for row in result.comparisons)


def test_a_poor_drafter_does_not_hide_that_the_test_can_see():
    """Drafts that are never right leave wrong rules nearly right; the controls draft their own."""
    hopeless = Scripted(lambda tokens: [min(range(V), key=TARGET(tokens).__getitem__)])
    result = audit(toy(drafter=hopeless), **{**TOY, "samples": 48})
    assert result.passed
    assert all(control.caught for control in result.controls)


# Reports ------------------------------------------------------------------------------------


def test_the_report_is_json_with_every_number_finite(target):
    result = audit(corrupted(0.5, target), **QUICK)
    report = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert report["passed"] is False
    assert report["checks"] == result.checks
    assert report["distribution"]["error_rate"] == ERROR_RATE
    rows = report["comparisons"]
    assert any(not difference["near_tie"] for row in rows for difference in row["differences"])
    assert all(row["passed"] == all(d["near_tie"] for d in row["differences"]) for row in rows)


def test_progress_goes_up_to_the_end_of_every_stage():
    seen = {}
    audit(toy(), **TOY, progress=lambda *news: seen.setdefault(news[0], []).append(news[1:]))
    assert len(seen) == 5
    for news in seen.values():
        done = [count for count, _ in news]
        assert done == sorted(done)
        assert news[-1][0] == news[-1][1]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"prompts": {}}, "no prompts"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"samples": 0}, "samples"),
    ],
)
def test_an_audit_of_nothing_is_refused(wrong, named):
    with pytest.raises(InvalidSetting, match=named):
        audit(toy(), **{**TOY, **wrong})


def test_a_target_without_room_is_refused():
    with pytest.raises(InvalidSetting, match="at most 9"):
        audit(toy(max_positions=10), **TOY)


def test_the_prompts_cover_what_breaks_decoders():
    assert {"short", "long", "repetitive", "code"} <= AUDIT_PROMPTS.keys()
    assert len(set(AUDIT_PROMPTS.values())) == len(AUDIT_PROMPTS)
    assert len(AUDIT_PROMPTS["long"]) > 20 * len(AUDIT_PROMPTS["question"])
    assert all(not text.isascii() for text in map(AUDIT_PROMPTS.get, ("accents", "cjk", "emoji")))


# Every kind of drafter ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "drafter", [SuffixDrafter(), RecyclingDrafter(V)], ids=["suffix", "recycling"]
)
def test_a_drafter_that_remembers_other_requests_is_audited_too(drafter):
    result = audit(toy(drafter=drafter), **{**TOY, "samples": 8})
    # Eight samples are too few to catch every wrong rule, and that is all that may fail.
    assert failed(result) <= {"wrong rules are caught"}


def test_the_rule_for_trees_is_audited_where_drafts_are_wide():
    result = audit(toy(depth=3, width=2), **{**TOY, "samples": 8})
    assert result.rules["sampled"] == "traversal"
    assert failed(result) <= {"wrong rules are caught"}
