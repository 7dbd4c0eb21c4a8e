"""What the tests of look-up drafters share: contexts, and rounds without a decode loop."""

from __future__ import annotations

import torch

from draftproof.core import Context, Draft, Plan, Proposal, Step
from draftproof.models.cache import KVCache


def begin(drafter, rows=4):
    return drafter.begin(KVCache(rows, capacity=1))


def context(tokens, row=0) -> Context:
    """All of `tokens` as the prompt: what counts is what it was at first."""
    return Context(row, row, tokens, None, None, Proposal.POINT, prompt_length=len(tokens))


def step_of(tokens, draft=None) -> Step:
    """What a round that committed `tokens` behind `draft` reports."""
    count = len(draft.tokens) if draft else 0
    origins = (*["accepted"] * (len(tokens) - 1), "correction")
    return Step(0, tuple(tokens), origins, count, count, len(tokens) - 1, None, None, ())


def saying(*rows, vocab=10):
    """Logits f[N+1, V] in which each row's tokens come first, in this order."""
    logits = torch.zeros(len(rows), vocab)
    for i, best in enumerate(rows):
        for rank, token in enumerate(best):
            logits[i, token] = 100.0 - rank
    return logits


def follow(drafting, tokens, next_token, row=0, depth=4):
    """One round in which the target said `next_token` everywhere; returns the draft."""
    (draft,) = drafting.propose([context(tokens, row)], [Plan(depth)])
    tokens.append(next_token)
    said = saying(*[[next_token]] * (1 + len(draft.tokens)))
    drafting.observe(context(tokens, row), draft, step_of([next_token], draft), said)
    return draft


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """The drafted strings, from the anchor down to every node."""
    return {tuple(draft.tokens[i] for i in draft.path(node)) for node in range(len(draft.tokens))}


def assert_within(draft: Draft, plan: Plan) -> None:
    """Depth, nodes, children of a node and parents of a level, and no sibling twice."""
    assert len(draft.tokens) <= plan.nodes
    assert len(paths(draft)) == len(draft.tokens)
    parents = set(draft.parents)
    levels: dict[int, int] = {}
    for parent in parents:
        assert draft.parents.count(parent) <= plan.width
        depth = len(draft.path(parent))
        levels[depth] = levels.get(depth, 0) + 1
    assert all(count <= plan.width for count in levels.values())
    assert all(len(path) <= plan.depth for path in paths(draft))
    assert draft.q is None
    assert draft.proposal is Proposal.POINT
