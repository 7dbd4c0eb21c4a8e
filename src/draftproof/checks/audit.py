"""The losslessness audit a user runs on their own pair."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from draftproof.api import Speculator
from draftproof.checks.control import FullRedraw
from draftproof.checks.difference import Difference, first_difference
from draftproof.checks.exact import max_deviation
from draftproof.checks.prompts import AUDIT_PROMPTS
from draftproof.checks.statistics import Fit
from draftproof.checks.uniformity import token_fit
from draftproof.sampling.params import SamplingParams
from draftproof.verification.base import Verifier
from draftproof.verification.registry import choose

ERROR_RATE = 1e-4
EXACTNESS = 1e-12
_SEED = 20240229

Mode = Literal["greedy", "seeded"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt, decoded plainly and with drafts."""

    prompt: str
    mode: Mode
    num_tokens: int
    acceptance_rate: float | None
    difference: Difference | None

    @property
    def passed(self) -> bool:
        return self.difference is None or self.difference.is_near_tie


@dataclass(frozen=True, slots=True)
class Audit:
    """Evidence and verdict."""

    target: str
    drafter: str
    depth: int
    rule: str
    """The rule that judged the distribution test's drafts."""
    comparisons: tuple[Comparison, ...]
    rule_deviation: float
    """Largest error of the rule over random toy pairs, by exact enumeration."""
    distribution: Fit
    """Emitted tokens against the target's own law at temperature 1."""
    control: Fit
    """The same test on a deliberately wrong rule, which it has to reject."""
    seconds: float

    @property
    def checks(self) -> dict[str, bool]:
        """Each check by name; all must hold."""
        return {
            "greedy equals plain": all(c.passed for c in self.comparisons if c.mode == "greedy"),
            "seeded equals plain": all(c.passed for c in self.comparisons if c.mode == "seeded"),
            "rule is exact": self.rule_deviation <= EXACTNESS,
            "distribution is the target's": self.distribution.passed,
            "wrong rule is caught": not self.control.passed,
        }

    @property
    def passed(self) -> bool:
        return all(self.checks.values())

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        comparisons = []
        for comparison in self.comparisons:
            row = asdict(comparison) | {"passed": comparison.passed}
            if comparison.difference is not None:
                row["difference"]["near_tie"] = comparison.difference.is_near_tie
            comparisons.append(row)
        return asdict(self) | {
            "comparisons": comparisons,
            "checks": self.checks,
            "passed": self.passed,
        }


def audit(
    speculator: Speculator,
    *,
    prompts: Mapping[str, str] = AUDIT_PROMPTS,
    max_tokens: int = 32,
    samples: int = 48,
    progress: Callable[[str, int, int], None] = lambda _stage, _done, _total: None,
) -> Audit:
    """Compare with plain decoding prompt by prompt, then test the law of sampled tokens.

    `samples` texts of `max_tokens` tokens go into each distribution test. `progress` is called
    with a stage, and how much of it is done.
    """
    start = time.perf_counter()
    comparisons = []
    for mode in ("greedy", "seeded"):
        for done, (name, prompt) in enumerate(prompts.items()):
            progress(f"{mode} equality", done, len(prompts))
            comparisons.append(_compare(speculator, name, prompt, mode, max_tokens))
    # End tokens are not obeyed, so that the number of tokens does not depend on what was drawn.
    sampled = SamplingParams(temperature=1.0, max_tokens=max_tokens, seed=_SEED, ignore_eos=True)
    drafter = speculator.drafter
    rule = choose(
        drafter.proposals, drafter.name, replace(sampled, seed=None), speculator.verifier
    ).verifier.name
    ids = [speculator.encode(prompt) for prompt in prompts.values()]
    fits = []
    for stage, verifier in (("distribution", rule), ("negative control", FullRedraw())):
        progress(stage, 0, samples)
        judged = _with_rule(speculator, verifier)
        fits.append(token_fit(judged, ids, sampled, samples, ERROR_RATE, partial(progress, stage)))
    return Audit(
        target=speculator.target.name,
        drafter=drafter.name,
        depth=speculator.settings.depth,
        rule=rule,
        comparisons=tuple(comparisons),
        rule_deviation=max_deviation(rule),
        distribution=fits[0],
        control=fits[1],
        seconds=time.perf_counter() - start,
    )


def _compare(
    speculator: Speculator, name: str, prompt: str, mode: Mode, max_tokens: int
) -> Comparison:
    params = SamplingParams(max_tokens=max_tokens)
    judged = speculator
    if mode == "seeded":
        params = replace(params, temperature=1.0, seed=_SEED)
        judged = _with_rule(speculator, "coupled")
    plain = judged.plain(prompt, params)
    drafted = judged.generate(prompt, params)
    difference = first_difference(
        speculator.target,
        plain.prompt_token_ids,
        plain.token_ids,
        drafted.token_ids,
        params,
        speculator.num_tokens,
    )
    rate = drafted.stats.acceptance_rate
    return Comparison(name, mode, len(plain.token_ids), rate, difference)


def _with_rule(speculator: Speculator, rule: str | Verifier) -> Speculator:
    """The same pair, judged by `rule`."""
    return Speculator(
        speculator.target,
        speculator.drafter,
        tokenizer=speculator.tokenizer,
        end_ids=speculator.end_ids,
        verifier=rule,
        settings=speculator.settings,
    )
