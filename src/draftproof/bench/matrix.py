"""The settings of a bench as a matrix: drafter x shape x temperature x batch, and the peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from draftproof.bench.peers.base import check_peer, why_unsupported
from draftproof.config import Depth, EngineSettings
from draftproof.drafters.base import shortened
from draftproof.drafters.registry import check_spec
from draftproof.errors import InvalidSetting
from draftproof.sampling.params import SamplingParams
from draftproof.static_tree import StaticTree

PLAIN, OURS = "plain", "draftproof"


class Shape(NamedTuple):
    """Of drafts, as a cell names it."""

    depth: Depth
    width: int | None
    """None where the depth is "auto"."""
    tree: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One way of decoding in one setting."""

    system: str
    """PLAIN, OURS, or the spec of a peer."""
    drafter: str | None
    depth: Depth | None
    """Tokens drafted per round; with the drafter present exactly for OURS."""
    temperature: float
    batch: int
    """Prompts decoded side by side."""
    width: int | None = None
    """Children of a drafted token; present exactly for OURS at a fixed depth."""
    tree: str | None = None
    """A static tree that is drafted; only for OURS."""

    @property
    def is_peer(self) -> bool:
        return self.system not in (PLAIN, OURS)

    @property
    def label(self) -> str:
        """A short name within one setting."""
        if self.system != OURS:
            return self.system
        if self.tree is not None:
            return f"{self.drafter}, tree {self.tree}"
        depth = "auto depth" if self.depth == "auto" else f"depth {self.depth}"
        width = "" if self.width in (None, 1) else f", width {self.width}"
        return f"{self.drafter}, {depth}{width}"

    @property
    def short_label(self) -> str:
        """The label with a model's path cut down to its name, for tables and plots."""
        return shortened(self.label)

    @property
    def unsupported(self) -> str | None:
        """Why this cell cannot be run; None where it can."""
        return why_unsupported(self.system, self.batch) if self.is_peer else None


@dataclass(frozen=True, slots=True)
class Matrix:
    """What is compared; every entry is checked before a model is loaded."""

    drafters: tuple[str, ...]
    depths: tuple[Depth, ...]
    temperatures: tuple[float, ...]
    batches: tuple[int, ...]
    peers: tuple[str, ...]
    widths: tuple[int, ...] = (1,)
    """With each fixed depth; depth "auto" chooses the width, too."""
    trees: tuple[StaticTree, ...] = ()
    """Each with every drafter, beside the depths."""
    min_confidence: float = 0.0
    """With each fixed depth and tree, as `EngineSettings` has it."""

    def __post_init__(self) -> None:
        for name in ("drafters", "widths", "temperatures", "batches"):
            _check_distinct(name, getattr(self, name), least=1)
        _check_distinct("depths", self.depths, least=0 if self.trees else 1)
        for name in ("trees", "peers"):
            _check_distinct(name, getattr(self, name), least=0)
        for drafter in self.drafters:
            check_spec(drafter)
            if drafter == "none":
                raise InvalidSetting(
                    "drafter is 'none', which is plain decoding, and that is always run; leave it "
                    "out"
                )
        for depth in self.depths:
            EngineSettings(depth=depth)
            if depth == 0:
                raise InvalidSetting(
                    "depth is 0, which is plain decoding, and that is always run; give 1 or more"
                )
        only_auto = set(self.depths) <= {"auto"}
        for width in self.widths:
            EngineSettings("auto" if only_auto else 1, width)
        never_fixed = only_auto and not self.trees
        EngineSettings("auto" if never_fixed else 1, min_confidence=self.min_confidence)
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature)
        for batch in self.batches:
            EngineSettings(max_batch=batch)
        for peer in self.peers:
            check_peer(peer)

    def settings(self) -> Iterator[tuple[float, int]]:
        """Every temperature with every batch size; cells are compared within one of these."""
        for temperature in self.temperatures:
            for batch in self.batches:
                yield temperature, batch

    def cells(self, temperature: float, batch: int) -> list[Cell]:
        """Plain decoding, our drafters in every shape, and the peers."""
        ours = [
            Cell(OURS, drafter, shape.depth, temperature, batch, shape.width, shape.tree)
            for drafter in self.drafters
            for shape, _ in self.shapes()
        ]
        plain, *peers = (
            Cell(system, None, None, temperature, batch) for system in (PLAIN, *self.peers)
        )
        return [plain, *ours, *peers]

    def shapes(self) -> Iterator[tuple[Shape, StaticTree | None]]:
        """Every shape of drafts, a static tree as what it is beside its name."""
        for depth in self.depths:
            widths: tuple[int | None, ...] = (None,) if depth == "auto" else self.widths
            yield from ((Shape(depth, width), None) for width in widths)
        yield from ((Shape(tree.depth, tree.width, str(tree)), tree) for tree in self.trees)


def _check_distinct(name: str, values: Sequence[Any], least: int) -> None:
    if len(values) < least:
        raise InvalidSetting(f"{name} of the bench are empty; give at least one")
    if twice := [value for value in values if values.count(value) > 1]:
        raise InvalidSetting(f"{name} of the bench name {twice[0]!r} twice; give it once")
