"""The public namespace is what it says it is, and cheap to look at."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import draftproof


def test_all_is_sorted_and_complete() -> None:
    assert draftproof.__all__ == sorted(draftproof.__all__)
    assert set(draftproof.__all__) == set(draftproof._HOMES)


@pytest.mark.parametrize("name", draftproof.__all__)
def test_every_public_name_loads_and_is_documented(name: str) -> None:
    thing = getattr(draftproof, name)
    assert inspect.getdoc(thing), f"{name} has no docstring"
    assert name in dir(draftproof)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        draftproof.no_such_name  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, draftproof; heavy = {'torch', 'transformers', 'numpy', 'numba', 'scipy'};"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"loaded at import: {done.stderr}"
