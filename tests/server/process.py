"""`draftproof serve` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.server.conftest import wait_for

openai = pytest.importorskip("openai")

NAME = "smollm2-135m"
MAIN = "from draftproof.cli import main; main()"


class Process:
    """A server on a free port, and what it says on standard error."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        main: str = MAIN,
        state: str = "ready",
        **environment: str,
    ) -> None:
        """Waited for until /health says `state`."""
        command = [sys.executable, "-c", main, "serve", "--target", str(folder), "--port", "0"]
        self._state = state
        self.said: list[str] = []
        self.address = ""
        self._process = subprocess.Popen(
            [*command, "--drafter", "ngram", "--depth", "4", "--name", NAME, *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def __enter__(self) -> Process:
        try:
            wait_for(self._is_ready, seconds=120)
        except BaseException:
            self.__exit__()
            print("".join(self.said))
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            self.said.extend(iter(stream.readline, ""))

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "it ended by itself"
        found = re.search(r"at (http://\S+)/v1", "".join(self.said))
        if found is None:
            return False
        self.address = found[1]
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.address}/health").json() == {"status": self._state}
        return False

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """The exit code."""
        return self._process.wait(30)

    def client(self, kind=openai.OpenAI, key: str = "none", **options):
        return kind(base_url=f"{self.address}/v1", api_key=key, max_retries=0, **options)
