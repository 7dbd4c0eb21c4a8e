"""The peer's end of the pipe: `python -m draftproof.bench.peers.worker`, started by `process`."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any, TextIO

from draftproof.bench.peers.base import Job, Start, make_peer
from draftproof.errors import DraftproofError


def main() -> None:
    """Load one peer, then answer one job a line until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us closes the pipe
    jobs, answers = _own_channel()
    try:
        peer = _ready(Start(**json.loads(jobs.readline())))
        _send(answers, {"ready": True})
        for line in jobs:
            _send(answers, asdict(peer.generate(Job(**json.loads(line)))))
    except DraftproofError as error:
        _send(answers, {"error": str(error)})


def _own_channel() -> tuple[TextIO, TextIO]:
    """Take standard input and output away from everybody else: what libraries print is no answer.

    Prints, those of C code too, go to standard error from here on.
    """
    jobs, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.flush()
    os.dup2(2, 1)
    return jobs, answers


def _ready(start: Start) -> Any:
    import torch

    torch.set_num_threads(start.threads)
    return make_peer(start)


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
