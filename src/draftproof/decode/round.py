"""One round of speculative decoding, for every sequence of a batch at once."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch

from draftproof.config import MAX_NODES
from draftproof.core import Draft, Plan, Step
from draftproof.decode.sequence import Sequence, kept_columns
from draftproof.drafters.base import Drafting
from draftproof.errors import InvalidSetting, LimitExceeded
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache
from draftproof.models.pack import pack
from draftproof.stats.timing import Stopwatch
from draftproof.theory.machine import RoundCost


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did."""

    drafts: list[Draft]
    steps: list[Step | None]
    """One for each sequence, like `drafts`; None for one that failed."""
    failures: dict[int, Exception]
    """Why sequence b got no step; the others are as if it had not been there."""
    faults: dict[int, Exception]
    """What the drafter raised when it was told of sequence b's step."""
    cost: RoundCost | None
    """None where there was nothing to decode."""


def run_round(
    target: TargetModel,
    cache: KVCache,
    drafting: Drafting,
    sequences: Many[Sequence],
    plans: Many[Plan],
) -> Round:
    """Draft, verify in one target pass, keep what the rule accepts and one token more.

    Sequence b lives in cache row b. Before and after, row b holds the keys and values of all of
    its tokens but the last, the anchor. With empty drafts this is plain decoding.
    """
    watch = Stopwatch(target.device)

    # 1. Draft: each sequence's drafter proposes what its plan allows.
    drafts = drafting.propose([sequence.context for sequence in sequences], plans)
    _check(drafts, target.vocab_size)
    watch.lap("draft")

    # 2. Verify: one target pass scores every anchor and every drafted token.
    anchors = [sequence.tokens[-1] for sequence in sequences]
    batch = pack(anchors, drafts, cache.lengths, target.device)
    logits = target.forward(batch, cache).logits
    watch.lap("verify")

    # 3. Judge each draft by its own rule, 4. commit up to the sequence's end, 5. roll back.
    steps: list[Step | None] = [None] * len(drafts)
    failures: dict[int, Exception] = {}
    for b, (sequence, draft) in enumerate(zip(sequences, drafts, strict=True)):
        rows = logits[b, : 1 + len(draft.tokens)]
        try:
            verdict = sequence.judge(draft, rows)
            step = sequence.commit(draft, verdict, rows)
            cache.keep(b, kept_columns(verdict, len(step.tokens)))
            steps[b] = step
        except Exception as error:  # a user's own rule may do anything; it is told to the caller
            failures[b] = error
    watch.lap("rest")

    # 6. Let the drafter learn from what the target said.
    faults = _teach(drafting, sequences, drafts, steps, logits)
    watch.lap("draft")
    for sequence, made in zip(sequences, steps, strict=True):
        if made is not None:
            sequence.stats.add_step(made, watch.seconds)
    return Round(drafts, steps, failures, faults, _cost(drafts, steps, target.pads, watch.seconds))


def _teach(
    drafting: Drafting,
    sequences: Many[Sequence],
    drafts: Many[Draft],
    steps: Many[Step | None],
    logits: torch.Tensor,
) -> dict[int, Exception]:
    """Tell the drafter what became of its drafts; what it raised, by sequence."""
    faults: dict[int, Exception] = {}
    for b, (sequence, draft, made) in enumerate(zip(sequences, drafts, steps, strict=True)):
        if made is None:
            continue
        try:
            drafting.observe(sequence.context, draft, made, logits[b, : 1 + len(draft.tokens)])
        except Exception as error:  # the step stands all the same
            faults[b] = error
    return faults


def _cost(
    drafts: Many[Draft], steps: Many[Step | None], pads: bool, seconds: Mapping[str, float]
) -> RoundCost:
    sizes = [len(draft.tokens) for draft in drafts]
    # A draft that a hybrid has looked up took none of the time that its model takes for levels.
    depths = [draft.depth for draft in drafts if draft.promised is None]
    return RoundCost(
        columns=1 + (max(sizes) if pads else sum(sizes) / len(sizes)),
        levels=max(depths, default=0),
        draft_s=seconds["draft"],
        verify_s=seconds["verify"],
        rest_s=seconds["rest"],
        tokens=sum(len(step.tokens) for step in steps if step is not None) / len(steps),
        drafting=sum(depth > 0 for depth in depths),
    )


def _check(drafts: Many[Draft], vocab_size: int) -> None:
    """Refuse a draft that the scratch behind a row was not made for, and ids that mean nothing."""
    for draft in drafts:
        if len(draft.tokens) > MAX_NODES:
            raise LimitExceeded(
                f"the drafter proposed {len(draft.tokens)} tokens at once and at most {MAX_NODES} "
                "can be verified; let it keep to its plan"
            )
        if draft.tokens and not 0 <= min(draft.tokens) <= max(draft.tokens) < vocab_size:
            wrong = next(token for token in draft.tokens if not 0 <= token < vocab_size)
            raise InvalidSetting(
                f"the drafter proposed id {wrong} and the target knows 0 to {vocab_size - 1}; "
                "let it propose the target's own ids"
            )
