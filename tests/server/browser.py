"""A headless Chromium: the system's, or the one that playwright has fetched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@contextmanager
def browser() -> Iterator[Browser | None]:
    """None where there is no Chromium."""
    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, NAMES)), playwright.chromium.executable_path)
        if not Path(path).exists():
            yield None
            return
        # Chromium's own sandbox cannot be set up by root, or in most containers.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()
