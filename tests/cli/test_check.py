"""`draftproof check`: verdict, exit code and report."""

from __future__ import annotations

import json

import pytest

from draftproof.checks import audit as audit_module
from draftproof.checks.audit import ERROR_RATE
from draftproof.verification.registry import VERIFIERS
from tests.toys import ResampleFromTarget

pytest.importorskip("scipy")

# Texts are short: whether a test of so few tokens sees a wrong rule is not the question here.
SMALL = ("--dtype", "float64", "--max-tokens", "8", "--samples", "4")
PROMPTS = {"short": "x", "words": "hello hello", "accents": "Où ?"}


@pytest.fixture
def check(call, folder, monkeypatch):
    audit = audit_module.audit

    def on_few_prompts(speculator, **others):
        return audit(speculator, prompts=PROMPTS, **others)

    monkeypatch.setattr(audit_module, "audit", on_few_prompts)
    return lambda *arguments: call("check", "--target", folder, *SMALL, *arguments)


@pytest.fixture
def lossless(check):
    """Enough texts for every check to hold."""
    return lambda *arguments: check("--max-tokens", "16", "--samples", "64", *arguments)


def test_a_lossless_pair_passes_with_its_numbers_stated(lossless):
    result = lossless("--drafter", "early-exit:1")
    assert result.code == 0, result.out
    assert result.err == ""
    for words in (*PROMPTS, "identical", "p-value", f"fails below {ERROR_RATE:g}", "lossless"):
        assert words in result.out, words
    assert "FAIL" not in result.out
    assert "\x1b" not in result.out, "colours are for terminals"


def test_json_is_the_audit_and_nothing_else(lossless):
    result = lossless("--drafter", "self-int8", "--json")
    assert (result.code, result.err) == (0, "")
    report = json.loads(result.out)
    assert report["passed"] is True
    assert report["drafter"] == "self-int8"
    assert set(report["checks"].values()) == {True}
    assert report["distribution"]["error_rate"] == ERROR_RATE


def test_too_few_samples_are_no_proof_and_the_remedy_is_named(check):
    result = check("--drafter", "none")
    assert result.code == 1
    assert "FAIL  wrong rules are caught" in result.out
    assert "raise --samples" in result.out


def test_quiet_says_it_with_the_exit_code(check):
    result = check("--drafter", "none", "--quiet")
    assert (result.code, result.out, result.err) == (1, "", "")


class WrongTokenwise(ResampleFromTarget):
    """A rule that corrects from all of p, in the place of the right one."""


def test_a_wrong_rule_fails_with_exit_code_1(check, monkeypatch):
    monkeypatch.setitem(VERIFIERS, "tokenwise", WrongTokenwise())
    options = ("--drafter", "early-exit:1", "--verifier", "tokenwise")
    result = check(*options)
    assert result.code == 1
    assert "FAIL  rules are exact" in result.out
    assert "NOT shown to be lossless" in result.out
    report = json.loads(check(*options, "--json").out)
    assert report["passed"] is False
    assert report["rule_deviation"] > 0.01
    monkeypatch.undo()


def test_the_same_rule_done_right_is_exact(check):
    report = json.loads(check("--drafter", "early-exit:1", "--verifier", "tokenwise", "--json").out)
    assert report["checks"]["rules are exact"]
    assert report["rules"]["sampled"] == "tokenwise"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (("--samples", "0"), "samples of the audit is 0"),
        (("--max-tokens", "1"), "max_tokens of the audit is 1"),
        (("--max-tokens", "600"), "reads at most 512"),
        (("--drafter", "magic"), "drafter is 'magic'"),
        (("--verifier", "typical"), "verifier is 'typical'"),
        (("--depth", "65"), "depth is 65"),
        (("--samples", "few"), "--samples"),
        (("unexpected",), "unexpected"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(check, line, named):
    result = check(*line)
    assert (result.code, result.out) == (2, "")
    assert named in result.err
    assert result.err.startswith("draftproof: ")
    assert result.err.count("\n") == 1
