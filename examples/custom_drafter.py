"""A drafter of your own: it always guesses that the last two tokens go on alternating."""

from collections.abc import Sequence

import draftproof as dp
from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.drafters.base import Drafting


class Alternating(Drafting):
    name = "alternating"
    proposals = frozenset({Proposal.POINT})  # fixed by a rule, so no q is needed

    def begin(self, target_cache: object) -> "Alternating":
        return self  # keeps no state of its own

    def propose(self, contexts: Sequence[Context], plans: Sequence[Plan]) -> list[Draft]:
        drafts = []
        for context, plan in zip(contexts, plans, strict=True):
            guess = (list(context.tokens[-2:]) * plan.depth)[: plan.depth]
            drafts.append(Draft.chain(guess, Proposal.POINT))
        return drafts


spec = dp.Speculator.from_pretrained("smollm2-135m", drafter=Alternating())
output = spec.generate("0 1 " * 12, dp.SamplingParams(max_tokens=16))
print("text:", output.text.strip())
print("accepted:", output.stats.accepted, "of", output.stats.drafted)
