"""Draft level by level with a model: the loop that every model-based drafter shares.

The model reads what it lacks of the text, then one level of the tree after another; a chain is a
tree of width 1. Keys and values of drafted nodes stay behind the text, unkept:

    slots   text ... anchor | 0 1 | 2 3 |        a level's nodes see their ancestors' columns
                              level  level
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.nn.functional import pad

from draftproof.config import MAX_NODES
from draftproof.core import Context, Draft, Plan, Proposal, Purpose, TreeBatch, path_to
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache
from draftproof.models.pack import pack
from draftproof.sampling.draw import argmax
from draftproof.static_tree import Place

_DRAWN = (Proposal.SAMPLED, Proposal.DISTINCT)
"""Proposals whose nodes were left to chance: once drawn they have to be submitted."""

_KEPT = 0.6
"""How often the first of drawn or raced siblings is taken to be kept, and each later one of the
times that are left. Between 0.4 and 0.9 trees do about equally well."""


@dataclass(frozen=True, slots=True)
class RolledOut:
    """A draft and where the model's cache holds it."""

    draft: Draft
    columns: tuple[int | None, ...]
    """Column behind the row's committed tokens per node; None for one that was not fed."""


def roll_out(
    model: TargetModel,
    cache: KVCache,
    contexts: Sequence[Context],
    plans: Sequence[Plan],
    vocab_size: int,
) -> list[RolledOut]:
    """One draft per context, drawn as its proposal says, within its plan.

    `cache` row b holds a prefix of context b's tokens, a few tokens short of them. On return a
    row that drafted holds every context token. `vocab_size` is the target's V, to which laws are
    cut or padded.
    """
    trees = [_Tree(c, p, vocab_size) for c, p in zip(contexts, plans, strict=True)]
    if not any(tree.frontier for tree in trees):
        return [tree.finish() for tree in trees]
    logits = _read_texts(model, cache, trees)
    fed = _Fed(len(trees), model.device)
    while True:
        for tree, rows in zip(trees, logits, strict=True):
            tree.grow(rows)
        width = max(len(tree.frontier) for tree in trees)
        if width == 0 or fed.width + width > MAX_NODES:
            return [tree.finish() for tree in trees]
        logits = model.forward(fed.level(trees, cache.lengths), cache).logits


def _read_texts(model: TargetModel, cache: KVCache, trees: Sequence[_Tree]) -> torch.Tensor:
    """Feed each drafting row what it lacks of its text; logits f[B, 1, V] after the anchor.

    A row with nothing to feed gets scratch behind its end: id 0 at position 0, which every model
    can embed, however long the row is and whatever its tokens are.
    """
    feeds = [
        list(tree.context.tokens[cache.lengths[b] :]) if tree.frontier else []
        for b, tree in enumerate(trees)
    ]
    fed = [feed or [0] for feed in feeds]
    positions = [cache.lengths[b] if feed else 0 for b, feed in enumerate(feeds)]
    chains = [Draft.chain(feed[1:], Proposal.POINT) for feed in fed]
    batch = pack([feed[0] for feed in fed], chains, positions, model.device)
    batch = replace(batch, counts=tuple(len(feed) for feed in feeds))
    logits = model.forward(batch, cache, [len(feed) - 1 for feed in fed]).logits
    for b, feed in enumerate(feeds):
        cache.keep(b, range(len(feed)))
    return logits


class _Fed:
    """The columns that levels have left behind the texts, the same number in every row."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.width = 0
        self._device = device
        self._positions: list[list[int]] = [[] for _ in range(rows)]

    def level(self, trees: Sequence[_Tree], lengths: Sequence[int]) -> TreeBatch:
        """The frontiers as one batch, padded to one width; their columns are booked."""
        width = max(len(tree.frontier) for tree in trees)
        tokens = torch.zeros((len(trees), width), dtype=torch.long)
        positions = torch.zeros_like(tokens)
        mask = torch.zeros((len(trees), width, self.width + width), dtype=torch.bool)
        mask[:, torch.arange(width), self.width + torch.arange(width)] = True
        for b, tree in enumerate(trees):
            for i, node in enumerate(tree.frontier):
                tokens[b, i] = tree.tokens[node]
                path = path_to(tree.parents, node)
                positions[b, i] = lengths[b] + len(path) - 1
                tree.columns[node] = self.width + i
                mask[b, i, [tree.columns[step] for step in path]] = True
        earlier = torch.tensor(self._positions, dtype=torch.long).view(len(trees), -1)
        for b, row in enumerate(positions.tolist()):
            self._positions[b] += row
        self.width += width
        counts = tuple(len(tree.frontier) for tree in trees)
        parts = [part.to(self._device) for part in (tokens, positions, mask, earlier)]
        return TreeBatch(parts[0], parts[1], parts[2], parts[3], counts)


@dataclass(slots=True)
class _Tree:
    """One row's draft while it grows."""

    context: Context
    plan: Plan
    vocab_size: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    """Of the path down to each node, as far as the drafter knows."""
    confidences: list[float] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    laws: list[torch.Tensor] = field(default_factory=list)
    columns: list[int | None] = field(default_factory=list)
    frontier: list[int] = field(default_factory=list)
    """Nodes that get children next; -1 is the anchor."""
    depth: int = 0

    def __post_init__(self) -> None:
        self.frontier = [-1] if self.plan.depth > 0 and self.plan.nodes > 0 else []

    def grow(self, logits: torch.Tensor) -> None:
        """Give the frontier children, by logits f[W, V] behind each of its nodes.

        Whether a node gets children, and how many, is decided by what was drawn before them. Of
        the new nodes the most promising go on, where the drafter was sure enough.
        """
        first = len(self.tokens)
        for node, row in zip(self.frontier, logits, strict=False):
            self._draw_children(node, _fit(row, self.vocab_size))
        self.depth += 1
        sure = [
            node
            for node in range(first, len(self.tokens))
            if self.confidences[node] >= self.plan.min_confidence
            if self.plan.children(self.places[node])
        ]
        promising = sorted(sure, key=lambda node: -self._promise(node))
        ends = self.depth == self.plan.depth
        self.frontier = [] if ends else sorted(promising[: self._fertile()])

    def _promise(self, node: int) -> float:
        """How likely the path down to `node` is to be kept, to choose between nodes.

        Fixed siblings by their own chances. Where chance chose, by rank: of a drafter that is right
        the first one is kept, however unlikely a token it is.
        """
        if self.context.proposal is Proposal.POINT:
            return self.chances[node]
        return math.prod(_KEPT * (1 - _KEPT) ** rank for rank in self.places[node])

    def _fertile(self) -> int:
        """How many nodes of a level get children: each later level is left room for one family.

        What was left to chance stays in the draft, so its nodes are shared out before they are
        drawn.
        """
        settled = self.context.proposal in _DRAWN or self.plan.width == 1
        if not settled or self.plan.tree is not None:
            return self.plan.fertile
        left, levels = self.plan.nodes - len(self.tokens), self.plan.depth - self.depth
        if levels == 1:
            return min(self.plan.fertile, -(-left // self.plan.width))
        return min(self.plan.fertile, max(left // self.plan.width - (levels - 1), min(left, 1)))

    def _draw_children(self, node: int, logits: torch.Tensor) -> None:
        tokens = [
            *self.context.tokens,
            *(self.tokens[step] for step in path_to(self.parents, node)),
        ]
        chance = self.chances[node] if node >= 0 else 1.0
        warp, proposal = self.context.warp, self.context.proposal
        law = warp.belief if proposal is Proposal.POINT else warp.draft_law
        q = law(logits, tokens)
        best = float(q.max())
        if not best > 0 or chance * best < self.plan.floor:
            return
        first, place = len(self.tokens), self.places[node] if node >= 0 else ()
        most = self.plan.children(place)
        if proposal is Proposal.POINT:
            self._take_likeliest(node, chance, q, most)
        elif proposal is Proposal.COUPLED:
            self._race(node, chance, q, most, len(tokens))
        else:
            self._draw(node, chance, q, most)
        born = len(self.tokens) - first
        self.confidences += [best] * born
        self.places += [(*place, rank) for rank in range(born)]

    def _take_likeliest(self, node: int, chance: float, q: torch.Tensor, most: int) -> None:
        width = min(most, len(q))
        # For one token topk takes three times as long.
        best = argmax(q[None]) if width == 1 else torch.topk(q, width).indices
        for token in best.tolist():
            share = float(q[token])
            if share > 0 and chance * share >= self.plan.floor:
                self._add(node, token, chance * share, None)

    def _race(self, node: int, chance: float, q: torch.Tensor, most: int, position: int) -> None:
        """The first tokens of the race that the target's own draw will run with p."""
        left = q.clone()
        for _ in range(most):
            if not float(left.max()) > 0:
                return
            token = self.context.noise.race(left, position)
            share = float(q[token])
            if chance * share >= self.plan.floor:
                self._add(node, token, chance * share, None)
            left[token] = 0.0

    def _draw(self, node: int, chance: float, q: torch.Tensor, most: int) -> None:
        """Independent draws, or draws without replacement; how many is settled beforehand."""
        whole = q
        later = self.plan.depth - self.depth - 1
        left = self.plan.nodes - len(self.tokens)
        for _ in range(min(most, left, max(1, left - later))):
            offset = len(self.tokens)
            token = self.context.noise.draw(q, len(self.context.tokens), Purpose.DRAFT, offset)
            self._add(node, token, chance * float(whole[token]), q)
            if self.context.proposal is Proposal.DISTINCT and most > 1:
                q = q.clone()
                q[token] = 0.0
                mass = q.sum(dtype=torch.float64)
                if not float(mass) > 0:
                    return
                q = q / mass.to(q.dtype)

    def _add(self, parent: int, token: int, chance: float, law: torch.Tensor | None) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance)
        self.columns.append(None)
        if law is not None:
            self.laws.append(law)

    def finish(self) -> RolledOut:
        """The draft; what no chance decided is cut to the nodes with most promise."""
        proposal = self.context.proposal
        kept = list(range(len(self.tokens)))
        if proposal not in _DRAWN and len(kept) > self.plan.nodes:
            # A child is never likelier than its parent, which comes first among equals.
            kept.sort(key=lambda node: (-self._promise(node), node))
            kept = sorted(kept[: self.plan.nodes])
        place = {node: i for i, node in enumerate(kept)} | {-1: -1}
        draft = Draft(
            tuple(self.tokens[node] for node in kept),
            tuple(place[self.parents[node]] for node in kept),
            torch.stack(self.laws) if self.laws else None,
            proposal,
            tuple(self.confidences[node] for node in kept),
        )
        return RolledOut(draft, tuple(self.columns[node] for node in kept))


def _fit(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Logits f[V] of the target's width; ids only one of the two pads with are impossible."""
    missing = vocab_size - logits.shape[-1]
    return pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[:vocab_size]
