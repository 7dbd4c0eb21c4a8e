"""Token ids to text pieces that never split a character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

_CONTEXT_TOKENS = 5
_BROKEN = "\ufffd"
_LONGEST_TAIL = 3  # bytes of an unfinished UTF-8 character; some decoders show one mark for each


class Decoder(Protocol):
    """The part of a tokenizer that turns ids into text."""

    def decode(
        self,
        token_ids: Any,
        *,
        skip_special_tokens: bool = ...,
        clean_up_tokenization_spaces: bool | None = ...,
    ) -> Any: ...


class TextStream:
    """The text behind a prompt, token by token.

    A tokenizer decodes a token differently at the start of a text than inside it, so each new
    token is decoded behind a few earlier ones and the text of those is cut off.
    """

    def __init__(self, decoder: Decoder | None, prompt: Sequence[int]) -> None:
        self._decoder = decoder
        self._ids = list(prompt[-_CONTEXT_TOKENS:])
        self._before = self._decode(self._ids)
        self._given = 0

    def push(self, token: int) -> str:
        """The text that is certain once `token` has come; may be empty."""
        self._ids.append(token)
        text = self._decode(self._ids)
        certain = len(text)
        while certain and text[certain - 1] == _BROKEN and len(text) - certain < _LONGEST_TAIL:
            certain -= 1
        piece = text[len(self._before) + self._given : certain]
        self._given += len(piece)
        if certain == len(text) and len(self._ids) > _CONTEXT_TOKENS:
            self._ids = self._ids[-_CONTEXT_TOKENS:]
            self._before = self._decode(self._ids)
            self._given = 0
        return piece

    def flush(self) -> str:
        """What is left at the end, an unfinished character shown as U+FFFD."""
        rest = self._decode(self._ids)[len(self._before) + self._given :]
        self._given += len(rest)
        return rest

    def _decode(self, ids: Sequence[int]) -> str:
        if self._decoder is None:
            return ""
        return str(
            self._decoder.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )
