"""Draw the picture of docs/control.md's batches into docs/figures, or into the folder given.

What theory expects of chains in batches of 1 to 64 texts on the machines of `figures`. Needs the
extra `plot`; no model runs.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from pathlib import Path

from figures import ACCEPTANCE, FOLDER, KEPT, LEFT, MACHINES, NEXT, save
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftproof.control.adaptive import AdaptiveControl
from draftproof.control.joint import plan_together
from draftproof.core import Plan
from draftproof.theory.decoding import simulate_decoding
from draftproof.theory.machine import CostCurves
from draftproof.theory.speedup import expected_tokens

LARGEST, DEEPEST = 64, 12
FIXED = 4
PRIOR = 0.7
"""What controllers take for the acceptance rate at first, as for any model that drafts."""
SIMULATED = (1, 4, 16, 64)
TOKENS = 2_000
"""Of each simulated text."""
POWERS = (1, 2, 4, 8, 16, 32, 64)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save(draw_batch(), folder / "batch.png")


def batched(one: CostCurves, batch: int) -> CostCurves:
    """The curves of so many texts on a machine that does not care whose a column is.

    A pass over n columns of each costs what one text's pass over all of them costs, and a drafted
    level costs as many times more as a pass over one column of each.
    """
    verify = {n: one.verify_seconds(batch * n) for n in (1, 2)}
    level = one.draft_seconds(1) * one.verify_seconds(batch) / one.verify_seconds(1)
    return CostCurves(verify, {1: {1: level}})


def speedup(costs: CostCurves, depth: int) -> float:
    """Of chains of one depth over plain decoding in the same batch."""
    tokens = expected_tokens(ACCEPTANCE.down_to(depth), depth)
    plain = costs.round_seconds(0, 1, 1, 0)
    return tokens * plain / costs.round_seconds(depth, 1, 1 + depth, 0)


def best_depth(costs: CostCurves) -> int:
    """The depth that decodes fastest, 0 where plain decoding does."""
    return max(range(DEEPEST + 1), key=lambda depth: speedup(costs, depth))


def simulated(one: CostCurves, batch: int, depth: int) -> float:
    """The same of texts that are decoded by chance."""
    done = simulate_decoding(
        Plan(depth), ACCEPTANCE, batched(one, batch), num_tokens=TOKENS, batch_size=batch
    )
    return done.speedup


def controlled(one: CostCurves, batch: int) -> float:
    """Such texts under the library's own controllers, which have to find the depth out."""
    # One function for all sequences: by its costs they are known to have the same drafter.
    costs = cache(partial(batched, one))
    done = simulate_decoding(
        lambda: AdaptiveControl(costs, PRIOR),
        ACCEPTANCE,
        costs(batch),
        num_tokens=TOKENS,
        batch_size=batch,
        together=plan_together,
    )
    return done.speedup


def draw_batch() -> Figure:
    """Speed-up against texts side by side, a panel for each machine; crosses are simulated."""
    figure = Figure(figsize=(9, 3.4))
    for panel, (name, one) in zip(
        figure.subplots(1, 3, sharey=True), MACHINES.items(), strict=True
    ):
        draw_machine(panel, one)
        panel.set_title(name, fontsize=8)
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xscale("log", base=2)
        panel.set_xticks(POWERS, [str(batch) for batch in POWERS])
        panel.set_xlabel("texts side by side", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.grid(color="#e3e6e9", linewidth=0.6)
        panel.set_ylim(bottom=0.3)
    figure.axes[0].set_ylabel("speed-up", fontsize=8)
    figure.axes[0].legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    return figure


def draw_machine(panel: Axes, one: CostCurves) -> None:
    """The three ways of choosing a depth, by theory and by simulation."""
    sizes = range(1, LARGEST + 1)
    costs = [batched(one, batch) for batch in sizes]
    held = best_depth(costs[0])
    planned = [speedup(now, best_depth(now)) for now in costs]
    panel.plot(sizes, planned, color=KEPT, label="planned for the batch")
    panel.plot(SIMULATED, [controlled(one, batch) for batch in SIMULATED], "x", color=KEPT)
    for depth, style, colour, name in (
        (held, "--", NEXT, "best depth for one text, kept"),
        (FIXED, ":", LEFT, f"depth {FIXED}"),
    ):
        fixed = [speedup(now, depth) for now in costs]
        panel.plot(sizes, fixed, style, color=colour, label=name)
        crosses = [simulated(one, batch, depth) for batch in SIMULATED]
        panel.plot(SIMULATED, crosses, "x", color=colour)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
