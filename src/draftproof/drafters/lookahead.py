"""Lookahead: n-grams of the target's own guesses, gathered while it verifies.

After every drafted token the target says what would follow it, also where the draft is wrong.
Read as Jacobi iteration, these sayings are the next, refined guess of the text ahead; read as
n-grams (the path that led to a node and what follows it) they fill a pool from which later
drafts are taken. Fu et al. 2024, arXiv 2402.02057.

Differences from the paper: there, each pass carries a window of W parallel positions beside up
to G n-grams to verify, some (W + G)(N - 1) tokens, and the window's positions see each other along
the diagonal of the last N - 1 iterations. Here a pass carries one draft that is both: the nodes
that are verified are the positions that guess, each sees its true path, and no token is fed only
to fill the pool. That is cheaper and gathers fewer n-grams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from draftproof.core import Context, Draft, Plan, Proposal, Step
from draftproof.drafters.lookup import NO_GUESS, Guess, LookupDrafting
from draftproof.models.cache import KVCache
from draftproof.sampling.draw import argmax

_N = 4
"""Tokens of an n-gram, the first being its key."""
_G = 8
"""N-grams that are kept for each first token, the latest."""
_MEMORY = 32
"""Tokens over which the rates of the sources are averaged."""

Chain = tuple[int, ...]


class LookaheadDrafter:
    name = "lookahead"
    proposals = frozenset({Proposal.POINT})
    remembers = True

    def begin(self, target_cache: KVCache) -> LookaheadDrafting:  # noqa: ARG002
        return LookaheadDrafting()


@dataclass(slots=True)
class _Row:
    """What is known of one sequence."""

    pool: dict[int, dict[Chain, None]] = field(default_factory=dict)
    """First token -> the N - 1 tokens behind it, latest last."""
    trajectory: Chain = ()
    """The Jacobi guess of what follows the anchor."""
    chains: dict[str, Chain] = field(default_factory=dict)
    """What each source would have drafted in this round."""

    def learn(self, before: Chain, token: int) -> None:
        """Keep the n-gram of N - 1 tokens and the one behind them."""
        kept = self.pool.setdefault(before[0], {})
        continuation = (*before[1:], token)
        kept.pop(continuation, None)
        kept[continuation] = None
        if len(kept) > _G:
            del kept[next(iter(kept))]

    def known(self, token: int) -> list[Chain]:
        """The pool's continuations of `token`, latest first."""
        return list(self.pool.get(token, ()))[::-1]


def _begun(tokens: Sequence[int]) -> _Row:
    """A sequence whose pool holds the n-grams of its prompt, as the authors' code can."""
    row = _Row()
    for end in range(_N, len(tokens) + 1):
        row.learn(tuple(tokens[end - _N : end - 1]), tokens[end - 1])
    return row


class LookaheadDrafting(LookupDrafting):
    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}
        self._rates = {source: _Rate() for source in ("pool", "trajectory", "text")}

    def guess(self, context: Context, plan: Plan) -> Guess:
        """The source that was right most often, beside others where the plan is wide.

        The score is that of the first chain alone.
        """
        if context.row not in self._rows:
            self._rows[context.row] = _begun(context.tokens)
        row = self._rows[context.row]
        row.chains = {}
        if plan.depth == 0:
            return NO_GUESS
        anchor, depth = context.tokens[-1], min(plan.depth, plan.nodes)
        pooled = row.known(anchor)
        if pooled:
            row.chains["pool"] = _extended(pooled[0], row, depth)
        if row.trajectory:
            row.chains["trajectory"] = _extended(row.trajectory, row, depth)
        if not row.chains:
            # Any tokens begin an iteration; the paper takes them from the prompt.
            row.chains["text"] = tuple(context.tokens[-depth:])
        worth = {
            source: self._rates[source].along(chain, plan.floor)
            for source, chain in row.chains.items()
        }
        source = max(worth, key=lambda name: sum(worth[name]))
        reach = len(worth[source])
        others = (_extended(chain, row, depth) for chain in pooled[1:])
        chains = dict.fromkeys([row.chains[source], *row.chains.values(), *others])
        draft = _merged([chain[:reach] for chain in chains][: plan.width], plan.nodes)
        return Guess(draft, sum(worth[source]))

    def observe(self, context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:
        row = self._rows.setdefault(context.row, _Row())
        for source, chain in row.chains.items():
            self._rates[source].count(chain, step.tokens)
        best = argmax(logits).tolist()
        end = len(context.tokens) - len(step.tokens)
        tail = context.tokens[max(0, end - _N) : end]
        for node in range(-1, len(draft.tokens)):
            path = [draft.tokens[i] for i in draft.path(node)]
            before = (*tail, *path)[1 - _N :]
            if len(before) == _N - 1:
                row.learn(before, best[node + 1])
        row.trajectory = _refined(draft, step, best)

    def release(self, row: int) -> None:
        self._rows.pop(row, None)

    def move(self, source: int, target: int) -> None:
        if source in self._rows:
            self._rows[target] = self._rows.pop(source)


class _Rate:
    """How often a source's next token is right, given that those before it are."""

    def __init__(self) -> None:
        self._rate = 0.5

    def count(self, chain: Sequence[int], text: Sequence[int]) -> None:
        """Compare with what was committed, up to the first difference."""
        for token, truth in zip(chain, text, strict=False):
            self._rate += ((token == truth) - self._rate) / _MEMORY
            if token != truth:
                break

    def along(self, chain: Sequence[int], floor: float) -> list[float]:
        """The chances that 1, 2, ... tokens of `chain` are right, as far as they reach `floor`."""
        chances = [self._rate ** (d + 1) for d in range(len(chain))]
        return [chance for chance in chances if chance >= floor]


def _extended(chain: Iterable[int], row: _Row, depth: int) -> Chain:
    """`chain` cut to `depth`, or continued with n-grams of the pool as long as it knows any."""
    tokens = list(chain)[:depth]
    while len(tokens) < depth:
        known = row.known(tokens[-1])
        if not known:
            break
        tokens += known[0][: depth - len(tokens)]
    return tuple(tokens)


def _merged(chains: Iterable[Sequence[int]], nodes: int) -> Draft:
    """The tree of all chains, up to `nodes` nodes, those of the first chains first."""
    numbers: dict[tuple[int, int], int] = {}
    """(parent, token) -> node; in the order in which nodes are numbered."""
    for chain in chains:
        node = -1
        for token in chain:
            if (node, token) not in numbers and len(numbers) == nodes:
                break
            node = numbers.setdefault((node, token), len(numbers))
    tokens = tuple(token for _, token in numbers)
    parents = tuple(parent for parent, _ in numbers)
    return Draft(tokens, parents, None, Proposal.POINT)


def _refined(draft: Draft, step: Step, best: Sequence[int]) -> Chain:
    """The target's sayings `best` along the first path that the round rejected.

    The correction stands where the path's first token stood, so what the target said after that
    one is the guess of what follows the correction.
    """
    node = -1
    for token in step.tokens[:-1]:
        child = draft.child(node, token)
        if child is None:
            return ()
        node = child
    guess: list[int] = []
    while node in draft.parents:
        node = draft.parents.index(node)
        guess.append(best[node + 1])
    return tuple(guess)
