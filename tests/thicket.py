"""Trees in which the right path is hidden among wrong ones, and a watch on what was drafted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace

from draftproof.core import Draft, Proposal
from draftproof.drafters.base import Drafting


class Thicket(Drafting):
    """Knows each prompt's continuation and hides as much of it as it likes, or nothing.

    Siblings stand in any order, and under a wrong one hangs the token that would be right next.
    """

    name = "thicket"
    proposals = frozenset({Proposal.POINT})

    def __init__(self, texts: Sequence[Sequence[int]], vocab: int, seed: int = 0) -> None:
        self._texts = [list(text) for text in texts]
        self._vocab = vocab
        self._dice = random.Random(seed)
        self.branches = 0
        """Right tokens that had a sibling before them."""

    def begin(self, target_cache):  # noqa: ARG002
        return self

    def propose(self, contexts, plans):
        return [
            self._tree(list(context.tokens), plan.depth)
            for context, plan in zip(contexts, plans, strict=True)
        ]

    def _tree(self, tokens: list[int], depth: int) -> Draft:
        text = next((text for text in self._texts if text[: len(tokens)] == tokens), tokens)
        right = text[len(tokens) : len(tokens) + self._dice.randint(0, depth)]
        drafted: list[int] = []
        parents: list[int] = []
        node = -1
        for level, token in enumerate(right):
            others = [other for other in range(self._vocab) if other != token]
            wrong = self._dice.sample(others, self._dice.randint(0, 2))
            siblings = self._dice.sample([*wrong, token], len(wrong) + 1)
            first = len(drafted)
            drafted += siblings
            parents += [node] * len(siblings)
            self.branches += siblings[0] != token
            if wrong and level + 1 < len(right):
                drafted.append(right[level + 1])
                parents.append(first + siblings.index(wrong[0]))
            node = first + siblings.index(token)
            if self._dice.random() < 0.2:
                break
        return Draft(tuple(drafted), tuple(parents), None, Proposal.POINT)


class Watched:
    """A drafter whose drafts are kept, each with the text that it was made behind."""

    def __init__(self, drafter) -> None:
        self.name, self.proposals = drafter.name, drafter.proposals
        self.drafts: list[tuple[list[int], Draft]] = []
        self._drafter = drafter

    def begin(self, target_cache):
        drafting = self._drafter.begin(target_cache)

        def propose(contexts, plans):
            drafts = drafting.propose(contexts, plans)
            texts = [list(context.tokens) for context in contexts]
            self.drafts += zip(texts, drafts, strict=True)
            return drafts

        return SimpleNamespace(
            propose=propose,
            observe=drafting.observe,
            read=drafting.read,
            release=drafting.release,
            forget=drafting.forget,
            move=drafting.move,
        )
