"""Whether sampled tokens follow the target's law, over the whole vocabulary and any length.

If y is drawn from p(. | prefix), then u = P(tokens before y) + v p(y), with v uniform and tokens in
any order fixed by the prefix, is uniform on [0, 1) whatever came before: Rosenblatt's transform
(1952). So the u of all tokens of all texts are independent and uniform exactly when every token,
accepted, corrected or bonus, has the target's law. Tokens are ordered from likely to unlikely, so
a rule that favours likely tokens, as wrong ones do, piles u up near 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from draftproof.api import Speculator
from draftproof.checks.difference import last_logits
from draftproof.checks.statistics import Fit, goodness_of_fit
from draftproof.output import Output
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp

NUM_BINS = 20


def token_fit(
    speculator: Speculator,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    samples: int,
    error_rate: float,
    progress: Callable[[int, int], None],
) -> Fit:
    """Decode `samples` texts from `prompts` in turn and test the u of all their tokens.

    A correct rule fails with probability `error_rate`.
    """
    assert params.seed is not None
    mix = np.random.default_rng(params.seed)
    counts: Counter[int] = Counter()
    for i in range(samples):
        progress(i, samples)
        # Each text has a seed of its own: equal noise would make the tokens dependent.
        own = replace(params, seed=params.seed + 1 + i)
        output = speculator.generate(prompts[i % len(prompts)], own)
        for u in _transformed(speculator, output, own, mix):
            counts[min(int(u * NUM_BINS), NUM_BINS - 1)] += 1
    return goodness_of_fit(counts, dict.fromkeys(range(NUM_BINS), 1 / NUM_BINS), error_rate)


def _transformed(
    speculator: Speculator, output: Output, params: SamplingParams, mix: np.random.Generator
) -> list[float]:
    """u of every generated token of one text."""
    ids = [*output.prompt_token_ids, *output.token_ids]
    if not output.token_ids:
        return []
    logits = last_logits(speculator.target, ids[:-1], len(output.token_ids))
    start = len(output.prompt_token_ids)
    warp = Warp(params, prompt_length=start, num_tokens=speculator.num_tokens)
    values = []
    for row, token in enumerate(output.token_ids):
        p = warp.draft_law(logits[row], ids[: start + row]).double()
        order = torch.argsort(p, descending=True, stable=True)
        place = int((order == token).nonzero())
        before = float(p[order[:place]].sum())
        values.append(before + float(mix.random()) * float(p[token]))
    return values
