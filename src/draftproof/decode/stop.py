"""Where a sequence ends: one place that cuts a round's tokens and text together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.core import FinishReason
from draftproof.decode.text import TextStream
from draftproof.sampling.matcher import Matcher
from draftproof.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Cut:
    """What is left of a round's tokens."""

    kept: int
    """How many of the tokens are kept; the last one may be what ended the sequence."""
    texts: tuple[str, ...]
    """Text that can be shown after each kept token."""
    finish_reason: FinishReason | None


class StopRules:
    """The stop rules of one sequence, with the text they have read so far.

    An end token or stop id is kept as a token and left out of the text. A stop string is kept up
    to the token that completes it and cut out of the text; text that could still become one is
    held back until that is decided. Under a grammar a text ends where it cannot go on.
    """

    def __init__(
        self,
        params: SamplingParams,
        end_ids: frozenset[int],
        stream: TextStream,
        max_length: int,
        matcher: Matcher | None = None,
    ) -> None:
        """`max_length` is the most ids, prompt included, that budget and context allow."""
        self._params = params
        self._end_ids = end_ids
        self._stream = stream
        self._max_length = max_length
        self._matcher = matcher
        self._held = ""

    def cut(self, committed: Sequence[int], prompt_length: int, tokens: Sequence[int]) -> Cut:
        """Read `tokens`, new behind `committed`, up to the first place that ends the sequence."""
        ids, texts = list(committed), []
        for kept, token in enumerate(tokens, start=1):
            ids.append(token)
            reason = self._read(ids, len(ids) - prompt_length)
            texts.append(self._shown(reason))
            if reason is not None:
                return Cut(kept, tuple(texts), reason)
        return Cut(len(tokens), tuple(texts), None)

    def _read(self, ids: Sequence[int], generated: int) -> FinishReason | None:
        """Take the last of `ids` into the text; why the sequence ends there, or None."""
        early = generated <= self._params.min_tokens
        if ids[-1] in self._end_ids and not early:
            self._held += self._stream.flush()
            return "stop"
        before = len(self._held)
        self._held += self._stream.push(ids[-1])
        if len(ids) >= self._max_length:
            self._held += self._stream.flush()
        at = self._stop_string(before)
        if at is not None and generated >= self._params.min_tokens:
            self._held = self._held[:at]
            return "stop"
        if self._is_over(ids, generated):
            self._held += self._stream.flush()
            return "stop"
        return "length" if len(ids) >= self._max_length else None

    def _is_over(self, ids: Sequence[int], generated: int) -> bool:
        if self._params.stop_rule is not None and self._params.stop_rule(ids):
            return True
        return self._matcher is not None and self._matcher.after(tuple(ids[-generated:])).is_over

    def _stop_string(self, before: int) -> int | None:
        """Where the first stop string begins that the text behind `before` completes."""
        places = [
            self._held.find(text, max(0, before - len(text) + 1))
            for text in self._params.stop_strings
        ]
        return min((place for place in places if place >= 0), default=None)

    def _shown(self, reason: FinishReason | None) -> str:
        """Release the held text, except an end that may become a stop string."""
        if reason is not None:
            shown, self._held = self._held, ""
            return shown
        keep = max(
            (
                size
                for text in self._params.stop_strings
                for size in range(1, min(len(text), len(self._held) + 1))
                if self._held.endswith(text[:size])
            ),
            default=0,
        )
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown
