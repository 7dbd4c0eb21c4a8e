"""A peer in a child process: started, asked, and shut down whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from draftproof.bench.peers.base import Answer, Job, Start, check_peer
from draftproof.errors import PeerFailed

_GRACE_S = 2.0
"""How long a child may take to leave by itself."""
_TAIL = 6
"""Lines of a dead child's standard error that are shown."""


class PeerProcess:
    """One peer; use as a context manager. `start` returns at once, `wait` when it is loaded."""

    def __init__(self, start: Start, command: tuple[str, ...] | None = None) -> None:
        check_peer(start.spec)
        self.spec = start.spec
        self._start = start
        module = "draftproof.bench.peers.worker"
        self._command = command or (sys.executable, "-m", module)
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> PeerProcess:
        self._errors = tempfile.TemporaryFile()  # a pipe could fill up and block it
        # As many threads in libraries that torch's own setting does not reach.
        env = os.environ | {"OMP_NUM_THREADS": str(self._start.threads)}
        self._child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            env=env,
        )
        with suppress(BrokenPipeError):  # a child that is dead already is found by `wait`
            self._write(asdict(self._start))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The child's process id; None when it does not run."""
        return None if self._child is None else self._child.pid

    def wait(self) -> None:
        """Return when the peer has loaded its models."""
        self._read()

    def generate(self, job: Job) -> Answer:
        """Have one job done; blocks until it is."""
        with suppress(BrokenPipeError):
            self._write(asdict(job))
        answer = Answer(**self._read())
        counts = {len(ids) for ids in answer.token_ids}
        if counts != {job.max_tokens} or len(answer.token_ids) != len(job.prompts):
            raise PeerFailed(
                f"the peer {self.spec} was asked for {job.max_tokens} tokens of each of "
                f"{len(job.prompts)} prompts and gave {sorted(counts)} of {len(answer.token_ids)}; "
                "speeds of unequal texts cannot be compared, so leave this peer out"
            )
        return answer

    def close(self) -> None:
        """End the child: by closing its input, else by force."""
        child, self._child = self._child, None
        if child is None:
            return
        try:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            child.kill()  # bites only where it is still running
            child.wait()
            self._errors.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(message) + "\n")
        self._child.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._child is not None
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise PeerFailed(self._obituary())
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise PeerFailed(f"the peer {self.spec} could not start or go on: {message['error']}")
        return message

    def _obituary(self) -> str:
        assert self._child is not None
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_GRACE_S)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        tail = "\n  ".join(said[-_TAIL:]) or "nothing"
        return (
            f"the peer {self.spec} died with exit status {self._child.poll()}; leave it out with "
            f"--peer, or repair what it said last:\n  {tail}"
        )
