"""No drafts: the decode loop becomes plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.drafters.base import Drafting
from draftproof.models.cache import KVCache


class NoDrafter(Drafting):
    name = "none"
    proposals = frozenset({Proposal.POINT, Proposal.SAMPLED, Proposal.COUPLED})

    def begin(self, target_cache: KVCache) -> NoDrafter:  # noqa: ARG002
        return self

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:  # noqa: ARG002
        return [Draft.chain((), context.proposal) for context in contexts]
