"""A service: requests come and go, one batch decodes them all, on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from draftproof.api import Speculator
from draftproof.config import ServiceSettings, Speculation
from draftproof.drafters.base import Drafter
from draftproof.sampling.params import SamplingParams
from draftproof.service.records import Event, Listener, Snapshot


class Ticket:
    """A request that was taken."""

    request_id: int

    def cancel(self) -> None:
        """End the request before its next round; may be called from any thread, at any time."""
        raise NotImplementedError


class Service:
    """Decodes the requests of many users side by side; call it from any thread."""

    def __init__(
        self,
        speculator: Speculator,
        *,
        drafters: Mapping[str, Drafter] | None = None,
        settings: ServiceSettings | None = None,
        listener: Listener | None = None,
    ) -> None:
        """`drafters` are those a request may name beside the speculator's own, the default."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """A round has been run, and requests are taken."""
        raise NotImplementedError

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names that a request may ask for, the default first."""
        raise NotImplementedError

    @property
    def max_length(self) -> int:
        """Most tokens of one prompt with its answer."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the thread, which warms up first; returns at once."""
        raise NotImplementedError

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        on_event: Callable[[Event], None],
        *,
        speculation: Speculation | None = None,
        deadline_s: float | None = None,
    ) -> Ticket:
        """Queue a request; `on_event` is called on the service's thread, in order, and never
        after the last event (`Finished` with `last`, or `Failed`).

        `deadline_s`: seconds from now after which the request fails with `DeadlineExceeded`.
        `InvalidPrompt`, `InvalidSetting`, `IncompatiblePair`: the request can never work;
        `LimitExceeded`: it is larger than the service allows; `Overloaded`: the queue is full or
        the service is going down.
        """
        raise NotImplementedError

    def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def drain(self, timeout_s: float | None = None) -> bool:
        """Take no more requests and wait for those there are; whether all ended in time."""
        raise NotImplementedError

    def close(self) -> None:
        """End what is still there (`Failed` with `Overloaded`) and stop the thread."""
        raise NotImplementedError
