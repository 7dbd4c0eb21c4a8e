"""Text of tokenizers with byte fallback, where one unfinished character hides a whole run."""

from __future__ import annotations

import pytest
from tokenizers import decoders

from tests.decode.test_text import BROKEN, streamed


class ByteFallback:
    """Tokens are bytes, decoded as SentencePiece models with byte fallback do."""

    def __init__(self):
        self._decoder = decoders.ByteFallback()

    def decode(self, ids, **_kwargs):
        return "".join(self._decoder.decode([f"<0x{byte:02X}>" for byte in ids]))


@pytest.mark.parametrize("text", ["é", "日本", "日本語の文章", "😀😀😀", "ñ日😀é"])
def test_byte_fallback_decoder_that_breaks_a_whole_run_shows_whole_characters(text):
    """It marks every byte of a run as broken while the last character of the run is unfinished."""
    shown = streamed(ByteFallback(), list(text.encode()))
    assert "".join(shown) == text
    assert not any(BROKEN in piece for piece in shown)


@pytest.mark.parametrize("split", range(6))
def test_byte_fallback_behind_a_prompt_that_ends_in_bytes(split):
    text = "日本語の文章"
    prompt, rest = text[:split], text[split:]
    shown = streamed(ByteFallback(), list(rest.encode()), list(prompt.encode()))
    assert "".join(shown) == rest
