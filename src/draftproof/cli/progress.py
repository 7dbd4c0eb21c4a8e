"""A progress bar on stderr for work of many parts."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn


class Bar:
    """One bar on stderr: a spinner with the stage, then how many calls are done."""

    def __init__(self, hidden: bool) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            console=Console(stderr=True),
            disable=hidden,
            transient=True,
        )
        self._task: Any = self._bar.add_task("", total=None)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def stage(self, text: str) -> None:
        self._bar.update(self._task, description=text)

    def update(self, what: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=what, completed=done, total=total)
