"""Draw the pictures of docs/drafters.md into docs/figures, or into the folder given.

    python scripts/figures_drafters.py BENCH.json [FOLDER]

How many tokens a target call brings with each drafter, by workload, from what `draftproof bench
--by-category --json` printed; and a draft that `suffix` grew behind a real text. Needs the extra
`plot`, and `smollm2-135m`, which is fetched once.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from figures import FOLDER, SHAPE, TARGET, draw_tree, most_telling, record, save, word_of
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from draftproof import Speculator

RHYME = """This is the house that Jack built. This is the malt that lay in the house that Jack \
built. This is the rat that ate the malt that lay in the house that Jack built. This is the cat \
that killed the rat that ate the malt that lay in the house that Jack built. This is the dog that \
worried the cat that killed the rat that ate the malt that lay in the house that Jack built."""
SHADES = 16
ALL = "all together"


def main(bench: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save(draw_drafters(bench), folder / "drafters.png")
    system = Speculator.from_pretrained(TARGET, "suffix", settings=SHAPE)
    save(draw_tree(most_telling(record(system, RHYME)), word_of(system)), folder / "suffix.png")


def tokens_per_call(bench: Path) -> dict[str, dict[str, float]]:
    """Workload -> drafter -> tokens per target call; best workloads first, all together last."""
    result = json.loads(bench.read_text(encoding="utf-8"))
    found: dict[str, dict[str, float]] = {}
    together: dict[str, float] = {}
    for row in result["by_category"] + result["cells"]:
        if row["system"] == "draftproof":
            _check(row)
            of = together if row["category"] is None else found.setdefault(row["category"], {})
            of[row["drafter"]] = row["tokens_per_call"]
    best = sorted(found.items(), key=lambda item: -statistics.mean(item[1].values()))
    return dict(best) | {ALL: together}


def _check(row: dict[str, Any]) -> None:
    """Another text than plain decoding's would tell nothing of a drafter."""
    if set(row["exactness"]) != {"identical"}:
        raise SystemExit(
            f"{row['label']}, {row['category'] or ALL}: {row['exactness']}, not all identical"
        )


def draw_drafters(bench: Path) -> Figure:
    """A row for each workload and a column for each drafter; the brighter, the more tokens."""
    table = tokens_per_call(bench)
    drafters = list(table[ALL])
    numbers = [[row[drafter] for drafter in drafters] for row in table.values()]
    shades = colormaps["cividis"].resampled(SHADES)
    highest = max(map(max, numbers))
    figure = Figure(figsize=(9, 0.7 + 0.32 * len(table)))
    axes = figure.add_subplot()
    # By ratios, or the look-ups would all look alike beside the models.
    axes.imshow(numbers, cmap=shades, norm=LogNorm(1, highest), aspect="auto")
    for y, row in enumerate(numbers):
        for x, tokens in enumerate(row):
            colour = "black" if tokens > highest**0.5 else "white"
            axes.text(x, y, f"{tokens:.2f}", ha="center", va="center", fontsize=9, color=colour)
    axes.set_xticks(range(len(drafters)), [name.replace(",", ",\n") for name in drafters])
    axes.set_yticks(range(len(table)), list(table))
    axes.axhline(len(table) - 1.5, color="white", linewidth=4)
    axes.tick_params(labelsize=9, length=0)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
