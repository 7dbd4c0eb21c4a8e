"""Whether sampled tokens follow the target's law, over the whole vocabulary and any length.

If y is drawn from p(. | prefix), then u = P(tokens likelier than y) + v P(tokens as likely as y),
with v uniform, is uniform on [0, 1) whatever came before: Rosenblatt's transform (1952). So the u
of all tokens of all texts are independent and uniform exactly when every token, accepted,
corrected or bonus, has the target's law. Likely tokens come first, so a rule that favours them, as
wrong ones do, piles u up near 0.

What it cannot see is a rule that errs without regard to likelihood; exact enumeration does.

Neighbours (u1, u2) are counted together in a square grid: a rule that draws each token rightly in
itself and lets it depend on the one before it wrongly fills some cells more than others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from draftproof.api import Speculator
from draftproof.checks.difference import last_logits
from draftproof.checks.statistics import Fit, goodness_of_fit
from draftproof.drafters.base import remembers
from draftproof.output import Output
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp

_MOST_BINS = 4
"""Per side. Wrong rules tilt the law as a whole; more cells would only drown that in chance."""
_PAIRS_PER_CELL = 8
"""Wanted in the mean, so that G has its chi-square law."""
_BATCH = 8
"""Texts decoded side by side."""
_IMPOSSIBLE = (-1, -1)
"""The cell of a pair with a token that the target never emits; it has no probability."""


def token_fit(
    speculator: Speculator,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    samples: int,
    error_rate: float,
    progress: Callable[[int, int], None],
) -> Fit:
    """Decode `samples` texts from `prompts` in turn and test the u of all their tokens.

    A correct rule fails with probability `error_rate`. `params` has to fix the length of the
    texts, end tokens not obeyed: how much is counted must not depend on what was drawn.
    """
    assert params.seed is not None
    assert params.ignore_eos
    unseeded = remembers(speculator.drafter)
    mix = np.random.default_rng(params.seed)
    pairs: list[tuple[float, float]] = []
    for start in range(0, samples, _BATCH):
        progress(start, samples)
        texts = range(start, min(start + _BATCH, samples))
        # Each text has a seed of its own: equal noise would make the tokens dependent.
        # A drafter that remembers other requests is judged unseeded, or is refused a seed.
        seeds = [None if unseeded else params.seed + 1 + i for i in texts]
        own = [replace(params, seed=seed) for seed in seeds]
        outputs = speculator.generate([prompts[i % len(prompts)] for i in texts], own)
        for output, wanted in zip(outputs, own, strict=True):
            u = _transformed(speculator, output, wanted, mix)
            pairs += zip(u[::2], u[1::2], strict=False)
    progress(samples, samples)
    return pair_fit(pairs, error_rate)


def pair_fit(pairs: Sequence[tuple[float, float]], error_rate: float) -> Fit:
    """Test pairs (u1, u2) for being uniform on the unit square; infinity stands for impossible."""
    bins = min(_MOST_BINS, max(2, math.isqrt(len(pairs) // _PAIRS_PER_CELL)))
    counts: Counter[tuple[int, int]] = Counter()
    for pair in pairs:
        if math.inf in pair:
            counts[_IMPOSSIBLE] += 1
        else:
            first, second = (min(int(u * bins), bins - 1) for u in pair)
            counts[first, second] += 1
    cells = [(i, j) for i in range(bins) for j in range(bins)]
    return goodness_of_fit(counts, dict.fromkeys(cells, 1 / bins**2), error_rate)


def _transformed(
    speculator: Speculator, output: Output, params: SamplingParams, mix: np.random.Generator
) -> list[float]:
    """u of every generated token of one text; infinite for a token of probability 0."""
    ids = [*output.prompt_token_ids, *output.token_ids]
    if not output.token_ids:
        return []
    logits = last_logits(speculator.target, ids[:-1], len(output.token_ids))
    start = len(output.prompt_token_ids)
    warp = Warp(params, prompt_length=start, num_tokens=speculator.num_tokens)
    values = []
    for row, token in enumerate(output.token_ids):
        p = warp.draft_law(logits[row], ids[: start + row]).double()
        likelier, equal = float(p[p > p[token]].sum()), float(p[p == p[token]].sum())
        values.append(likelier + mix.random() * equal if p[token] > 0 else math.inf)
    return values
