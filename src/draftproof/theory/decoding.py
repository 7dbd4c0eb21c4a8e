"""Whole texts decoded in simulation: a plan a round, a draft, chance, and seconds from cost curves.

No model runs. With the cost curves of a machine that is not at hand it tells where depth, trees
and batches pay off there; with a controller in place of a plan, whether the controller finds that
out by itself.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from draftproof.core import Draft, Origin, Plan, Proposal, Step
from draftproof.theory.acceptance import Acceptance, Place
from draftproof.theory.machine import CostCurves, RoundCost
from draftproof.theory.ranges import check_count
from draftproof.theory.trees import Node, best_nodes

_MAX_TOKENS = 10_000_000


class Policy(Protocol):
    """What plans the drafts of one sequence; `control` has some."""

    def plan(self, max_depth: int, context_length: int, batch_size: int) -> Plan: ...

    def observe(self, draft: Draft, step: Step, cost: RoundCost) -> None: ...


Together = Callable[[Sequence[Any], Sequence[int], Sequence[int], bool], list[Plan]]
"""Plans for policies by their rooms and context lengths, padded or not: `control.joint` has one."""


@dataclass(frozen=True, slots=True)
class SimulatedDecoding:
    """What a simulation saw, all sequences of the batch together."""

    tokens: int
    rounds: int
    """Rounds of the batch."""
    seconds: float
    plain_seconds: float
    """What decoding these texts without drafts takes."""
    depths: Mapping[int, int]
    """Depth planned -> how often."""
    switches: int
    """How often a sequence went over from drafting to plain rounds or back, for two rounds in a
    row at least: a single draft among plain rounds only asks whether drafting would pay."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.seconds


def simulate_decoding(
    policy: Plan | Callable[[], Policy],
    acceptance: Acceptance | Callable[[int], Acceptance] | Sequence[Acceptance],
    costs: CostCurves,
    *,
    num_tokens: int = 2_000,
    context_length: int = 0,
    batch_size: int = 1,
    seed: int = 0,
    together: Together | None = None,
    padded: bool = True,
) -> SimulatedDecoding:
    """Decode `num_tokens` tokens for each of `batch_size` sequences.

    policy: one plan for all rounds, or what makes a controller for a sequence. acceptance: one for
    all of the text, a function of how many tokens are out, or one for each sequence. costs: for
    this batch size. context_length: tokens before the first new one. together: plans all policies
    at once. padded: a round takes as long as if all drafts were as wide as the widest.

    Raises `InvalidSetting` for counts that make no sense.
    """
    check_count("num_tokens", num_tokens, 1, _MAX_TOKENS)
    check_count("batch_size", batch_size, 1, _MAX_TOKENS)
    rng = random.Random(seed)
    many = acceptance if isinstance(acceptance, Sequence) else [acceptance] * batch_size
    rows = [_Row(_policy(policy), one, num_tokens, context_length) for one in many]
    rounds, seconds, active = 0, 0.0, rows
    while active:
        plans = _plans(active, together, padded)
        seconds += _round(active, plans, costs, padded, rng)
        rounds += 1
        active = [row for row in active if row.done < num_tokens]
    plain = sum(costs.round_seconds(0, 1, 1, context_length + done) for done in range(num_tokens))
    return SimulatedDecoding(
        tokens=sum(row.done for row in rows),
        rounds=rounds,
        seconds=seconds,
        plain_seconds=plain,
        depths=dict(sorted(sum((row.depths for row in rows), Counter[int]()).items())),
        switches=sum(row.switches for row in rows),
    )


class _Row:
    """One sequence while it is simulated."""

    def __init__(
        self,
        policy: Policy,
        acceptance: Acceptance | Callable[[int], Acceptance],
        num_tokens: int,
        context_length: int,
    ) -> None:
        self.policy = policy
        self.acceptance = acceptance
        self.done = 0
        self.depths: Counter[int] = Counter()
        self.switches = 0
        self._num_tokens = num_tokens
        self._context_length = context_length
        self._drafts: list[bool] = []
        self._drafting: bool | None = None

    @property
    def context_length(self) -> int:
        return self._context_length + self.done

    @property
    def room(self) -> int:
        """The deepest draft that could be kept."""
        return self._num_tokens - self.done - 1

    def count(self, plan: Plan) -> None:
        """Note what was planned."""
        # The last token of a text has no room for a draft, whatever the policy thinks.
        if self.room > 0:
            self._drafts = [*self._drafts[-1:], plan.depth > 0]
        if len(set(self._drafts)) == 1:
            self.switches += self._drafting is (not self._drafts[0])
            self._drafting = self._drafts[0]
        self.depths[plan.depth] += 1


def _plans(rows: Sequence[_Row], together: Together | None, padded: bool) -> Sequence[Plan]:
    """What every row is to draft."""
    if together is None:
        plans = [row.policy.plan(row.room, row.context_length, len(rows)) for row in rows]
    else:
        policies, rooms = [row.policy for row in rows], [row.room for row in rows]
        plans = together(policies, rooms, [row.context_length for row in rows], padded)
    for row, plan in zip(rows, plans, strict=True):
        row.count(plan)
    return plans


def _round(
    rows: Sequence[_Row],
    plans: Sequence[Plan],
    costs: CostCurves,
    padded: bool,
    rng: random.Random,
) -> float:
    """One round of a batch; returns its seconds."""
    drafts, steps, width = [], [], 1
    for row, plan in zip(rows, plans, strict=True):
        now = row.acceptance(row.done) if callable(row.acceptance) else row.acceptance
        depth = plan.depth if rng.random() < now.proposes else 0
        places = _sure_enough(now.places(depth, rng), plan)
        tree = list(best_nodes(now.down_to(len(places)), now.ranks, plan.width, plan.nodes))
        drafts.append(_draft(tree, places))
        steps.append(_step(tree, places, now.ranks, rng))
        width = max(width, plan.width)
    levels = max(step.depth for step in steps)
    sizes = [step.drafted for step in steps]
    columns = 1 + (max(sizes) if padded else sum(sizes) / len(sizes))
    longest = max(row.context_length for row in rows)
    cost = RoundCost(
        columns=columns,
        levels=levels,
        draft_s=costs.draft_seconds(levels, width, longest),
        verify_s=costs.verify_seconds(columns, longest),
        rest_s=costs.rest,
        tokens=sum(len(step.tokens) for step in steps) / len(rows),
        drafting=sum(size > 0 for size in sizes),
    )
    for row, draft, step in zip(rows, drafts, steps, strict=True):
        row.done += len(step.tokens)
        row.policy.observe(draft, step, cost)
    return cost.draft_s + cost.verify_s + cost.rest_s


def _sure_enough(places: Sequence[Place], plan: Plan) -> Sequence[Place]:
    """The places that are drafted at: none behind the first doubtful one."""
    for i, place in enumerate(places):
        if place.confidence is not None and place.confidence < plan.min_confidence:
            return places[: i + 1]
    return places


def _draft(tree: Sequence[Node], places: Sequence[Place]) -> Draft:
    """The tree with node i carrying token i."""
    parents = tuple(node.parent for node in tree)
    sure = [places[node.level - 1].confidence for node in tree]
    known = tuple(confidence for confidence in sure if confidence is not None)
    return Draft(tuple(range(len(tree))), parents, None, Proposal.POINT, known or None)


def _step(
    tree: Sequence[Node], places: Sequence[Place], ranks: Sequence[float], rng: random.Random
) -> Step:
    """Accept down from the anchor as long as the rank that chance chooses is in the tree."""
    children = {(node.parent, node.rank): i for i, node in enumerate(tree)}
    depth = max((node.level for node in tree), default=0)
    path: list[int] = []
    while len(path) < depth:
        rank = _rank(places[len(path)].rate, ranks, rng)
        node = children.get((path[-1] if path else -1, rank))
        if node is None:
            break
        path.append(node)
    tokens = (*path, len(tree))
    accepted: list[Origin] = ["accepted"] * len(path)
    return Step(
        seq_id=0,
        tokens=tokens,
        origins=(*accepted, "correction" if tree else "plain"),
        drafted=len(tree),
        depth=depth,
        accepted=len(path),
        finish_reason=None,
        logprobs=None,
        texts=("",) * len(tokens),
    )


def _rank(rate: float, ranks: Sequence[float], rng: random.Random) -> int:
    """The drafter's choice that the target accepts; len(ranks) + 1 for none."""
    for rank, chance in enumerate((rate, *ranks)):
        if rng.random() < chance:
            return rank
    return len(ranks) + 1


class _Same:
    """The same plan in every round, as far as the text reaches."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, max_depth: int, context_length: int, batch_size: int) -> Plan:  # noqa: ARG002
        return replace(self._plan, depth=min(self._plan.depth, max_depth))

    def observe(self, draft: Draft, step: Step, cost: RoundCost) -> None:
        """Learns nothing."""


def _policy(policy: Plan | Callable[[], Policy]) -> Policy:
    return _Same(policy) if isinstance(policy, Plan) else policy()
