"""Toy laws, drafts, decoders and deliberately wrong rules that several tests share."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from types import SimpleNamespace

import torch

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.core import Draft, Proposal, Purpose, Verdict
from draftproof.drafters.base import Drafting
from draftproof.drafters.model import ModelDrafter
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.draw import residual

EXACT = 1e-12
"""More than rounding of sums of float64 products, less than any bias worth the name."""


# Laws ---------------------------------------------------------------------------------------


def constant_law(*chances):
    """The same law after every prefix."""
    return lambda _prefix: chances


def likeliest(law):
    """The law at temperature 0."""

    def greedy(prefix):
        chances = list(law(prefix))
        return [float(token == chances.index(max(chances))) for token in range(len(chances))]

    return greedy


def top(law, k):
    """The law cut to its k likeliest tokens."""

    def cut(prefix):
        chances = list(law(prefix))
        least = sorted(chances)[-k]
        kept = [chance if chance >= least else 0.0 for chance in chances]
        return [chance / sum(kept) for chance in kept]

    return cut


def only(law, tokens):
    """The law restricted to `tokens`."""

    def restricted(prefix):
        kept = [chance if v in tokens else 0.0 for v, chance in enumerate(law(prefix))]
        return [chance / sum(kept) for chance in kept]

    return restricted


def opposite(law):
    """Likely where `law` is unlikely: an adversarial drafter."""

    def turned(prefix):
        weights = [1 / (chance + 0.01) for chance in law(prefix)]
        return [weight / sum(weights) for weight in weights]

    return turned


def flattened(law):
    """Mixed with the uniform law, so that every token comes up often enough to be counted."""

    def mixed(prefix):
        chances = list(law(prefix))
        return [0.6 * chance + 0.4 / len(chances) for chance in chances]

    return mixed


def remembered(law):
    """The same law, computed once per prefix."""
    return functools.lru_cache(maxsize=None)(law)


def pairs_of_laws():
    """Name -> (target, draft): three tokens, p and q as unlike as they can be."""
    a, b = random_law(3, seed=1), random_law(3, seed=2)
    return {
        "random": (a, b),
        "zeros": (random_law(3, seed=3, zeros=0.4), random_law(3, seed=4, zeros=0.4)),
        "equal": (a, a),
        "cut to different supports": (top(a, 2), top(b, 2)),
        "disjoint": (only(a, {0, 1}), only(b, {2})),
        "the draft knows one token": (a, likeliest(b)),
        "the target knows one token": (likeliest(a), b),
        "adversarial": (a, opposite(a)),
    }


# One round ----------------------------------------------------------------------------------


def rows_of(law, draft, prefix=()):
    """p f64[N+1, V] of a draft behind `prefix`."""
    paths = [[draft.tokens[i] for i in draft.path(node)] for node in range(len(draft.tokens))]
    return torch.tensor([law((*prefix, *path)) for path in [[], *paths]], dtype=torch.float64)


def round_program(verifier, target, propose, depth):
    """A program for `enumerate_outcomes`: the number of accepted tokens of the first round."""

    def program(noise):
        draft = propose((), depth, noise)
        return len(verifier.verify(draft, rows_of(target, draft), 0, noise).accepted)

    return program


def sibling_proposer(law, depth, proposal, width=2, grows=lambda _child, _path: True):
    """Trees with `width` children per node: POINT the likeliest, DISTINCT or SAMPLED drawn.

    `grows(number among its siblings, drafted path)` decides whether a node gets children.
    """

    def propose(prefix, most, noise):
        tokens, parents, laws = [], [], []
        level = [(-1, ())]
        for _ in range(min(depth, most)):
            grown = []
            for node, path in level:
                left = torch.tensor(law((*prefix, *path)), dtype=torch.float64)
                for child in range(width):
                    if not float(left.sum()) > 0:
                        break
                    q = left / left.sum()
                    if proposal is Proposal.POINT:
                        token = int(q.argmax())
                    else:
                        token = noise.draw(q, len(prefix), Purpose.DRAFT, len(tokens))
                    if proposal is not Proposal.SAMPLED:
                        left[token] = 0.0
                    if grows(child, (*path, token)):
                        grown.append((len(tokens), (*path, token)))
                    tokens.append(token)
                    parents.append(node)
                    laws.append(q)
            level = grown
        q = torch.stack(laws) if laws and proposal is not Proposal.POINT else None
        return Draft(tuple(tokens), tuple(parents), q, proposal)

    return propose


# Wrong rules --------------------------------------------------------------------------------


class ResampleFromTarget:
    """Tokenwise that draws the correction from p instead of the residual."""

    name = "tokenwise"
    accepts = frozenset({Proposal.POINT, Proposal.SAMPLED})
    greedy = False
    keyed = False
    trees = False

    def verify(self, draft, p, position, noise):
        for i, x in enumerate(draft.tokens):
            q = draft.q[i] if draft.q is not None else one_hot(x, p[i])
            if not noise.accepts(float(p[i, x]), float(q[x]), position, i):
                y = noise.draw(self.correction(p[i], q, x), position, Purpose.CORRECTION)
                return Verdict(tuple(range(i)), y, all_accepted=False)
        depth = len(draft.tokens)
        y = noise.draw(p[depth], position, Purpose.CORRECTION)
        return Verdict(tuple(range(depth)), y, all_accepted=True)

    def correction(self, p, q, x):  # noqa: ARG002
        return p


class RightResidual(ResampleFromTarget):
    """The same code with the right correction: shows that the harness itself is sound."""

    def correction(self, p, q, x):  # noqa: ARG002
        left = residual(p, q)
        return left if left.sum() > 0 else p


def one_hot(token, like):
    law = torch.zeros_like(like)
    law[token] = 1.0
    return law


# Whole systems ------------------------------------------------------------------------------


def toy_speculator(target, draft, vocab_size, depth=3, **others):
    """Two table models; `target` and `draft` are laws or ToyModels."""
    target = target if isinstance(target, ToyModel) else ToyModel(target, vocab_size)
    draft = draft if isinstance(draft, ToyModel) else ToyModel(draft, vocab_size)
    drafter = ModelDrafter(draft, target.vocab_size, prefill_chunk=4)
    return Speculator(target, drafter, settings=EngineSettings(depth=depth), **others)


class Varied:
    """A drafter whose plans are changed by `changes`, call by call and row by row, in turn.

    A change is a depth, or a dictionary of a plan's fields; neither exceeds the plan's depth.
    """

    def __init__(self, drafter, changes: Sequence):
        self.name = drafter.name
        self.proposals = drafter.proposals
        self._drafter = drafter
        self._changes = [{"depth": one} if isinstance(one, int) else one for one in changes]

    def begin(self, target_cache):
        drafting = self._drafter.begin(target_cache)
        propose, turns = drafting.propose, itertools.cycle(self._changes)

        def changed(plan):
            change = next(turns)
            depth = min(plan.depth, change.get("depth", plan.depth))
            return dataclasses.replace(plan, **{**change, "depth": depth})

        return SimpleNamespace(
            propose=lambda contexts, plans: propose(contexts, [changed(plan) for plan in plans]),
            observe=drafting.observe,
            read=drafting.read,
            release=drafting.release,
            forget=drafting.forget,
            move=drafting.move,
        )


class Scripted(Drafting):
    """Drafts what `script(tokens)` says, as POINT."""

    name = "scripted"
    proposals = frozenset({Proposal.POINT})

    def __init__(self, script):
        self._script = script

    def begin(self, target_cache):  # noqa: ARG002
        return self

    def propose(self, contexts, plans):
        return [
            self.draft(tuple(context.tokens), plan)
            for context, plan in zip(contexts, plans, strict=True)
        ]

    def draft(self, tokens, plan):
        return Draft.chain(self._script(tokens)[: plan.depth], Proposal.POINT)


class Comb(Drafting):
    """Trees: the likeliest `width` tokens of `law` at every level, the next level below the first.

    anchor ── 0 ── 2 ── 4        accepted nodes have gaps between them
          └── 1 └─ 3 └─ 5
    """

    name = "comb"
    proposals = frozenset({Proposal.POINT})

    def __init__(self, law, width=2, deepest=3):
        self._law = law
        self._width = width
        self._deepest = deepest

    def begin(self, target_cache):  # noqa: ARG002
        return self

    def propose(self, contexts, plans):
        drafts = []
        for context, plan in zip(contexts, plans, strict=True):
            tokens, parents, path, node = [], [], list(context.tokens), -1
            for _ in range(min(plan.depth, self._deepest)):
                law = self._law(tuple(path))
                best = sorted(range(len(law)), key=lambda v, law=law: -law[v])[: self._width]
                parents += [node] * self._width
                node = len(tokens)
                tokens += best
                path.append(best[0])
            drafts.append(Draft(tuple(tokens), tuple(parents), None, Proposal.POINT))
        return drafts


class Letters:
    """A tokenizer whose token i is the i-th string of `pieces` (or its bytes)."""

    chat_template = None

    def __init__(self, pieces):
        self.pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]

    def get_vocab(self):
        return {f"<{i}>": i for i in range(len(self.pieces))}

    def encode(self, text, *, add_special_tokens=True):  # noqa: ARG002
        ids, left = [], text.encode()
        while left:
            token = max(
                (i for i, piece in enumerate(self.pieces) if piece and left.startswith(piece)),
                key=lambda i: len(self.pieces[i]),
            )
            ids.append(token)
            left = left[len(self.pieces[token]) :]
        return ids

    def decode(self, ids, *, skip_special_tokens=False, clean_up_tokenization_spaces=None):  # noqa: ARG002
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")
