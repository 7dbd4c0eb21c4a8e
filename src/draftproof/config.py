"""Settings and limits: the only home of defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from draftproof.errors import InvalidSetting

if TYPE_CHECKING:
    from draftproof.static_tree import StaticTree

DEFAULT_TARGET = "smollm2-135m"
DEFAULT_DRAFTER = "self-int8"
DEFAULT_DEPTH: Depth = "auto"
MAX_DEPTH = 64
MAX_NODES = 64
"""Most tokens of one draft; a tree may have more of them than it is deep."""

Kernels = Literal["exact", "fastest"]
Depth: TypeAlias = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How models are run and decoded. None of these changes the distribution of the text."""

    depth: Depth = DEFAULT_DEPTH
    """Tokens drafted per round, 0 to `MAX_DEPTH`; 0 is plain decoding. "auto" measures what passes
    cost here and drafts as deep as pays on each text (`control/adaptive.py`)."""
    width: int = 1
    """Children of a drafted token where the drafter can branch, 1 to `MAX_NODES`; 1 drafts a chain.
    For a fixed depth: "auto" chooses the width, too."""
    nodes: int | None = None
    """Most tokens of one draft, 1 to `MAX_NODES`; None for as many as fit."""
    min_confidence: float = 0.0
    """0 to 1: a draft ends with a token at whose place a drafter that is a model was less sure than
    this. For a fixed depth: "auto" finds out by itself what pays."""
    tree: StaticTree | None = None
    """A tree whose every place is fixed beforehand; depth, width and nodes are then its own. For
    drafters that branch by choice of theirs: models, `suffix`, `recycling`."""
    max_batch: int = 32
    """Sequences decoded side by side; the rest wait for a free row."""
    prefill_chunk: int = 512
    """Prompt tokens fed per forward pass while a prompt is read."""
    kernels: Kernels = "exact"
    """On a CPU, for a model that `from_pretrained` loads. "exact": a row of a linear layer has the
    same bits whatever rows are computed beside it, so greedy texts are equal to the token.
    "fastest": where a quick measurement finds torch's product faster, that is used, and a draft
    may decide a near-tie."""
    max_cache_bytes: int = 8 << 30
    """Upper limit of one key/value cache; a larger request is refused before it starts."""

    def __post_init__(self) -> None:
        if self.tree is not None:
            self._take_from(self.tree)
        if self.depth != "auto" and not _is_count(self.depth, 0, MAX_DEPTH):
            raise InvalidSetting(
                f"depth is {self.depth!r}; give 'auto', or 0 (plain decoding) to {MAX_DEPTH}, "
                "3 to 8 is usual"
            )
        for name, count in (("width", self.width), ("nodes", self.nodes)):
            if count is not None and not _is_count(count, 1, MAX_NODES):
                raise InvalidSetting(f"{name} is {count!r}; give 1 to {MAX_NODES}")
        if self.depth == "auto" and self.width != 1:
            raise InvalidSetting(
                f"width is {self.width} and depth 'auto', which chooses the width as well; give a "
                "depth with it, or leave it out"
            )
        if not 0 <= self.min_confidence <= 1:
            raise InvalidSetting(f"min_confidence is {self.min_confidence!r}; give 0 to 1")
        if self.depth == "auto" and self.min_confidence > 0:
            raise InvalidSetting(
                f"min_confidence is {self.min_confidence:g} and depth 'auto', which finds out by "
                "itself where to stop; give a depth with it, or leave it out"
            )
        for name in ("max_batch", "prefill_chunk", "max_cache_bytes"):
            if getattr(self, name) < 1:
                raise InvalidSetting(f"{name} is {getattr(self, name)}; give at least 1")
        if self.kernels not in get_args(Kernels):
            raise InvalidSetting(f"kernels is {self.kernels!r}; give 'exact' or 'fastest'")

    def _take_from(self, tree: StaticTree) -> None:
        for name in ("depth", "width", "nodes"):
            value, own = getattr(self, name), getattr(tree, name)
            if value not in (type(self).__dataclass_fields__[name].default, own):
                raise InvalidSetting(
                    f"{name} is {value!r} and that of the tree is {own}; leave one of them out"
                )
            object.__setattr__(self, name, own)

    def having(self, **fields: Any) -> EngineSettings:
        """These settings with other values of some fields; None leaves a field as it is."""
        given = {name: value for name, value in fields.items() if value is not None}
        return replace(self, **given)


@dataclass(frozen=True, slots=True)
class Speculation:
    """What one request wishes of drafting; the distribution of its text is the same in any case."""

    enabled: bool = True
    """False decodes plainly."""
    drafter: str | None = None
    """One of the drafters that the service has; None for its default."""
    depth: Depth | None = None
    """None for the service's own."""

    def __post_init__(self) -> None:
        if self.depth not in (None, "auto") and not _is_count(self.depth, 0, MAX_DEPTH):
            raise InvalidSetting(
                f"depth is {self.depth!r}; give 'auto', or 0 (plain decoding) to {MAX_DEPTH}"
            )


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Limits of a service that decodes the requests of many users in one batch."""

    max_waiting: int = 256
    """Requests that wait for room; one more is refused."""
    max_length: int | None = None
    """Most tokens of a prompt with its answer; None for what model and cache allow."""
    max_samples: int = 16
    """Most samples of one request, `n`."""
    prefill_chunk: int | None = None
    """Prompt tokens fed per forward pass; None for 64 where a pass of so many computes each with
    the same bits whatever its company, and for the engine's own elsewhere."""
    prefill_tokens: int = 64
    """Prompt tokens read between two rounds of the others, one chunk at least."""
    max_skips: int = 8
    """How many later requests may start before the first in the queue, which waits for memory."""
    keep_prefixes: bool = True
    """Keep prompts' keys and values while nobody needs the room, for requests that begin alike."""

    def __post_init__(self) -> None:
        for name in ("max_waiting", "max_samples", "prefill_chunk", "prefill_tokens"):
            if getattr(self, name) is not None and not _is_count(getattr(self, name), 1, 1 << 30):
                raise InvalidSetting(f"{name} is {getattr(self, name)!r}; give at least 1")
        if not _is_count(self.max_skips, 0, 1 << 30):
            raise InvalidSetting(f"max_skips is {self.max_skips!r}; give 0 or more")
        if self.max_length is not None and not _is_count(self.max_length, 2, 1 << 30):
            raise InvalidSetting(f"max_length is {self.max_length!r}; give 2 or more, or None")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Whom the HTTP server serves and what one request may ask for, beside the service's limits."""

    keys: frozenset[str] = field(default=frozenset(), repr=False)
    """API keys, one of which every request has to show; none lets everybody in."""
    max_running: int = 64
    """Requests of one key at a time. Without keys only the service's queue is a limit."""
    max_body_bytes: int = 4 << 20
    max_prompts: int = 16
    """Prompts of one request."""
    max_prompt_tokens: int | None = None
    """Most tokens of a prompt; None for what the service allows."""
    max_tokens_limit: int = 4096
    """Largest `max_tokens` of a request."""
    max_depth: int = 16
    """Largest depth that a request may fix; every round of the batch lasts as long as its deepest
    draft."""
    max_stops: int = 16
    """Stop strings and stop ids of one request."""
    max_seconds: float = 600.0
    """Time of one request, the queue included."""
    drain_seconds: float = 30.0
    """How long running requests may go on once the server was told to end."""
    log_prompts: bool = False
    """Write prompts and answers to the log as well."""

    def __post_init__(self) -> None:
        counts = ("max_running", "max_body_bytes", "max_prompts", "max_tokens_limit")
        for name in counts:
            if not _is_count(getattr(self, name), 1, 1 << 40):
                raise InvalidSetting(f"{name} is {getattr(self, name)!r}; give at least 1")
        if self.max_prompt_tokens is not None and not _is_count(self.max_prompt_tokens, 1, 1 << 40):
            raise InvalidSetting(
                f"max_prompt_tokens is {self.max_prompt_tokens!r}; give at least 1, or None"
            )
        if not _is_count(self.max_depth, 0, MAX_DEPTH):
            raise InvalidSetting(f"max_depth is {self.max_depth!r}; give 0 to {MAX_DEPTH}")
        if not _is_count(self.max_stops, 0, 1 << 30):
            raise InvalidSetting(f"max_stops is {self.max_stops!r}; give 0 or more")
        if not 0 < self.max_seconds < float("inf"):
            raise InvalidSetting(f"max_seconds is {self.max_seconds}; give more than 0")
        if not 0 <= self.drain_seconds < float("inf"):
            raise InvalidSetting(f"drain_seconds is {self.drain_seconds}; give 0 or more")
        if any(not key or not key.isascii() or key != key.strip() for key in self.keys):
            raise InvalidSetting(
                "an API key is empty, or has spaces around it or characters beyond ASCII"
            )


def _is_count(value: object, smallest: int, largest: int) -> bool:
    return isinstance(value, int) and smallest <= value <= largest
