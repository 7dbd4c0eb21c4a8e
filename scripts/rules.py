"""Two rules on the same drafts of a real pair, at temperature 1.

    python scripts/rules.py --target BIG --drafter model:SMALL --rules tokenwise blockwise
    python scripts/rules.py --target BIG --drafter model:SMALL --rules tree traversal --width 3

Every draft that comes up is judged by both rules with the same random numbers, many times over; one
of the verdicts of the first rule is committed. A line a text, then the mean difference of accepted
tokens a draft with its 95 % interval over texts.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from scipy import stats

from draftproof import EngineSettings, SamplingParams, Speculator
from draftproof.bench.workloads import read_items
from draftproof.sampling.noise import KeyedNoise
from draftproof.verification.registry import VERIFIERS

_LEAST = 1e-7


def possible(draft, p):
    """The draft and p with only those tokens that either model may take, a few of the vocabulary;
    what is left out is too little to be seen here, and judging is many times as fast."""
    may = (p > _LEAST).any(dim=0)
    if draft.q is not None:
        may |= (draft.q > _LEAST).any(dim=0)
    may[list(draft.tokens)] = True
    ids = may.nonzero().flatten()
    place = {id_: i for i, id_ in enumerate(ids.tolist())}
    q = None if draft.q is None else draft.q[:, ids]
    return replace(draft, tokens=tuple(place[token] for token in draft.tokens), q=q), p[:, ids]


class Both:
    """Decides as the first rule does, and counts what either accepts."""

    greedy = keyed = False

    def __init__(self, names, seeds):
        self.rules = [VERIFIERS[name] for name in names]
        self.name, self.seeds = "both", seeds
        self.accepts = self.rules[0].accepts & self.rules[1].accepts
        self.trees = all(rule.trees for rule in self.rules)
        self.means = []

    def verify(self, draft, p, position, noise):
        if draft.tokens:
            few, laws = possible(draft, p)
            noises = [KeyedNoise((1 << 20) + seed) for seed in range(self.seeds)]
            self.means.append(
                [
                    statistics.fmean(
                        len(rule.verify(few, laws.clone(), position, noise).accepted)
                        for noise in noises
                    )
                    for rule in self.rules
                ]
            )
        return self.rules[0].verify(draft, p, position, noise)


def interval(differences):
    """(mean, low, high) at 95 %."""
    mean = statistics.fmean(differences)
    error = stats.sem(differences) * stats.t.ppf(0.975, len(differences) - 1)
    return [round(float(one), 4) for one in (mean, mean - error, mean + error)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--rules", nargs=2, required=True, choices=sorted(VERIFIERS))
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=48)
    options = parser.parse_args()
    both = Both(options.rules, options.seeds)
    settings = EngineSettings(depth=options.depth, width=options.width, nodes=options.nodes)
    made = Speculator.from_pretrained(
        options.target, options.drafter, verifier=both, settings=settings
    )
    by_category = {}
    for item in read_items(options.prompts):
        by_category.setdefault(item.category, []).append(list(item.messages))
    texts, drafts = [], 0
    for number in range(options.per_category):
        for category, prompts in by_category.items():
            params = SamplingParams(
                max_tokens=options.max_tokens, ignore_eos=True, temperature=1.0, seed=number
            )
            both.means = []
            made.generate(prompts[number], params)
            first, second = (statistics.fmean(one) for one in zip(*both.means, strict=True))
            drafts += len(both.means)
            texts.append((first, second))
            print(
                json.dumps(
                    {
                        "category": category,
                        "drafts": len(both.means),
                        options.rules[0]: round(first, 3),
                        options.rules[1]: round(second, 3),
                    }
                ),
                flush=True,
            )
    print(
        json.dumps(
            {
                "texts": len(texts),
                "drafts": drafts,
                **{
                    name: round(statistics.fmean(one), 3)
                    for name, one in zip(options.rules, zip(*texts, strict=True), strict=True)
                },
                "difference": interval([second - first for first, second in texts]),
            }
        )
    )


if __name__ == "__main__":
    main()
