"""Draw the pictures of docs/trees.md into docs/figures, or into the folder given.

A tree that a model really drafted with the path its target kept, the ancestor mask of that tree,
and what theory expects of trees on three machines. Needs the extra `plot`, and `smollm2-135m`,
which is fetched once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from PIL import Image

from draftproof import EngineSettings, SamplingParams, Speculator
from draftproof.core import Context, Draft, Plan, Proposal, Step
from draftproof.drafters.base import Drafter, Drafting
from draftproof.models.cache import KVCache
from draftproof.models.pack import pack
from draftproof.theory.acceptance import Acceptance
from draftproof.theory.decoding import simulate_decoding
from draftproof.theory.machine import CostCurves
from draftproof.theory.trees import Node, best_nodes

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
TARGET = "smollm2-135m"
DRAFTER = "early-exit:28"
"""Close to the target and not equal, so that second choices are kept, too; too dear to pay."""
PROMPT = "To make a good cup of tea, first"
SHAPE = EngineSettings(depth=5, width=3, nodes=13)

KEPT, LEFT, NEXT = "#2a7f4f", "#8a94a0", "#b8860b"
WIDTHS = {1: ("chain", LEFT), 4: ("tree of width 4", KEPT)}

ACCEPTANCE = Acceptance(rates=(0.6,), ranks=(0.4, 0.28, 0.2))
LARGEST, DEEPEST = 32, 12
SIMULATED = (2, 4, 8, 16, 32)


def machine(column: float, level: float) -> CostCurves:
    """A pass over one column takes 1, each further column and each drafted level as given."""
    verify = {1: 1.0, 2: 1.0 + column}
    return CostCurves(verify, {1: {1: level}, 4: {1: level * (1 + 3 * column)}})


MACHINES = {
    "a column costs 0.002, drafting a level 0.1": machine(0.002, 0.1),
    "a column costs 0.022, drafting a level 0.34": machine(0.022, 0.34),
    "a column costs 0.1, drafting a level 0.05": machine(0.1, 0.05),
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    system = Speculator.from_pretrained(TARGET, DRAFTER, settings=SHAPE)
    one, word = most_telling(record(system, PROMPT)), word_of(system)
    save(draw_tree(one, word), folder / "tree.png")
    save(draw_mask(one, word), folder / "mask.png")
    save(draw_gain(), folder / "gain.png")


def word_of(system: Speculator) -> Callable[[int], str]:
    """How a token is written in a picture."""
    return lambda token: repr(system.tokenizer.decode([token]))[1:-1].replace(" ", "␣")


def save(figure: Figure, path: Path) -> None:
    drawn = BytesIO()
    figure.savefig(drawn, dpi=100)
    # A picture of a few colours is half as large with a palette.
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)
    print(path, path.stat().st_size, "bytes")


# A round as it was ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """One draft and what became of it."""

    length: int
    """Committed tokens before it, the anchor included."""
    anchor: int
    draft: Draft
    step: Step
    path: list[int]
    """The nodes that were kept."""
    chances: list[float]
    """The target's probability of each node, and of its own token, given the path down to it."""

    @property
    def turns(self) -> bool:
        """Whether the path leaves the drafter's first choices."""
        parents = [-1, *self.path]
        return any(
            self.draft.children(parent)[0] != node
            for parent, node in zip(parents, self.path, strict=False)
        )


def _path(draft: Draft, step: Step) -> list[int]:
    nodes, node = [], -1
    for token in step.tokens[: step.accepted]:
        child = draft.child(node, token)
        assert child is not None
        nodes.append(child)
        node = child
    return nodes


def record(system: Speculator, prompt: str) -> list[Round]:
    """Decode a text greedily and keep every round of it."""
    recorder = Recorder(system.drafter)
    watched = Speculator(
        system.target, recorder, tokenizer=system.tokenizer, settings=system.settings
    )
    watched.generate(prompt, SamplingParams(max_tokens=40))
    return recorder.rounds


def most_telling(rounds: Sequence[Round]) -> Round:
    """The longest path that leaves the drafter's first choices."""
    return max(rounds, key=lambda one: one.turns and len(one.path))


class Recorder:
    """A drafter that remembers what became of its drafts."""

    def __init__(self, drafter: Drafter) -> None:
        self.name, self.proposals = drafter.name, drafter.proposals
        self.rounds: list[Round] = []
        self._drafter = drafter

    def begin(self, target_cache: KVCache) -> Drafting:
        drafting = self._drafter.begin(target_cache)
        observe = drafting.observe

        def remember(context: Context, draft: Draft, step: Step, logits: torch.Tensor) -> None:
            before = context.tokens[: len(context.tokens) - len(step.tokens)]
            p = logits.softmax(dim=-1)
            path = _path(draft, step)
            parents = (*draft.parents, path[-1] if path else -1)
            rows = zip(parents, (*draft.tokens, step.tokens[-1]), strict=True)
            chances = [float(p[parent + 1, token]) for parent, token in rows]
            self.rounds.append(Round(len(before), before[-1], draft, step, path, chances))
            observe(context, draft, step, logits)

        drafting.observe = remember  # type: ignore[method-assign]
        return drafting


# Pictures -------------------------------------------------------------------------------------


def draw_tree(one: Round, word: Callable[[int], str]) -> Figure:
    """The draft from left to right; what was kept is green, the target's own token is golden."""
    draft, last = one.draft, one.path[-1] if one.path else -1
    tokens, parents = (*draft.tokens, one.step.tokens[-1]), (*draft.parents, last)
    whole = Draft(tokens, parents, None, Proposal.POINT)
    heights = _heights(whole)
    places = {node: (float(len(whole.path(node))), height) for node, height in heights.items()}
    figure = Figure(figsize=(9.2, 0.46 * max(heights.values()) + 0.8))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    _box(axes, places[-1], word(one.anchor), "black")
    for node, parent in enumerate(parents):
        own = node == len(draft.tokens)
        colour = NEXT if own else KEPT if node in one.path else LEFT
        (x, y), (to_x, to_y) = places[parent], places[node]
        axes.plot([x, to_x], [y, to_y], "--" if own else "-", color=colour, linewidth=1.4, zorder=1)
        middle = (x + 0.6 * (to_x - x), y + 0.6 * (to_y - y))
        _box(axes, middle, f"{one.chances[node]:.2f}", colour, small=True)
        _box(axes, places[node], word(tokens[node]), colour)
    axes.set_xlim(-0.45, whole.depth + 0.5)
    axes.set_ylim(max(heights.values()) + 0.6, -0.6)
    axes.axis("off")
    return figure


def _heights(draft: Draft) -> dict[int, float]:
    """Leaves one below the other, parents in the middle of their children."""
    heights: dict[int, float] = {}

    def place(node: int, next_leaf: int) -> int:
        children = draft.children(node)
        for child in children:
            next_leaf = place(child, next_leaf)
        if children:
            heights[node] = (heights[children[0]] + heights[children[-1]]) / 2
            return next_leaf
        heights[node] = float(next_leaf)
        return next_leaf + 1

    place(-1, 0)
    return heights


def _box(
    axes: Axes, place: tuple[float, float], text: str, colour: str, small: bool = False
) -> None:
    edge, pad, size = ("none", 0.05, 8) if small else (colour, 0.3, 9)
    box = {"boxstyle": f"round,pad={pad}", "facecolor": "white", "edgecolor": edge}
    x, y = place
    axes.text(x, y, text, ha="center", va="center", fontsize=size, color=colour, bbox=box)


def draw_mask(one: Round, word: Callable[[int], str]) -> Figure:
    """What each column of the target's pass sees of the others; the kept ones stay in the cache."""
    batch = pack([one.anchor], [one.draft], [one.length - 1], torch.device("cpu"))
    stays = [True, *(node in one.path for node in range(len(one.draft.tokens)))]
    mask = batch.mask[0].int() * (1 + torch.tensor(stays).int())[:, None]
    names = [word(token) for token in batch.tokens[0].tolist()]
    positions = batch.positions[0].tolist()
    figure = Figure(figsize=(5.6, 5.2))
    axes = figure.add_subplot()
    axes.imshow(mask.numpy(), cmap=ListedColormap(["#f3f4f6", LEFT, KEPT]), vmin=0, vmax=2)
    places = range(len(names))
    axes.set_xticks(places, names, rotation=90, fontsize=8)
    labels = [f"{name}  {position}" for name, position in zip(names, positions, strict=True)]
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_xticks([place + 0.5 for place in places], minor=True)
    axes.set_yticks([place + 0.5 for place in places], minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.set_ylabel("column and its position", fontsize=8)
    axes.set_xlabel("sees", fontsize=8)
    figure.tight_layout()
    return figure


def draw_gain() -> Figure:
    """Tokens per call and speed-up against the nodes of a draft; crosses are simulated."""
    figure = Figure(figsize=(8.6, 6.2))
    sizes = range(1, LARGEST + 1)
    axes = figure.subplots(2, 2).flat
    for width, (name, colour) in WIDTHS.items():
        tokens = [max(shapes(width, size).values()) for size in sizes]
        axes[0].plot(sizes, tokens, color=colour, label=name)
        for panel, curves in zip(axes[1:], MACHINES.values(), strict=True):
            best = [best_shape(curves, width, size) for size in sizes]
            panel.plot(sizes, [speedup for _, speedup in best], color=colour, label=name)
            plans = [Plan(best[size - 1][0], width, size) for size in SIMULATED]
            panel.plot(SIMULATED, simulated(plans, curves), "x", color=colour, markersize=5)
    titles = ["tokens per call", *(f"speed-up where {name}" for name in MACHINES)]
    for panel, title in zip(axes, titles, strict=True):
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("nodes of the draft", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.grid(color="#e3e6e9", linewidth=0.6)
    for panel in axes[1:]:
        panel.axhline(1.0, color="black", linewidth=0.8)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def shapes(width: int, nodes: int) -> dict[int, float]:
    """Levels -> expected tokens per call of the best tree of so many nodes and levels."""
    deepest = LARGEST if width == 1 else DEEPEST
    return {
        levels: 1 + sum(node.chance for node in tree)
        for levels in range(1, deepest + 1)
        if len(tree := list(_grown(width, levels, nodes))) == nodes
    }


def _grown(width: int, levels: int, nodes: int) -> Iterator[Node]:
    return best_nodes(ACCEPTANCE.down_to(levels), ACCEPTANCE.ranks, width, nodes)


def best_shape(curves: CostCurves, width: int, nodes: int) -> tuple[int, float]:
    """The number of levels that decodes fastest, and the speed-up."""
    plain = curves.round_seconds(0, 1, 1, 0)
    speedups = {
        levels: tokens * plain / curves.round_seconds(levels, width, 1 + nodes, 0)
        for levels, tokens in shapes(width, nodes).items()
    }
    return max(speedups.items(), key=lambda item: item[1])


def simulated(plans: Sequence[Plan], curves: CostCurves) -> list[float]:
    """The speed-up of each plan in texts that are decoded by chance."""
    return [
        simulate_decoding(plan, ACCEPTANCE, curves, num_tokens=10_000).speedup for plan in plans
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
