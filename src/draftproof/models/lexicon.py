"""What the ids of a tokenizer stand for: bytes of text, or markers; no library's tokenizer here.

Byte-level vocabularies (Radford et al. 2019, GPT-2) write every byte as a letter of its own.
SentencePiece (Kudo & Richardson 2018) writes a space as U+2581 and a byte that it has no token for
as <0xNN>. Both make text of ids by joining the bytes of each, which is what lets two of them be
compared and aligned. In other vocabularies (whole words, word pieces) a token's text depends on
its neighbours; their tokens have names only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_SPACE = "\u2581"
_BYTE_SPACE = "\u0120"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTINUATION = bytes(range(0x80, 0xC0))

Meaning = bytes | str
"""The bytes an id stands for; the token itself in a vocabulary without text."""


class Lexicon:
    """A tokenizer's ids below `size`, the number of ids that the model knows."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self._tokenizer = tokenizer
        vocabulary = {token: i for token, i in tokenizer.get_vocab().items() if i < size}
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {i for i, token in added.items() if token.special}
        special |= set(getattr(tokenizer, "all_special_ids", ()))
        self.end: int | None = getattr(tokenizer, "eos_token_id", None)
        self.start: int | None = getattr(tokenizer, "bos_token_id", None)
        self.markers = {token: i for token, i in vocabulary.items() if i in special}
        """Special tokens by name; they stand for no text."""
        opens = self.start is not None and tokenizer.encode("") == [self.start]
        self.opening = [i for i in [self.start] if i is not None and opens]
        """What the tokenizer puts before every text, and the model expects there."""
        void = {getattr(tokenizer, f"{role}_token_id", None) for role in ("unk", "pad")}
        self.void = void - {self.end, self.start}
        """Ids that say nothing: unknown text and padding."""
        ordinary = {token: i for token, i in vocabulary.items() if i not in special}
        self.has_text, meanings = _read(ordinary, set(added))
        self.texts = {i: text for i, text in meanings.items() if isinstance(text, bytes)}
        """Bytes by id."""
        self.ids = _preferred(meanings, ordinary)
        """Id by meaning; of several the one that the tokenizer would write."""
        # SentencePiece may put a space before a text; before a line break it does no harm.
        self._lead = "\n" if any(token.startswith(_SPACE) for token in ordinary) else ""

    @property
    def num_tokens(self) -> int:
        """How many different things can be said."""
        return len(self.ids) + len(self.markers)

    def split(self, before: bytes, after: bytes) -> tuple[list[int], list[int]] | None:
        """The ids of `before + after`, parted where `after` begins.

        None where there is no such place, because one token covers it or the text is no UTF-8,
        or where the ids would not read as `after`: some tokenizers change what they are given.
        """
        try:
            text = (before + after).decode()
        except UnicodeDecodeError:
            return None
        ids = self._tokenizer.encode(self._lead + text, add_special_tokens=False, verbose=False)
        cut, missing = len(ids), len(after)
        while missing > 0 and cut > 0 and ids[cut - 1] in self.texts:
            cut -= 1
            missing -= len(self.texts[ids[cut]])
        if missing or self.read(ids[cut:]) != after:
            return None
        return ids[:cut], ids[cut:]

    def read(self, ids: Iterable[int]) -> bytes:
        """The text of `ids`, markers left out."""
        return b"".join(self.texts.get(i, b"") for i in ids)

    def write(self, before: bytes, data: bytes) -> list[int]:
        """Ids that stand for `data` behind `before`; bytes that have no id are left out."""
        whole = whole_characters(before + data)[len(before) :]
        parts = self.split(before, whole) or self.split(b"", whole)
        ids = parts[1] if parts else self._spell(whole)
        return ids + self._spell(data[len(whole) :])

    def text_before(self, ids: Sequence[int], end: int, most: int) -> bytes:
        """The text of up to `most` ids before index `end`, from a whole character on.

        It begins behind the last marker: no token reaches across one.
        """
        start = end
        while start > max(0, end - most) and ids[start - 1] in self.texts:
            start -= 1
        return self.read(ids[start:end]).lstrip(_CONTINUATION)

    def _spell(self, data: bytes) -> list[int]:
        """One id per byte."""
        ids = (self.ids.get(bytes([byte])) for byte in data)
        return [i for i in ids if i is not None]


def whole_characters(data: bytes) -> bytes:
    """`data` without an unfinished UTF-8 character at its end."""
    for length in range(1, min(4, len(data) + 1)):
        lead = data[-length]
        if lead >= 0xC0:
            needed = 2 + (lead >= 0xE0) + (lead >= 0xF0)
            return data[:-length] if length < needed else data
        if lead < 0x80:
            break
    return data


def _read(ordinary: dict[str, int], added: set[int]) -> tuple[bool, dict[int, Meaning]]:
    """Whether the tokens are pieces of text, and what each id means."""
    spaces = sum(token.startswith(_SPACE) for token in ordinary)
    byte_spaces = sum(token.startswith(_BYTE_SPACE) for token in ordinary)
    if not spaces and not byte_spaces:
        return False, {i: token for token, i in ordinary.items()}
    letters = _byte_letters()

    def text(token: str, i: int) -> bytes:
        if i in added:
            return token.encode()
        if byte_spaces > spaces:
            known = all(letter in letters for letter in token)
            return bytes(letters[letter] for letter in token) if known else token.encode()
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(byte[1])
        return token.replace(_SPACE, " ").encode()

    return True, {i: text(token, i) for token, i in ordinary.items()}


def _preferred(meanings: dict[int, Meaning], ordinary: dict[str, int]) -> dict[Meaning, int]:
    """One id per meaning: a byte token only where no other token stands for the byte."""
    names = {i: token for token, i in ordinary.items()}
    ids: dict[Meaning, int] = {}
    for i in sorted(names, key=lambda i: (bool(_BYTE_TOKEN.fullmatch(names[i])), i)):
        ids.setdefault(meanings[i], i)
    return ids


def _byte_letters() -> dict[str, int]:
    """The letters of byte-level vocabularies: printable Latin-1 as itself, the rest from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = sorted(set(range(0x100)) - printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }
