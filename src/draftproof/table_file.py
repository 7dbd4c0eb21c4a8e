"""A JSON file of what was measured on this machine, in the user's cache."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

Table = dict[str, dict[str, Any]]
"""What the measurements hold for -> the measurements."""


def read_table(path: Path) -> Table:
    """The file's table; an empty one where there is none, or one that cannot be read."""
    with suppress(OSError, ValueError):
        table = json.loads(path.read_text())
        if isinstance(table, dict) and all(isinstance(part, dict) for part in table.values()):
            return table
    return {}


def write_table(path: Path, table: Mapping[str, Mapping[Any, Any]]) -> None:
    """Put the table in place whole; a cache that cannot be written is done without."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(table, file, indent=1)
        os.replace(file.name, path)
