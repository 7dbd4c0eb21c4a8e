"""A server on a free port, on a thread, for tests that speak HTTP or drive a browser."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import uvicorn


@contextmanager
def served(app):
    """The address of `app` while it is served."""
    config = uvicorn.Config(
        app, port=0, log_level="warning", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
