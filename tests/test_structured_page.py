"""docs/structured.md: its snippet prints text that fits its schema, equal to plain decoding."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "structured.md").read_text(encoding="utf-8")


def test_every_kind_of_grammar_is_described():
    from typing import get_args

    from draftproof.sampling.grammar import Kind

    assert set(re.findall(r"^\| `Grammar\.(\w+)\(", PAGE, re.MULTILINE)) == set(get_args(Kind))


@pytest.mark.slow
@pytest.mark.network
def test_snippet_runs():
    pytest.importorskip("llguidance")
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(snippet, "structured.md", "exec"), {"__name__": "structured"})
    text, equal = printed.getvalue().strip().rsplit("\n", 1)
    assert json.loads(text.removesuffix(" stop")).keys() == {"city", "country", "capital"}
    assert equal == "True"
