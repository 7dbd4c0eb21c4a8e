"""Which rule judges which drafts; the pair is chosen and checked once, before any round."""

from __future__ import annotations

from draftproof.core import Proposal
from draftproof.errors import InvalidSetting, ProposalMismatch
from draftproof.sampling.params import SamplingParams
from draftproof.verification.base import Pairing, Verifier
from draftproof.verification.blockwise import Blockwise
from draftproof.verification.coupled import Coupled
from draftproof.verification.greedy import Greedy
from draftproof.verification.point import Point
from draftproof.verification.tokenwise import Tokenwise

VERIFIERS: dict[str, Verifier] = {
    rule.name: rule for rule in (Greedy(), Tokenwise(), Blockwise(), Coupled(), Point())
}

# What a drafter that can do several is asked for: the more a rule can accept, the earlier.
_PREFERENCE = {
    "greedy": (Proposal.POINT,),
    "tokenwise": (Proposal.SAMPLED, Proposal.POINT),
    "blockwise": (Proposal.SAMPLED, Proposal.POINT),
    "coupled": (Proposal.COUPLED, Proposal.POINT),
    "point": (Proposal.POINT,),
}


def check_name(name: str | None) -> None:
    """Refuse an unknown verifier name."""
    if name is not None and name not in VERIFIERS:
        raise InvalidSetting(f"verifier is {name!r}; choose one of {', '.join(sorted(VERIFIERS))}")


def pair(proposals: frozenset[Proposal], drafter: str, verifier: str) -> Pairing:
    """The rule `verifier` with the best proposal of the drafter that it accepts."""
    rule = VERIFIERS[verifier]
    for proposal in _PREFERENCE[verifier]:
        if proposal in proposals and proposal in rule.accepts:
            return Pairing(rule, proposal)
    raise ProposalMismatch(
        f"the drafter {drafter!r} drafts {_names(proposals)}, which verifier {verifier!r} cannot "
        f"judge without loss (it accepts {_names(rule.accepts)}); leave verifier unset"
    )


def choose(
    proposals: frozenset[Proposal], drafter: str, params: SamplingParams, verifier: str | None
) -> Pairing:
    """The pairing for one request; `verifier` overrides the choice at temperature > 0.

    Temperature 0 is always judged by the greedy rule, which every other rule becomes there.
    """
    if params.is_greedy:
        return pair(proposals, drafter, "greedy")
    if verifier == "greedy":
        raise InvalidSetting(
            f"verifier 'greedy' is for temperature 0, and temperature is {params.temperature:g}; "
            "leave verifier unset or set temperature=0"
        )
    if verifier is not None:
        return pair(proposals, drafter, verifier)
    if params.seed is not None:
        return pair(proposals, drafter, "coupled")
    if proposals == {Proposal.POINT}:
        return pair(proposals, drafter, "point")
    return pair(proposals, drafter, "blockwise")


def _names(proposals: frozenset[Proposal]) -> str:
    return ", ".join(sorted(proposal.value for proposal in proposals))
