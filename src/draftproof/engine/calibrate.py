"""What passes and drafts cost on this machine: a few of them, run on a scratch cache and timed.

What comes out of them is of no interest. Nothing of the user's is touched: the text is made up of
the prompt's tokens, the noise is our own, and the user's logits processors are not called.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import cycle, islice

import torch

from draftproof.config import MAX_NODES, EngineSettings
from draftproof.core import Context, Draft, Plan, Proposal
from draftproof.drafters.base import Drafter, branches, dearest
from draftproof.models.base import TargetModel
from draftproof.models.cache import KVCache
from draftproof.models.pack import pack
from draftproof.sampling.noise import KeyedNoise
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.warp import Warp
from draftproof.stats.timing import Stopwatch
from draftproof.theory.machine import CostCurves

COLUMNS = (1, 2, 3, 5, 9, 17, 33)
FAR_COLUMNS = 9
"""Most columns of the passes over a long context, which only tell what the context adds."""
LEVELS = (1, 4)
TREE_WIDTH = 4
"""Tried where the drafter can branch."""
_NEAR, _FAR = 64, 1024
"""Tokens of context."""
_MOST_COLUMNS = 128
"""Of all rows together, beyond which no draft pays; the line through what was measured goes on."""
_SCRATCH_BYTES = 256 << 20
_REPEATS = (2, 6)
"""How often a curve is measured at least, and at most: other work may have held one of them up."""
_PATIENCE = 0.5
"""Seconds of measuring a curve after which the least has to do."""


def situation(target: TargetModel, drafter: Drafter, settings: EngineSettings) -> str:
    """Everything that the costs of a pair depend on, the batch size excepted."""
    device = target.device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    parts = (
        f"{target.name} (V {target.vocab_size}, {target.cache_bytes_per_token} bytes a token)",
        drafter.name,
        settings.kernels,
        f"{platform.node()} {device.type} {gpu}",
        f"{torch.get_num_threads()} threads",
        f"torch {torch.__version__}",
        f"draftproof {version('draftproof')}",
    )
    return ", ".join(parts)


def measure_costs(
    target: TargetModel, drafter: Drafter, prompt: Sequence[int], rows: int
) -> CostCurves:
    """Time target passes and drafts for `rows` sequences side by side, about 20 passes in all."""
    return _Calibration(target, drafter, prompt, rows).curves()


class _Calibration:
    def __init__(
        self, target: TargetModel, drafter: Drafter, prompt: Sequence[int], rows: int
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._prompt = prompt
        self._rows = rows
        # The last position a model can read bounds how much can be tried at all.
        room = target.max_positions or _FAR + MAX_NODES
        self._near = min(_NEAR, room // 2)
        few = [n for n in COLUMNS if n <= 3 or rows * n <= _MOST_COLUMNS]
        self._columns = [n for n in few if self._near + n <= room] or [1]
        self._levels = [n for n in LEVELS if self._near + n < room]
        # One row more than is decoded: copying from it touches every page of the others, as
        # decoding does; memory that was never written reads faster than any other.
        per_token = max(1, (rows + 1) * target.cache_bytes_per_token)
        self._far = min(_FAR, room - FAR_COLUMNS, _SCRATCH_BYTES // per_token)
        capacity = max(self._far, self._near + max(COLUMNS)) + MAX_NODES
        self._cache = KVCache(rows + 1, capacity)

    @torch.inference_mode()
    def curves(self) -> CostCurves:
        self._pass(self._columns[-1])  # compiles and allocates
        self._reach(self._near)
        verify = self._measure(self._columns, self._pass)
        trees = self._rows == 1 and branches(dearest(self._drafter))
        # Batches are planned as chains (`control.joint`).
        draft = self._measure_drafts(self._near, (1, TREE_WIDTH) if trees else (1,))
        attention, draft_attention = {}, {}
        if self._far > 2 * self._near:
            self._reach(self._far)
            far = [1, max(n for n in self._columns if n <= FAR_COLUMNS)]
            for columns, seconds in self._measure(far, self._pass).items():
                further = max(0.0, seconds - verify[columns])
                attention[columns] = further / (self._far - self._near)
            # A drafter with a cache of its own would have to read every row of a batch for this.
            alone = self._measure_drafts(self._far, (1,)) if self._rows == 1 else {}
            for levels, seconds in alone.get(1, {}).items():
                further = max(0.0, seconds - draft[1][levels])
                draft_attention[levels] = further / (self._far - self._near)
        return CostCurves(verify, draft, attention, draft_attention, context=self._near)

    def _reach(self, length: int) -> None:
        """Make every row hold `length` tokens; which ones is the same to the clock."""
        for row in range(self._rows):
            self._cache.copy(self._rows, row, length)

    def _pass(self, columns: int) -> None:
        chain = Draft.chain(self._text(columns - 1), Proposal.POINT)
        anchors = [self._prompt[-1]] * self._rows
        drafts = [chain] * self._rows
        batch = pack(anchors, drafts, self._cache.lengths, self._target.device)
        self._target.forward(batch, self._cache)

    def _measure_drafts(self, length: int, widths: Sequence[int]) -> dict[int, dict[int, float]]:
        """Seconds by width and levels, behind `length` tokens."""
        if not self._levels:
            return {}
        # A text made of few tokens repeats itself: a look-up would find all of it.
        drafting = dearest(self._drafter).begin(self._cache)
        contexts = [self._context(row, length) for row in range(self._rows)]
        measured = {}
        for width in widths:

            def propose(levels: int, width: int = width) -> list[Draft]:
                return drafting.propose(contexts, [Plan(levels, width)] * self._rows)

            propose(self._levels[-1])  # reads the text, where a drafter has to
            measured[width] = self._measure(self._levels, propose)
        for row in range(self._rows):
            drafting.release(row)
        return measured

    def _context(self, row: int, length: int) -> Context:
        tokens = self._text(length + 1)
        wishes = [Proposal.POINT, Proposal.SAMPLED, Proposal.COUPLED, Proposal.DISTINCT]
        proposal = next(wish for wish in wishes if wish in self._drafter.proposals)
        warp = Warp(SamplingParams(), prompt_length=len(tokens), num_tokens=self._target.vocab_size)
        return Context(row, row, tokens, warp, KeyedNoise(0, row), proposal)

    def _text(self, length: int) -> list[int]:
        return list(islice(cycle(self._prompt), length))

    def _measure(self, sizes: Sequence[int], run: Callable[[int], object]) -> dict[int, float]:
        """Least seconds of `run` by size, all sizes in turn: others' work only ever adds."""
        watch = Stopwatch(self._target.device)
        least: dict[int, float] = {}
        least_often, most_often = _REPEATS
        for done in range(1, most_often + 1):
            for size in sizes:
                watch.lap("between")
                before = watch.seconds["run"]
                run(size)
                watch.lap("run")
                seconds = watch.seconds["run"] - before
                least[size] = min(seconds, least.get(size, seconds))
            if done >= least_often and watch.seconds["run"] > _PATIENCE:
                break
        # A larger size that took less shows how much of the smaller one's time was others' work.
        for smaller, size in zip(sizes[-2::-1], sizes[:0:-1], strict=True):
            least[smaller] = min(least[smaller], least[size])
        return least
