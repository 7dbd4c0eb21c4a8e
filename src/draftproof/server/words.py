"""What single tokens look like in log-probabilities."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from draftproof.models.lexicon import Lexicon


class Words:
    """The text and the bytes of each id of a tokenizer."""

    def __init__(self, tokenizer: Any, num_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = num_tokens

    def prepare(self) -> None:
        """Read the vocabulary, which takes a second for a large one; `read` does it otherwise."""
        if self._tokenizer is not None:
            _ = self._markers

    def read(self, token: int) -> tuple[str, bytes]:
        """A token that is no whole text by itself is written as `bytes:\\xe2\\x80`."""
        data = self._bytes(token)
        try:
            return data.decode(), data
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data

    def _bytes(self, token: int) -> bytes:
        if self._tokenizer is None:
            return str(token).encode()
        if token in self._markers:
            return self._markers[token].encode()
        if self._lexicon.has_text and token in self._lexicon.texts:
            return self._lexicon.texts[token]
        return str(self._tokenizer.decode([token])).encode()

    @cached_property
    def _lexicon(self) -> Lexicon:
        return Lexicon(self._tokenizer, self._num_tokens)

    @cached_property
    def _markers(self) -> dict[int, str]:
        return {token: name for name, token in self._lexicon.markers.items()}
