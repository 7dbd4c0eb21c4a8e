"""Token ids to text pieces that never split a character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

_CONTEXT_TOKENS = 5
_BROKEN = "\ufffd"
_LONGEST_CONTEXT = 80


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
    token is decoded behind a few earlier ones and the text of those is cut off. Text that ends in
    U+FFFD is held back: the next token may complete the character, and a decoder with byte
    fallback shows a whole run of bytes as broken until then.
    """

    def __init__(self, decoder: Decoder | None, prompt: Sequence[int]) -> None:
        self._decoder = decoder
        self._ids: list[int] = []
        self._before = ""
        self._given = 0
        self._restart(prompt)

    def push(self, token: int) -> str:
        """The text that is certain once `token` has come; may be empty."""
        self._ids.append(token)
        text = self._decode(self._ids)
        certain = text.rstrip(_BROKEN)
        piece = certain[len(self._before) + self._given :]
        self._given += len(piece)
        if certain == text and len(self._ids) > _CONTEXT_TOKENS:
            self._restart(self._ids)
        return piece

    def _restart(self, ids: Sequence[int]) -> None:
        """Keep the last few of `ids`, as many as it takes to begin and end with whole text."""
        size = _CONTEXT_TOKENS
        while True:
            self._ids = list(ids[-size:])
            self._before = self._decode(self._ids)
            self._given = 0
            whole = bool(self._before) and _BROKEN not in self._before
            if whole or size >= min(len(ids), _LONGEST_CONTEXT):
                return
            size *= 2

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
