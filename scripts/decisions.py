"""How well depth "auto" decides, without the clock's noise.

    python scripts/decisions.py --target /models/some-model --prompts prompts.jsonl \\
        --drafter suffix --drafter hybrid:suffix,self-int8 --drafter wrong:self-int8

Texts are really decoded, and every round is charged what measured cost curves say of its levels
and columns; the controller hears the same seconds. So ratios tell of decisions alone, and other
work on the machine does not matter once the curves are measured. One prompt of each category is
decoded plainly, with fixed depths and with "auto".

`wrong:D` replaces every token of D's drafts by another one: a drafter that is never right.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from draftproof import EngineSettings, SamplingParams, Speculator
from draftproof.bench.workloads import read_items
from draftproof.control.costs import CostBook
from draftproof.core import Proposal
from draftproof.drafters.base import Drafting, fresh, stops_in_doubt
from draftproof.engine import loop
from draftproof.engine.engine import Engine


class Wrong:
    """Another drafter, each of its tokens off by one."""

    def __init__(self, inner):
        self.inner = inner
        self.name = inner.name
        self.proposals = frozenset({Proposal.POINT}) & inner.proposals
        self.stops_in_doubt = stops_in_doubt(inner)

    def fresh(self):
        return Wrong(fresh(self.inner))

    def begin(self, target_cache):
        return WrongDrafting(self.inner.begin(target_cache))


class WrongDrafting(Drafting):
    def __init__(self, inner):
        self.inner = inner
        self.read, self.release, self.move = inner.read, inner.release, inner.move
        self.observe = inner.observe

    def propose(self, contexts, plans):
        drafts = self.inner.propose(contexts, plans)
        return [replace(one, tokens=tuple(t ^ 1 for t in one.tokens)) for one in drafts]


class Charge:
    """Stands in for `run_round`: says what a round costs by the curves, and adds it up."""

    def __init__(self, curves):
        self.curves = curves
        self.seconds = 0.0
        self._run_round = loop.run_round

    def __call__(self, target, cache, drafting, sequences, plans):
        length = max(len(sequence.tokens) for sequence in sequences)
        done = self._run_round(target, cache, drafting, sequences, plans)
        width = max(plan.width for plan in plans)
        cost = replace(
            done.cost,
            draft_s=self.curves.draft_seconds(done.cost.levels, width, length),
            verify_s=self.curves.verify_seconds(done.cost.columns, length),
            rest_s=self.curves.rest,
        )
        self.seconds += cost.draft_s + cost.verify_s + cost.rest_s
        return replace(done, cost=cost)


def decode(made, charge, depth, prompt, params):
    """(seconds, output) of one text."""
    settings = EngineSettings(depth=depth)
    drafter = fresh(made.drafter)
    spec = made.with_drafter(drafter, settings)
    spec.costs = CostBook(by_hand=charge.curves)
    charge.seconds = 0.0
    output = spec.generate(prompt, params)
    return charge.seconds, output


def one_drafter(options, name, prompts):
    wrong = name.startswith("wrong:")
    made = Speculator.from_pretrained(options.target, name.removeprefix("wrong:"))
    if wrong:
        made = made.with_drafter(Wrong(made.drafter))
    ids = [made.encode(prompt) for prompt in prompts]
    book = CostBook(options.costs)
    curves = Engine(made.target, made.drafter, made.settings, book).measured_costs(ids[0])(1)
    print(json.dumps({"drafter": name, "curves": curves.as_dict()}), flush=True)
    loop.run_round = charge = Charge(curves)
    params = SamplingParams(
        max_tokens=options.max_tokens,
        ignore_eos=True,
        temperature=options.temperature,
        seed=1 if options.temperature else None,
    )
    totals = dict.fromkeys([0, *options.depths, "auto"], 0.0)
    ratios = []
    for prompt in ids:
        took = {}
        for depth in totals:
            seconds, output = decode(made, charge, depth, prompt, params)
            took[depth] = seconds
            totals[depth] += seconds
        ratios.append(took[0] / took["auto"])
        shown = {str(depth): round(took[0] / seconds, 3) for depth, seconds in took.items()}
        print(
            json.dumps(
                {
                    "prompt": len(ratios),
                    **shown,
                    "tokens_per_call": round(output.stats.tokens_per_call, 2),
                }
            ),
            flush=True,
        )
    loop.run_round = charge._run_round
    best = min(options.depths, key=totals.__getitem__)
    print(
        json.dumps(
            {
                "drafter": name,
                "auto over plain": [round(f(ratios), 3) for f in (statistics.median, min, max)],
                "fixed": {str(d): round(totals[0] / totals[d], 3) for d in totals},
                "auto over best fixed": round(totals[best] / totals["auto"], 3),
                "best": best,
            }
        ),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", action="append", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--costs", type=Path, help="JSON file that keeps the curves for a next run")
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    first = {item.category: item for item in reversed(read_items(options.prompts))}
    prompts = [list(item.messages) for item in first.values()]
    for name in options.drafter:
        one_drafter(options, name, prompts)


if __name__ == "__main__":
    main()
