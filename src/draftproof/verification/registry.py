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
from draftproof.verification.traversal import Traversal
from draftproof.verification.tree import Tree

VERIFIERS: dict[str, Verifier] = {
    rule.name: rule
    for rule in (Greedy(), Tokenwise(), Blockwise(), Tree(), Traversal(), Coupled(), Point())
}

# What a drafter that can do several is asked for, first what a rule can accept most of.
_PREFERENCE = (Proposal.SAMPLED, Proposal.COUPLED, Proposal.POINT, Proposal.DISTINCT)
_OWN_PREFERENCE = {
    "greedy": (Proposal.POINT, *_PREFERENCE),
    "coupled": (Proposal.COUPLED, Proposal.POINT, *_PREFERENCE),
    "tree": (Proposal.DISTINCT, *_PREFERENCE),
    "traversal": (Proposal.DISTINCT, *_PREFERENCE),
}


def find(verifier: str | Verifier) -> Verifier:
    """The rule of this name; an object of the user's own is its own rule."""
    if not isinstance(verifier, str):
        return verifier
    if verifier not in VERIFIERS:
        raise InvalidSetting(
            f"verifier is {verifier!r}; choose one of {', '.join(sorted(VERIFIERS))}"
        )
    return VERIFIERS[verifier]


def pair(proposals: frozenset[Proposal], drafter: str, verifier: str | Verifier) -> Pairing:
    """The rule `verifier` with the best proposal of the drafter that it accepts."""
    rule = find(verifier)
    for proposal in _OWN_PREFERENCE.get(rule.name, _PREFERENCE):
        if proposal in proposals and proposal in rule.accepts:
            return Pairing(rule, proposal)
    raise ProposalMismatch(
        f"the drafter {drafter!r} drafts {_names(proposals)}, which verifier {rule.name!r} cannot "
        f"judge without loss (it accepts {_names(rule.accepts)}); leave verifier unset"
    )


def choose(
    proposals: frozenset[Proposal],
    drafter: str,
    params: SamplingParams,
    verifier: str | Verifier | None,
    width: int | None = 1,
    remembers: bool = False,
) -> Pairing:
    """The pairing for one request; `verifier` overrides the choice at temperature > 0.

    Temperature 0 is always judged by the greedy rule, which every other rule becomes there.
    `width` above 1 asks for a rule that judges trees; None leaves open what is drafted, chains or
    trees, and a rule for chains will see chains. A drafter that `remembers` other requests
    may draft what an answer with the same seed has left, and a rule that reads that seed's numbers
    again would no longer be independent of the draft; keyed rules emit the target's own draw.
    """
    if params.is_greedy:
        return pair(proposals, drafter, "greedy")
    if verifier is not None:
        if remembers and params.seed is not None and not find(verifier).keyed:
            raise InvalidSetting(
                f"drafter {drafter!r} learns from other requests, and verifier "
                f"{find(verifier).name!r} with a seed would judge drafts by the very numbers that "
                "an earlier request with this seed was made with; leave verifier or seed unset"
            )
        if width is not None and width > 1 and not find(verifier).trees:
            raise InvalidSetting(
                f"verifier {find(verifier).name!r} judges chains and width is {width}; leave "
                "verifier unset, choose tree or traversal, or set width=1"
            )
        if find(verifier).greedy:
            raise InvalidSetting(
                f"verifier {find(verifier).name!r} is for temperature 0, and temperature is "
                f"{params.temperature:g}; leave verifier unset or set temperature=0"
            )
        return pair(proposals, drafter, verifier)
    if params.seed is not None:
        return pair(proposals, drafter, "coupled")
    if proposals == {Proposal.POINT}:
        return pair(proposals, drafter, "point")
    return pair(proposals, drafter, "blockwise" if width == 1 else "traversal")


def _names(proposals: frozenset[Proposal]) -> str:
    return ", ".join(sorted(proposal.value for proposal in proposals))
