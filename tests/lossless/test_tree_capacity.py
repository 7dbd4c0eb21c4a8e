"""Trees with more nodes than they are deep fit into the cache of a batch."""

from __future__ import annotations

import pytest

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from tests.toys import Comb, remembered

LAW = remembered(random_law(6, seed=1))


@pytest.mark.parametrize("width", [2, 4, 6])
def test_wide_tree_beside_a_row_that_is_nearly_done(width):
    """One row drafts a wide tree while a longer one stands just before its end."""
    drafter = Comb(LAW, width, deepest=6)
    system = Speculator(ToyModel(LAW, 6), drafter, settings=EngineSettings(depth=6))
    prompts = [[0], [1] * 30]
    params = [SamplingParams(max_tokens=30), SamplingParams(max_tokens=3)]
    outputs = system.generate(prompts, params)
    plain = system.plain(prompts, params)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
