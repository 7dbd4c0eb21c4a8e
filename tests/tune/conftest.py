"""Tiny matrices gain nothing from threads, and threads that wait for each other lose much."""

from tests.tiny import one_thread  # noqa: F401
