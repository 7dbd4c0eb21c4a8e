"""The losslessness audit a user runs on their own pair."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from draftproof.api import Speculator
from draftproof.checks.control import (
    CONTROL_DEPTH,
    CONTROL_SHARPNESS,
    WRONG_RULES,
    ControlDrafter,
)
from draftproof.checks.difference import Difference, first_difference
from draftproof.checks.exact import max_deviation
from draftproof.checks.prompts import AUDIT_PROMPTS
from draftproof.checks.statistics import Fit
from draftproof.checks.uniformity import token_fit
from draftproof.config import Depth
from draftproof.drafters.base import Drafter
from draftproof.engine.prompt import Prompt
from draftproof.errors import InvalidSetting
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp
from draftproof.verification.base import Verifier
from draftproof.verification.registry import choose

ERROR_RATE = 1e-4
EXACTNESS = 1e-12
_SEED = 20240229
_LAW_PROMPT = 64
"""Tokens of a prompt that the tests of the law read; many texts of long prompts would take long."""

Mode = Literal["greedy", "seeded"]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt, decoded plainly and with drafts."""

    prompt: str
    mode: Mode
    num_tokens: int
    acceptance_rate: float | None
    differences: tuple[Difference, ...]
    """Near-ties, behind which the comparison went on, and at most one real difference at last."""

    @property
    def passed(self) -> bool:
        return all(difference.is_near_tie for difference in self.differences)


@dataclass(frozen=True, slots=True)
class Control:
    """A rule that is wrong on purpose, put to the tests that the real rules have to pass."""

    rule: str
    deviation: float
    """Its error over random toy pairs, by exact enumeration."""
    distribution: Fit
    """Its tokens against the target's law, drafted by `ControlDrafter`."""

    @property
    def caught(self) -> bool:
        return self.deviation > EXACTNESS and not self.distribution.passed


@dataclass(frozen=True, slots=True)
class Audit:
    """Evidence and verdict."""

    target: str
    drafter: str
    depth: Depth
    rules: dict[str, str]
    """Rule by kind of request: greedy, seeded, sampled."""
    comparisons: tuple[Comparison, ...]
    rule_deviation: float
    """Largest error of these rules over random toy pairs, by exact enumeration."""
    distribution: Fit
    """Tokens of the pair against the target's own law at temperature 1."""
    controls: tuple[Control, ...]
    seconds: float

    @property
    def checks(self) -> dict[str, bool]:
        """Each check by name; all must hold."""
        return {
            "greedy equals plain": all(c.passed for c in self.comparisons if c.mode == "greedy"),
            "seeded equals plain": all(c.passed for c in self.comparisons if c.mode == "seeded"),
            "rules are exact": self.rule_deviation <= EXACTNESS,
            "distribution is the target's": self.distribution.passed,
            "wrong rules are caught": all(control.caught for control in self.controls),
        }

    @property
    def passed(self) -> bool:
        return all(self.checks.values())

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; numbers that are not finite become None."""
        comparisons = []
        for one in self.comparisons:
            differences = [d.as_dict() for d in one.differences]
            comparisons.append(asdict(one) | {"differences": differences, "passed": one.passed})
        controls = [
            asdict(control)
            | {"distribution": _fit_as_dict(control.distribution), "caught": control.caught}
            for control in self.controls
        ]
        return asdict(self) | {
            "comparisons": comparisons,
            "distribution": _fit_as_dict(self.distribution),
            "controls": controls,
            "checks": self.checks,
            "passed": self.passed,
        }


_DEPTH = 4


def audit(
    speculator: Speculator,
    *,
    prompts: Mapping[str, Prompt] = AUDIT_PROMPTS,
    max_tokens: int = 32,
    samples: int = 48,
    progress: Progress = lambda _stage, _done, _total: None,
) -> Audit:
    """Compare with plain decoding prompt by prompt, then test the law of sampled tokens.

    `samples` texts of `max_tokens` tokens go into each distribution test. `progress` is called
    with a stage, how much of it is done, and how much there is.
    """
    start = time.perf_counter()
    if speculator.settings.depth == "auto":
        # An audit needs drafts, and a controller may find that plain decoding is faster.
        speculator = _with_rule(speculator, speculator.verifier, depth=_DEPTH)
    _check(prompts, max_tokens, samples)
    ids = {name: _within(speculator, prompt, max_tokens) for name, prompt in prompts.items()}
    comparisons = _compare_all(speculator, ids, max_tokens, progress)
    ends = tuple(prompt[-_LAW_PROMPT:] for prompt in ids.values())
    test = _LawTest(ends, max_tokens, samples, progress)
    rules = _rules(speculator)
    distribution = test.fit("distribution", _with_rule(speculator, rules["sampled"]))
    return Audit(
        target=speculator.target.name,
        drafter=speculator.drafter.name,
        depth=speculator.settings.depth,
        rules={kind: rule.name for kind, rule in rules.items()},
        comparisons=comparisons,
        rule_deviation=max(float(max_deviation(rule)) for rule in rules.values()),
        distribution=distribution,
        controls=tuple(test.control(speculator, rule) for rule in WRONG_RULES),
        seconds=time.perf_counter() - start,
    )


@dataclass(frozen=True, slots=True)
class _LawTest:
    """The same test for the pair and for rules that are wrong on purpose."""

    prompts: tuple[list[int], ...]
    max_tokens: int
    samples: int
    progress: Progress

    @property
    def params(self) -> SamplingParams:
        # End tokens are not obeyed, so that the number of tokens does not depend on what is drawn.
        return SamplingParams(
            temperature=1.0, max_tokens=self.max_tokens, seed=_SEED, ignore_eos=True
        )

    def fit(self, stage: str, judged: Speculator) -> Fit:
        report = partial(self.progress, stage)
        return token_fit(judged, self.prompts, self.params, self.samples, ERROR_RATE, report)

    def control(self, speculator: Speculator, rule: Verifier) -> Control:
        sharper = replace(self.params, temperature=1 / CONTROL_SHARPNESS)
        warp = Warp(sharper, prompt_length=0, num_tokens=speculator.num_tokens)
        drafter = ControlDrafter(speculator.target, warp)
        judged = _with_rule(speculator, rule, drafter, CONTROL_DEPTH)
        fit = self.fit(f"control: {rule.name}", judged)
        return Control(rule.name, float(max_deviation(rule)), fit)


def _check(prompts: Mapping[str, Prompt], max_tokens: int, samples: int) -> None:
    if not prompts:
        raise InvalidSetting("the audit was given no prompts; give at least one")
    for name, value, least in (("max_tokens", max_tokens, 2), ("samples", samples, 1)):
        if value < least:
            raise InvalidSetting(f"{name} of the audit is {value}; give at least {least}")


def _within(speculator: Speculator, prompt: Prompt, max_tokens: int) -> list[int]:
    """The prompt's ids; of one that is too long for the target, the end that fits."""
    ids = speculator.encode(prompt)
    limit = speculator.target.max_positions
    if limit is None:
        return ids
    if limit <= max_tokens:
        raise InvalidSetting(
            f"max_tokens of the audit is {max_tokens} and {speculator.target.name} reads at most "
            f"{limit} tokens; give at most {limit - 1}"
        )
    return ids[-(limit - max_tokens) :]


def _rules(speculator: Speculator) -> dict[str, Verifier]:
    """The rule that the pair uses for each kind of request; seeded ones equal plain decoding."""
    wanted = {
        "greedy": (SamplingParams(), None),
        "seeded": (SamplingParams(temperature=1.0, seed=_SEED), None),
        "sampled": (SamplingParams(temperature=1.0), speculator.verifier),
    }
    drafter, width = speculator.drafter, speculator.width
    return {
        kind: choose(drafter.proposals, drafter.name, params, verifier, width).verifier
        for kind, (params, verifier) in wanted.items()
    }


def _compare_all(
    speculator: Speculator, prompts: Mapping[str, list[int]], max_tokens: int, progress: Progress
) -> tuple[Comparison, ...]:
    comparisons = []
    greedy = SamplingParams(max_tokens=max_tokens)
    seeded = replace(greedy, temperature=1.0, seed=_SEED)
    modes: tuple[tuple[Mode, SamplingParams], ...] = (("greedy", greedy), ("seeded", seeded))
    for mode, params in modes:
        judged = _with_rule(speculator, None)
        for done, (name, ids) in enumerate(prompts.items(), start=1):
            drafted = judged.generate(ids, params)
            rate = drafted.stats.acceptance_rate
            differences = _differences(judged, ids, drafted.token_ids, params)
            count = len(drafted.token_ids)
            comparisons.append(Comparison(name, mode, count, rate, differences))
            progress(f"{mode} equality", done, len(prompts))
    return tuple(comparisons)


def _differences(
    speculator: Speculator, prompt: list[int], found: tuple[int, ...], params: SamplingParams
) -> tuple[Difference, ...]:
    """Where `found` leaves plain decoding; behind a near-tie, plain decoding starts over."""
    differences: list[Difference] = []
    kept = 0
    while kept < len(found) or not differences:
        ids = [*prompt, *found[:kept]]
        left = replace(params, max_tokens=params.max_tokens - kept)
        plain = speculator.plain(ids, left).token_ids
        difference = first_difference(
            speculator.target, ids, plain, found[kept:], left, speculator.num_tokens
        )
        if difference is None:
            break
        differences.append(replace(difference, position=kept + difference.position))
        if not difference.is_near_tie:
            break
        kept = differences[-1].position + 1
    return tuple(differences)


def _with_rule(
    speculator: Speculator,
    rule: str | Verifier | None,
    drafter: Drafter | None = None,
    depth: int | None = None,
) -> Speculator:
    """The same target, judged by `rule`, with the drafter and depth given or its own."""
    settings = speculator.settings
    if depth is not None:
        settings = replace(settings, depth=depth, width=1, tree=None)
    return Speculator(
        speculator.target,
        drafter or speculator.drafter,
        tokenizer=speculator.tokenizer,
        end_ids=speculator.end_ids,
        verifier=rule,
        settings=settings,
    )


def _fit_as_dict(fit: Fit) -> dict[str, Any]:
    finite = fit.statistic if math.isfinite(fit.statistic) else None
    return asdict(fit) | {"statistic": finite, "passed": fit.passed}
