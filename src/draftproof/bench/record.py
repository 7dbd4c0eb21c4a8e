"""The raw result of one request, and what comparing its text with plain decoding says."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from draftproof.bench.matrix import PLAIN, Cell
from draftproof.checks.difference import Difference, first_difference
from draftproof.models.base import TargetModel
from draftproof.sampling.params import SamplingParams

Exactness = Literal["reference", "identical", "near-tie", "DIFFERENT", "not comparable"]


@dataclass(frozen=True, slots=True)
class Record:
    """One text: of which cell, at what cost, and what it was.

    In a batch the seconds are those of the rounds that this sequence took part in; `total_s` is
    the wall time of the whole call, which all its prompts waited for.
    """

    cell: Cell
    id: str
    category: str
    repeat: int
    group: int
    """Requests of one cell with equal `group` and `repeat` were decoded in one call."""
    seed: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    decode_tokens: int
    """Tokens that `decode_s` was spent on: all for us, those after the first ones for a peer,
    which reads the prompt and finds its first token in one pass."""
    decode_s: float
    """Seconds of decoding, without reading the prompt."""
    total_s: float
    peak_bytes: int | None
    """Most memory in use during the call; on a CPU of the whole process, models included."""
    prefill_s: float | None = None
    """From here to `accepted_per_position`: known of ours only."""
    draft_s: float | None = None
    verify_s: float | None = None
    rest_s: float | None = None
    target_calls: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    first_token_s: float | None = None
    """Seconds until the first token; known of peers only."""
    exactness: Exactness | None = None
    """None until it is compared."""
    difference: Difference | None = None

    def line(self) -> str:
        """One line of JSON, without its end; the cell's fields come first."""
        fields = asdict(self)
        difference = None if self.difference is None else self.difference.as_dict()
        counts = {"prompt_tokens": len(self.prompt_ids), "generated": len(self.token_ids)}
        told: dict[str, Any] = fields.pop("cell") | fields | counts | {"difference": difference}
        return json.dumps(told, ensure_ascii=False, allow_nan=False)


def judge(record: Record, plain: Record, target: TargetModel, num_tokens: int) -> Record:
    """The record with its verdict against plain decoding of the same prompt and seed."""
    cell = record.cell
    if cell.system == PLAIN:
        return replace(record, exactness="reference")
    if cell.is_peer and cell.temperature > 0:
        return replace(record, exactness="not comparable")  # it draws with randomness of its own
    difference = first_difference(
        target,
        record.prompt_ids,
        plain.token_ids,
        record.token_ids,
        SamplingParams(temperature=cell.temperature, seed=record.seed),
        num_tokens,
    )
    if difference is None:
        return replace(record, exactness="identical")
    exactness: Exactness = "near-tie" if difference.is_near_tie else "DIFFERENT"
    return replace(record, exactness=exactness, difference=difference)
