"""The records that every part exchanges; nothing here computes or knows a model.

Letters: B sequences, W nodes fed per sequence, N drafted nodes, V vocabulary, H hidden size,
L layers. p is the target's distribution, q the drafter's, as in Leviathan et al. 2023.

A draft is a tree of nodes hanging from the anchor, the last committed token, which the target's
cache does not hold yet. Node i has parent parents[i] < i, or -1 for a child of the anchor:

    anchor ── 0 ── 1 ── 3         tokens  = [t0, t1, t2, t3]
              └─── 2              parents = [-1,  0,  0,  1]
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from draftproof.config import MAX_NODES
from draftproof.static_tree import Place, StaticTree

if TYPE_CHECKING:
    import torch

    from draftproof.sampling.noise import Noise
    from draftproof.sampling.warp import Warp

FinishReason = Literal["stop", "length"]
Origin = Literal["accepted", "correction", "bonus", "plain"]


class Proposal(enum.Enum):
    """How a draft's tokens were drawn; it decides which rules may judge them."""

    POINT = "point"
    """Fixed by a rule from the tokens before it: n-gram, argmax."""
    SAMPLED = "sampled"
    """Drawn independently from q."""
    DISTINCT = "distinct"
    """Drawn from q without replacement."""
    COUPLED = "coupled"
    """argmin over v of E[v] / q[v], with the sequence's shared exponential noise E."""


class Purpose(enum.IntEnum):
    """What a random number is for; part of its key, so no number serves twice."""

    TARGET = 0
    """The target's own draw; COUPLED drafts share it."""
    DRAFT = 1
    ACCEPT = 2
    CORRECTION = 3
    RACE = 4
    """The exponential numbers of a race; its offset counts blocks."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a drafter may know of one sequence."""

    seq_id: int
    row: int
    """Row of the sequence in the target's cache."""
    tokens: Sequence[int]
    """All committed ids, prompt first; the last one is the anchor."""
    warp: Warp
    """The sequence's own logits-to-distribution map."""
    noise: Noise
    proposal: Proposal
    """How the drafter has to draw, agreed with the verifier at construction."""
    prompt_length: int = 0
    """How many of the tokens are the prompt."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How far and how wide to draft next; depth 0 is plain decoding. Upper limits, all of them."""

    depth: int
    width: int = 1
    """Children of a node, and nodes of a level that get children; 1 drafts a chain."""
    nodes: int = MAX_NODES
    """Nodes of the whole draft."""
    floor: float = 0.0
    """Leave a path where the drafter itself finds it less likely than this."""
    min_confidence: float = 0.0
    """Go on behind a token only if a model that drafts was at least so sure at its place, as
    `Draft.confidences` says; look-ups have no such number."""
    tree: StaticTree | None = None
    """The only places that may get a token; `depth`, `width` and `nodes` are then its own, or less
    deep."""
    bar: float = 0.0
    """For the look-up of a hybrid: how many tokens its draft has to promise, beyond `floor` for
    each of its nodes."""
    lookup: Plan | None = None
    """What the look-up of a hybrid may draft instead; None leaves it to the hybrid."""

    def children(self, place: Place) -> int:
        """Most children of the node at `place`, the ranks down to it; () is the anchor."""
        return self.width if self.tree is None else self.tree.children(place)

    @property
    def fertile(self) -> int:
        """How many nodes of a level may get children."""
        return self.width if self.tree is None else self.nodes


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the anchor's child down to `node`; [] for the anchor, -1."""
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = parents[node]
    return nodes[::-1]


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of proposed tokens."""

    tokens: tuple[int, ...]
    """i64[N]"""
    parents: tuple[int, ...]
    """i64[N], parents[i] < i, -1 = child of the anchor."""
    q: torch.Tensor | None
    """f[N, V], the law each token was drawn from; present exactly for SAMPLED and DISTINCT."""
    proposal: Proposal
    confidences: tuple[float, ...] | None = None
    """f[N], the probability of the token that the drafter found likeliest at each node's place;
    it is known before the node is drawn. None where a drafter has no law."""
    promised: float | None = None
    """How many of its tokens the look-up of a hybrid expects to be accepted, where it made the
    draft and so no model ran."""

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents)
        assert self.confidences is None or len(self.confidences) == len(self.tokens)
        assert all(-1 <= parent < i for i, parent in enumerate(self.parents))
        needs_q = self.proposal in (Proposal.SAMPLED, Proposal.DISTINCT) and bool(self.tokens)
        assert (self.q is not None) == needs_q, "q is present exactly for drawn tokens"
        assert self.q is None or self.q.shape[0] == len(self.tokens)

    @classmethod
    def chain(
        cls, tokens: Sequence[int], proposal: Proposal, q: torch.Tensor | None = None
    ) -> Draft:
        """A draft without branches: every node hangs from the one before it."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), q, proposal)

    @property
    def is_chain(self) -> bool:
        return all(parent == i - 1 for i, parent in enumerate(self.parents))

    def children(self, node: int) -> list[int]:
        """The children of `node` (-1 = anchor), in the order in which they were drawn."""
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` (-1 = anchor) that carries `token`, or None."""
        for i, parent in enumerate(self.parents):
            if parent == node and self.tokens[i] == token:
                return i
        return None

    @property
    def depth(self) -> int:
        """Tokens down the longest path."""
        if self.is_chain:
            return len(self.tokens)
        return max(len(self.path(node)) for node in range(len(self.tokens)))

    def path(self, node: int) -> list[int]:
        """Node indices from the anchor's child down to `node`; [] for the anchor."""
        return path_to(self.parents, node)


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """B anchors with their drafts, padded to one width W = 1 + max N."""

    tokens: torch.Tensor
    """i64[B, W]; column 0 is the anchor, column i+1 is node i."""
    positions: torch.Tensor
    """i64[B, W]; committed length - 1 + depth of the node."""
    mask: torch.Tensor
    """bool[B, W, E + W]; mask[b, i, j]: column i sees column j (itself and its ancestors), the
    E earlier columns first."""
    earlier: torch.Tensor
    """i64[B, E]; positions of the columns that passes before this one have left behind the
    committed tokens; E is 0 where a draft is fed in one pass."""
    counts: tuple[int, ...]
    """How many columns of each row are no padding; 0 for a row that sits this pass out."""


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What one forward pass says."""

    logits: torch.Tensor
    """f[B, W, V]; row 0 follows the anchor, row i+1 follows node i; undefined for padding."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided about one draft."""

    accepted: tuple[int, ...]
    """Node indices of the accepted path, from the anchor down."""
    next_token: int
    """The correction, or the bonus when the whole path was accepted."""
    all_accepted: bool
    """The path ends in a leaf, so `next_token` is the bonus."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one emitted position, from the target's raw logits."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The m most likely (id, logprob), best first."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one round added to one sequence, after the stop rules cut it."""

    seq_id: int
    tokens: tuple[int, ...]
    """Committed ids, at least one."""
    origins: tuple[Origin, ...]
    """Where each committed token came from."""
    drafted: int
    """Nodes of the draft."""
    depth: int
    """How many tokens down the draft went."""
    accepted: int
    """Drafted tokens that the rule accepted and the stop rules kept."""
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] | None
    texts: tuple[str, ...]
    """Text that can be shown after each token; joined over all steps it is the whole text."""
