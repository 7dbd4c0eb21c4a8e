"""The log: one line of JSON for whatever happens, and no text of users in it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any

from draftproof.errors import kind_and_place

log = logging.getLogger("draftproof.server")
"""Its lines are JSON already."""


class Lines(logging.Formatter):
    """Lines of other parts of the library become JSON like those of requests."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == log.name:
            return record.getMessage()
        line: dict[str, Any] = {
            "time": now(),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = kind_and_place(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    everything = logging.getLogger("draftproof")
    everything.addHandler(handler)
    everything.setLevel(logging.INFO)
    everything.propagate = False


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
