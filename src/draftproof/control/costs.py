"""Measured costs, kept: in memory for a pair, and in a file for models that come from a disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from draftproof.table_file import read_table, write_table
from draftproof.theory.machine import CostCurves


class CostBook:
    """Cost curves by situation and batch size; all decode loops of a pair share one.

    A situation is a text that names everything the costs depend on: models, device, threads. Batch
    sizes are measured at powers of two, and those between go with the next larger one.
    """

    def __init__(self, path: Path | None = None, by_hand: CostCurves | None = None) -> None:
        """`path` is a JSON file to read and add to, `by_hand` are curves that hold always."""
        self._path = path
        self._by_hand = by_hand
        self._known: dict[str, dict[int, CostCurves]] = {}
        self._forgotten: dict[str, bool] = {}
        """Situation -> whether this process measures it again, too."""

    def curves(
        self, situation: str, batch_size: int, measure: Callable[[int], CostCurves]
    ) -> CostCurves:
        """The curves for `batch_size`; `measure` makes those of a power of two."""
        if self._by_hand is not None:
            return self._by_hand
        if situation not in self._known:
            self._known[situation] = self._read().get(situation, {})
        known = self._known[situation]
        size = 1 << (batch_size - 1).bit_length()
        if size not in known:
            known[size] = measure(size)
            self._write(situation, known)
        return known[size]

    def forget(self, situation: str, at_once: bool = True) -> None:
        """Measure a situation anew, once only: when it comes up again, or in the next process
        that it comes up in."""
        if situation in self._forgotten or self._by_hand is not None:
            return
        self._forgotten[situation] = at_once
        if at_once:
            self._known.pop(situation, None)
        everything = self._read()
        everything.pop(situation, None)
        self._put(everything)

    def _read(self) -> dict[str, dict[int, CostCurves]]:
        """What the file says; nothing where there is none, or one that cannot be read."""
        if self._path is None:
            return {}
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            return {
                situation: {int(size): CostCurves.from_dict(one) for size, one in sizes.items()}
                for situation, sizes in read_table(self._path).items()
            }
        return {}

    def _write(self, situation: str, known: dict[int, CostCurves]) -> None:
        if not self._forgotten.get(situation, True):
            return  # the next process is to measure all of it
        # Other processes may have added to it since it was read.
        everything = self._read()
        everything[situation] = everything.get(situation, {}) | known
        self._put(everything)

    def _put(self, everything: Mapping[str, Mapping[int, CostCurves]]) -> None:
        """Put the file in place whole; one that cannot be written is done without."""
        if self._path is None:
            return
        table = {
            name: {size: curves.as_dict() for size, curves in sizes.items()}
            for name, sizes in everything.items()
        }
        write_table(self._path, table)
