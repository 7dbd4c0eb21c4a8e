"""docs/trees.md: its numbers are those of the rules' own code, its pictures can be drawn again."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from draftproof.checks.exact import enumerate_outcomes
from draftproof.core import Draft, Proposal
from draftproof.models.toy import random_law
from draftproof.verification.registry import VERIFIERS
from tests.toys import constant_law, remembered, round_program, sibling_proposer, toy_speculator

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "trees.md").read_text(encoding="utf-8")
P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


def test_pictures_are_there_and_small():
    pictures = re.findall(r"\]\((figures/[^)]+)\)", PAGE)
    assert len(pictures) == 3
    for picture in pictures:
        assert 1_000 < (ROOT / "docs" / picture).stat().st_size < 60_000


def test_snippet_prints_what_is_shown(capsys):
    (snippet, shown) = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL).groups()
    exec(compile(snippet, "trees.md", "exec"), {})
    assert capsys.readouterr().out == shown


def kept(rule, proposal, width):
    """Probability that one of so many siblings is accepted."""
    propose = sibling_proposer(constant_law(*Q), 1, proposal, width)
    program = round_program(VERIFIERS[rule], constant_law(*P), propose, 1)
    return enumerate_outcomes(program).get(1, 0.0)


def kept_by_race(width):
    e = np.random.default_rng(1).exponential(size=(200_000, 4))
    y, siblings = (e / P).argmin(1), (e / Q).argsort(1)[:, :width]
    return (siblings == y[:, None]).any(1).mean()


def test_table_of_siblings():
    rows = re.findall(r"^\| (\d) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.M)
    assert len(rows) == 3
    for width, *shares in rows:
        point, repeated, distinct, raced = map(float, shares)
        assert kept("point", Proposal.POINT, int(width)) == pytest.approx(point, abs=0.005)
        for rule in ("tree", "traversal"):
            found = kept(rule, Proposal.SAMPLED, int(width))
            assert found == pytest.approx(repeated, abs=0.005)
            found = kept(rule, Proposal.DISTINCT, int(width))
            assert found == pytest.approx(distinct, abs=0.005)
        assert kept_by_race(int(width)) == pytest.approx(raced, abs=0.01)


def judged(rule, draft, p):
    """Probability of each outcome: accepted nodes, and the token behind them."""
    rows = torch.tensor([p] * (1 + len(draft.tokens)), dtype=torch.float64)

    def program(noise):
        verdict = VERIFIERS[rule].verify(draft, rows, 0, noise)
        return verdict.accepted, verdict.next_token

    return enumerate_outcomes(program)


def path_chance(outcomes, path):
    return sum(chance for (accepted, _), chance in outcomes.items() if accepted == path)


def siblings(tokens, laws, proposal):
    laws = torch.tensor(laws, dtype=torch.float64)
    return Draft(tokens, (-1,) * len(tokens), laws, proposal)


def test_recursive_rejection_by_hand():
    repeated = judged("tree", siblings((3, 1), [Q, Q], Proposal.SAMPLED), P)
    assert path_chance(repeated, (0,)) == pytest.approx(0.25)
    assert path_chance(repeated, (1,)) == pytest.approx(0.75)
    twice = judged("tree", siblings((3, 3), [Q, Q], Proposal.SAMPLED), P)
    assert twice[(), 0] / twice[(), 1] == pytest.approx(0.65 / 0.05)
    rest = (1 / 6, 1 / 3, 1 / 2, 0.0)
    distinct = judged("tree", siblings((3, 1), [Q, rest], Proposal.DISTINCT), P)
    assert path_chance(distinct, (1,)) == pytest.approx(0.75 * 0.75)
    assert distinct[(), 0] == pytest.approx(0.75 * 0.25)


def test_traversal_by_hand():
    p, q = (1 / 3, 2 / 3), (2 / 3, 1 / 3)
    draft = Draft((0, 1), (-1, 0), torch.tensor([q, q], dtype=torch.float64), Proposal.DISTINCT)
    assert path_chance(judged("traversal", draft, p), (0, 1)) == pytest.approx(1.0)
    assert path_chance(judged("tree", draft, p), (0, 1)) == pytest.approx(0.5)


@pytest.fixture(scope="module")
def figures():
    pytest.importorskip("matplotlib")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        yield importlib.import_module("figures")


def test_a_round_is_recorded_as_it_was_and_drawn(figures, tmp_path):
    law = remembered(random_law(6, seed=1))
    system = toy_speculator(law, remembered(random_law(6, seed=77)), 6, depth=4)
    system.settings = figures.EngineSettings(depth=4, width=3, nodes=11)
    rounds = figures.record(system, [1, 2])
    text = [1, 2, *system.plain([1, 2], figures.SamplingParams(max_tokens=40)).token_ids]
    for one in rounds:
        assert text[one.length - 1] == one.anchor
        emitted = text[one.length : one.length + len(one.step.tokens)]
        assert [one.draft.tokens[node] for node in one.path] == emitted[: one.step.accepted]
        behind = tuple(text[: one.length + len(one.path)])
        assert one.chances[-1] == pytest.approx(max(law(behind)))
    assert any(one.turns for one in rounds)
    one = max(rounds, key=lambda one: len(one.path))
    for name, drawn in (("tree", figures.draw_tree), ("mask", figures.draw_mask)):
        path = tmp_path / f"{name}.png"
        figures.save(drawn(one, str), path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_best_shapes_are_those_of_the_page(figures):
    """The best of each machine, chain and tree, as the page names them."""
    found = [
        max(figures.best_shape(curves, width, nodes)[1] for nodes in range(1, 33))
        for curves in figures.MACHINES.values()
        for width in figures.WIDTHS
    ]
    assert found == pytest.approx([1.67, 2.3, 1.17, 1.30, 1.51, 1.48], abs=0.006)
    assert max(figures.shapes(1, 32).values()) == pytest.approx(2.5, abs=0.01)
    assert max(figures.shapes(4, 32).values()) == pytest.approx(3.5, abs=0.05)


def test_theory_of_trees_is_what_simulated_texts_show(figures):
    for curves in figures.MACHINES.values():
        for width in figures.WIDTHS:
            levels, speedup = figures.best_shape(curves, width, 8)
            plan = figures.Plan(levels, width, 8)
            assert figures.simulated([plan], curves) == pytest.approx([speedup], rel=0.03)
