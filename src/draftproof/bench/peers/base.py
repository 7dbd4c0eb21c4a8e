"""What a peer is: another decoder of the same target, asked for the same texts.

A peer lives in a process of its own, so that neither its memory nor its settings mix with ours.
Only the records here cross the border, as JSON lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftproof.errors import InvalidSetting

PEER_HELP = {
    "transformers": "transformers' own generate",
    "transformers-assisted:PATH": "its assisted generation, with the model at PATH as assistant",
    "transformers-lookup": "its prompt lookup",
}
BASELINE = "transformers"
"""The peer that speed-ups are stated against."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker is told once."""

    spec: str
    target: str
    dtype: str
    device: str
    threads: int


@dataclass(frozen=True, slots=True)
class Job:
    """One request; the peer goes on after end tokens, so that every text has `max_tokens`."""

    prompts: list[list[int]]
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and when."""

    token_ids: list[list[int]]
    """Generated ids of each prompt."""
    seconds: float
    """Wall time of the whole call."""
    first_seconds: float
    """Wall time until the first token, or the first few at once, was there."""
    first_tokens: int
    """How many tokens of each prompt came at that time."""
    peak_bytes: int | None


class Peer(Protocol):
    """One way of decoding, around a loaded target; lives in the worker."""

    def generate(self, job: Job) -> Answer: ...


def check_peer(spec: str) -> None:
    """Refuse a name that no peer has; told before a model is loaded for it."""
    name, _, argument = spec.partition(":")
    if name == "transformers-assisted" and argument:
        return
    if name == "transformers-assisted" or spec not in PEER_HELP:
        raise InvalidSetting(f"peer is {spec!r}; choose none, or from {', '.join(PEER_HELP)}")


def why_unsupported(spec: str, batch: int) -> str | None:
    """Why a peer cannot take part in a setting; None where it can."""
    if batch > 1 and spec != BASELINE:
        return "transformers drafts for one prompt at a time"
    return None


def make_peer(start: Start) -> Peer:
    """The peer that `start.spec` names, its models loaded."""
    check_peer(start.spec)
    from draftproof.bench.peers.transformers import TransformersPeer

    return TransformersPeer(start)
