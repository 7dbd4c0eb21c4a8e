"""Which tokens may follow a text under a grammar; it knows no model and no draft.

A matcher answers for any text: what it says depends on the ids it is asked about and on nothing it
was asked before. Texts that share a beginning with the last one are cheap, as a drafted path does
with the text it hangs from: the parser steps back to where they part and reads on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from draftproof.config import MAX_NODES
from draftproof.errors import LimitExceeded

if TYPE_CHECKING:
    from llguidance import LLMatcher

Ids = tuple[int, ...]
_REMEMBERED = 2 * (MAX_NODES + 1)
"""Answers of one round: the drafter asks for a node, then the target asks for the same."""


@dataclass(frozen=True, slots=True)
class Next:
    """What may follow one text."""

    allowed: np.ndarray[Any, np.dtype[np.uint8]]
    """One bit for each id, the lowest bit of a byte first."""
    is_over: bool
    """The text is complete and cannot go on."""


class Matcher:
    """Follows one sequence's text through a grammar.

    An end id is allowed exactly where the text is complete, whatever text it may stand for.
    """

    def __init__(
        self, compile_: Callable[[], LLMatcher], num_tokens: int, end_ids: Collection[int]
    ) -> None:
        """`compile_` makes parsers whose texts end with id `num_tokens`; lower ids are the model's.

        Copies of one parser would share its lexer, and with it a limit that one of them met.
        """
        self._compile = compile_
        self._parser = compile_()
        self._read: Ids = ()
        self._num_tokens = num_tokens
        self._ends = _packed(end_ids, num_tokens)
        self._texts = _packed(range(num_tokens), num_tokens) & ~self._ends
        self._answers: dict[Ids, Next] = {}

    def after(self, text: Ids) -> Next:
        """What may follow the generated ids `text`; nothing where `text` itself is not allowed."""
        answer = self._answers.get(text)
        if answer is None:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            answer = self._answers[text] = self._look(text)
        return answer

    def ban(self, scores: torch.Tensor, answers: list[Next]) -> None:
        """Write -inf over the logits f[N, V] of what `answers`, one for each row, do not allow."""
        packed = np.stack([answer.allowed for answer in answers])
        bits = np.unpackbits(~packed, axis=1, bitorder="little", count=self._num_tokens)
        rows, banned = scores[:, : self._num_tokens], bits.view(np.bool_)
        if scores.device.type == "cpu":  # numpy takes a quarter of torch's time, and no other core
            np.copyto(rows.numpy(), -np.inf, where=banned)
        else:
            rows.masked_fill_(torch.from_numpy(banned).to(scores.device), -torch.inf)

    def nothing(self) -> Next:
        """No token may follow."""
        return Next(np.zeros_like(self._ends), is_over=False)

    def _look(self, text: Ids) -> Next:
        if not self._goes_to(text):
            return self.nothing()
        bits = np.frombuffer(self._parser.compute_bitmask(), dtype=np.uint8)
        if self._parser.get_error().startswith("NoExtension"):  # no token spells what is wanted
            self._restart()
            return self.nothing()
        self._check()
        complete = self._parser.is_accepting()
        texts = bits & self._texts
        return Next(texts | self._ends if complete else texts, complete and not texts.any())

    def _goes_to(self, text: Ids) -> bool:
        """Let the parser read `text`; False where it does not allow it."""
        shared = min(len(text), len(self._read))
        while text[:shared] != self._read[:shared]:
            shared -= 1
        if shared < len(self._read):
            self._parser.rollback(len(self._read) - shared)
        self._read = text[:shared]
        rest = list(text[shared:])
        if any(token >= self._num_tokens for token in rest):
            return False
        taken = self._parser.try_consume_tokens(rest)
        self._check()
        self._read = text[: shared + taken]
        return bool(taken == len(rest))

    def _check(self) -> None:
        """A parser that met a limit is of no more use; say so and start a new one."""
        if not self._parser.is_error():
            return
        reason = self._parser.get_error().splitlines()[0]
        self._restart()
        raise LimitExceeded(
            f"the grammar takes more work for one token than is allowed ({reason}); "
            "give a simpler one"
        )

    def _restart(self) -> None:
        self._parser, self._read = self._compile(), ()


def _packed(ids: Collection[int], num_tokens: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One bit for each id up to `num_tokens`, in whole words of 32 bits as the parser's masks."""
    bits = np.zeros((num_tokens // 32 + 1) * 32, dtype=np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little")
