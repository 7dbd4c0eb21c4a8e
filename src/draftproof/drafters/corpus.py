"""Texts to look up in: a plain text file, or JSON lines with a "text" each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftproof.errors import InvalidSetting

MAX_BYTES = 16 << 20
"""Largest file that is read, some 4 million tokens; a look-up among so many takes 1 to 2 ms."""


def read_corpus(path: str) -> list[str]:
    """The texts of a file that hold more than white space: one of plain text, one a JSON line.

    Raises InvalidSetting when the file is missing, unreadable, too large, or holds no text.
    """
    try:
        size = Path(path).stat().st_size
        if size > MAX_BYTES:
            raise InvalidSetting(
                f"the corpus {path} has {size >> 20} MiB and at most {MAX_BYTES >> 20} are read; "
                "give a part of it"
            )
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(
            f"the corpus {path} cannot be read as UTF-8 text ({error}); give a text file, or "
            '.jsonl with {"text": "..."} on each line'
        ) from error
    texts = _lines(path, content) if path.endswith(".jsonl") else [content]
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise InvalidSetting(f"the corpus {path} holds no text; leave the file away or fill it")
    return texts


def _lines(path: str, content: str) -> list[str]:
    # Not splitlines: JSON strings may hold other line separators as they are.
    lines = enumerate(content.split("\n"), start=1)
    return [_text(path, number, line) for number, line in lines if line.strip()]


def _text(path: str, number: int, line: str) -> str:
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidSetting(f"line {number} of {path} is no JSON: {error}") from error
    text = entry.get("text") if isinstance(entry, dict) else None
    if not isinstance(text, str):
        raise InvalidSetting(f'line {number} of {path} has no text; give {{"text": "..."}}')
    return text
