"""Decoding with drafts gives plain decoding's tokens: any drafter, depth, batch and setting."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.core import Proposal
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from tests.toys import Comb, Scripted, Varied, opposite, remembered

V = 6
TARGET = remembered(random_law(V, seed=1, zeros=0.2))
PROMPTS = [[0], [3, 1, 4, 1, 5], [2, 2, 2, 2], [5, 0, 1, 2, 3, 4, 0, 1, 2], [1, 3], [4, 4, 0]]


def model(law, **others):
    return ModelDrafter(ToyModel(remembered(law), V, **others), V, prefill_chunk=3)


DRAFTERS = {
    "perfect": lambda: model(TARGET),
    "related": lambda: model(random_law(V, seed=1, zeros=0.2, order=1)),
    "random": lambda: model(random_law(V, seed=77)),
    "adversarial": lambda: model(opposite(TARGET)),
    "ngram": NgramDrafter,
    "trees": lambda: Comb(TARGET),
    "none": NoDrafter,
}
SETTINGS = {
    "plainest": {},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.2},
    "penalties": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
    },
    "bias": {"logit_bias": {2: 1.5, 4: float("-inf")}},
}
TEMPERATURES = (0.0, 0.5, 1.0, 1.7)


def requests(max_tokens=10):
    """One request for each temperature and setting, with prompts and seeds in turn."""
    pairs = [(t, name) for t in TEMPERATURES for name in SETTINGS]
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(len(pairs))]
    params = [
        SamplingParams(max_tokens=max_tokens, temperature=t, seed=i, **SETTINGS[name])
        for i, (t, name) in enumerate(pairs)
    ]
    return prompts, params


def speculator(drafter, depth=4, max_batch=32, target=None, **others):
    return Speculator(
        target or ToyModel(TARGET, V),
        drafter,
        settings=EngineSettings(depth=depth, max_batch=max_batch, prefill_chunk=3),
        **others,
    )


def tokens(outputs):
    return [output.token_ids for output in outputs]


@functools.cache
def plain_tokens():
    """Each request alone and without drafts."""
    plain = speculator(NoDrafter())
    return [
        plain.plain(prompt, params).token_ids for prompt, params in zip(*requests(), strict=True)
    ]


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_seeded_and_greedy_tokens_are_those_of_plain_decoding(drafter, depth):
    """Any temperature and setting, all in one batch, against each request alone without drafts."""
    outputs = speculator(DRAFTERS[drafter](), depth).generate(*requests())
    assert tokens(outputs) == plain_tokens()
    if depth == 0 or drafter == "none":
        assert all(output.stats.drafted == 0 for output in outputs)
    else:
        assert sum(output.stats.drafted for output in outputs) > 0


def test_drafts_of_a_perfect_model_are_all_kept_and_of_an_adversary_almost_none():
    """Otherwise the matrix above would test nothing but plain decoding."""
    prompts, params = requests()
    perfect = speculator(model(TARGET)).generate(prompts, params)
    for output, wanted in zip(perfect, params, strict=True):
        assert output.stats.drafted > 0
        assert output.stats.acceptance_rate == 1.0, wanted
    wrong = speculator(model(opposite(TARGET))).generate(prompts, params)
    rates = [output.stats.acceptance_rate for output in wrong]
    assert min(rates) == 0.0
    assert np.mean(rates) < 0.5


@pytest.mark.parametrize("max_batch", [1, 2, 3, 7])
@pytest.mark.parametrize("order", range(3))
def test_batch_composition_changes_nothing(max_batch, order):
    """Sequences join, leave and change rows; each is its solo run, and no token leaks over."""
    prompts, params = requests()
    shuffled = np.random.default_rng(order).permutation(len(prompts))[:12]
    lengths = [1 + int(i) % 10 for i in shuffled]
    outputs = speculator(model(random_law(V, 1, order=1)), 3, max_batch).generate(
        [prompts[i] for i in shuffled],
        [replace(params[i], max_tokens=n) for i, n in zip(shuffled, lengths, strict=True)],
    )
    wanted = [plain_tokens()[i][:n] for i, n in zip(shuffled, lengths, strict=True)]
    assert tokens(outputs) == wanted


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("seed", range(2))
def test_depth_that_changes_every_round_and_row_changes_nothing(drafter, seed):
    """Buffers sized for one depth, and rows without drafts among rows with them."""
    depths = np.random.default_rng(seed).integers(0, 7, size=101).tolist()
    outputs = speculator(Varied(DRAFTERS[drafter](), depths), 6).generate(*requests())
    assert tokens(outputs) == plain_tokens()


def random_plans(seed):
    dice = np.random.default_rng(seed)
    return [
        {
            "depth": int(dice.integers(0, 6)),
            "width": int(dice.integers(1, 5)),
            "nodes": int(dice.integers(1, 25)),
            "floor": float(dice.choice([0.0, 0.05, 0.3])),
            "min_confidence": float(dice.choice([0.0, 0.4, 0.8])),
        }
        for _ in range(101)
    ]


@pytest.mark.parametrize("drafter", ["perfect", "related", "random", "adversarial"])
@pytest.mark.parametrize("seed", range(2))
def test_trees_that_change_shape_every_round_change_nothing(drafter, seed):
    system = speculator(Varied(DRAFTERS[drafter](), random_plans(seed)), 6)
    assert tokens(system.generate(*requests())) == plain_tokens()


def test_trees_find_more_than_chains():
    """Otherwise the test above would pass on trees whose branches no one can follow."""
    counts = {}
    for width in (1, 3):
        plans = [{"width": width, "nodes": 20}]
        system = speculator(Varied(DRAFTERS["related"](), plans), 4)
        stats = [output.stats for output in system.generate(*requests())]
        counts[width] = sum(s.generated for s in stats) / sum(s.target_calls for s in stats)
    assert counts[3] > 1.1 * counts[1]


@pytest.mark.parametrize("drafter", ["perfect", "random", "ngram"])
@pytest.mark.parametrize("depths", [[0, 3], [3, 0], [0, 0, 0, 5, 1]])
def test_empty_drafts_in_turn_with_full_ones_change_nothing(drafter, depths):
    outputs = speculator(Varied(DRAFTERS[drafter](), depths), 6).generate(*requests())
    assert tokens(outputs) == plain_tokens()


@pytest.mark.parametrize("name", ["tokenwise", "blockwise", "point", "coupled"])
def test_every_rule_is_plain_greedy_decoding_at_temperature_zero(name):
    prompts = PROMPTS
    params = SamplingParams(max_tokens=10)
    speculative = speculator(model(random_law(V, 1, order=1)), verifier=name)
    assert tokens(speculative.generate(prompts, params)) == tokens(
        speculative.plain(prompts, params)
    )


def test_first_drafted_token_is_verified():
    """A wrong one-token draft changes nothing and counts as not accepted."""
    wanted = speculator(NoDrafter()).plain([0], SamplingParams(max_tokens=6)).token_ids
    ids = (0, *wanted)
    wrong = Scripted(lambda seen: [(ids[len(seen)] + 1) % V] if len(seen) < len(ids) else [])
    output = speculator(wrong).generate([0], SamplingParams(max_tokens=6))
    assert output.token_ids == wanted
    assert (output.stats.drafted, output.stats.accepted) == (5, 0)


# Seeds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verifier", [None, "tokenwise", "blockwise", "point", "coupled"])
def test_seed_alone_is_the_seed_among_seven_others(verifier):
    """Every rule reads the sequence's own numbers and no engine-wide stream."""
    params = [SamplingParams(max_tokens=10, temperature=1.0, seed=seed) for seed in range(42, 50)]
    system = speculator(model(random_law(V, 3)), verifier=verifier)
    alone = system.generate(PROMPTS[1], params[0])
    others = [PROMPTS[i % 6] for i in range(2, 9)]
    among = system.generate([*others, PROMPTS[1]], [*params[1:], params[0]])
    assert among[-1].token_ids == alone.token_ids
    again = system.generate(PROMPTS[1], params[0])
    assert again.token_ids == alone.token_ids
    assert len({output.token_ids for output in among}) > 4


def test_samples_of_one_request_are_different_and_each_is_reproducible():
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=5, n=6)
    system = speculator(model(random_law(V, 3)), max_batch=4)
    samples = [sample.token_ids for sample in system.generate([0], params).samples]
    assert len(set(samples)) == 6
    assert [sample.token_ids for sample in system.plain([0], params).samples] == samples
    assert system.generate([0], replace(params, n=1)).token_ids == samples[0]


def test_unseeded_calls_and_samples_differ():
    params = SamplingParams(max_tokens=12, temperature=1.5, n=3)
    system = speculator(model(TARGET))
    seen = [s.token_ids for _ in range(3) for s in system.generate([0], params).samples]
    assert len(set(seen)) > 5


# Limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["perfect", "random", "ngram", "none"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_max_tokens_is_exact(drafter, depth, temperature):
    """Also with drafts that are all accepted: a round never runs past the budget."""
    for max_tokens in (0, 1, 2, depth, depth + 1, depth + 2):
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=1)
        output = speculator(DRAFTERS[drafter](), depth).generate(PROMPTS[1], params)
        assert len(output.token_ids) == max_tokens
        assert output.finish_reason == "length"
        assert output.stats.generated == max_tokens
        assert output.token_ids == speculator(NoDrafter()).plain(PROMPTS[1], params).token_ids


@pytest.mark.parametrize("drafter", ["perfect", "random", "ngram", "none"])
@pytest.mark.parametrize("prompt", [[0], [1, 2, 3, 4], [1] * 18, [1] * 19])
def test_context_is_filled_to_its_limit(drafter, prompt):
    """Drafts shrink near the end of the context instead of running past it."""
    target = Bounded(TARGET, V, max_positions=20)
    system = speculator(DRAFTERS[drafter](), 5, target=target)
    output = system.generate(prompt, SamplingParams(max_tokens=100))
    assert len(prompt) + len(output.token_ids) == 20
    assert output.finish_reason == "length"
    assert output.token_ids == system.plain(prompt, SamplingParams(max_tokens=100)).token_ids


class Bounded(ToyModel):
    """A table model with learned positions: one beyond the last cannot be embedded."""

    def forward(self, batch, cache, columns=None):
        self._check(batch)
        return super().forward(batch, cache, columns)

    def _run(self, batch, cache, first_row):
        self._check(batch)
        return super()._run(batch, cache, first_row)

    def _check(self, batch):
        assert int(batch.positions.min()) >= 0
        assert int(batch.positions.max()) < self.max_positions, "position without an embedding"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompt_longer_than_the_drafter_reads_leaves_only_that_row_plain(temperature):
    """The target reads 64 tokens, the drafter 16; the prompt of 40 stands beside short ones."""
    drafter = ModelDrafter(Bounded(TARGET, V, max_positions=16), V, prefill_chunk=4)
    system = speculator(drafter, 4, target=Bounded(TARGET, V, max_positions=64))
    prompts = [[1, 2, 3], [i % V for i in range(40)], [4], [2] * 12, [2] * 15, [2] * 16]
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=3)
    outputs = system.generate(prompts, params)
    assert tokens(outputs) == [system.plain(prompt, params).token_ids for prompt in prompts]
    long, *short = outputs[1], outputs[0], outputs[2], outputs[3], outputs[4]
    assert (long.stats.drafted, long.stats.undrafted_calls) == (0, 20)
    assert outputs[5].stats.drafted == 1, "16 tokens are read, the 17th has no position"
    for output in short:
        assert output.stats.drafted > 0


def test_drafter_without_ids_beyond_its_vocabulary_changes_nothing():
    """Padded embeddings: the drafter has fewer logits, then more, than the target."""
    law = remembered(lambda prefix: list(random_law(V, 8)(prefix)))
    small = lambda prefix: random_law(4, 8)(prefix)  # noqa: E731
    large = lambda prefix: random_law(9, 8)(prefix)  # noqa: E731
    for draft, size in ((small, 4), (large, 9)):
        drafter = ModelDrafter(ToyModel(draft, size), V, prefill_chunk=4)
        system = speculator(drafter, 3, target=ToyModel(law, V))
        for temperature in (0.0, 1.0):
            params = SamplingParams(max_tokens=15, temperature=temperature, seed=2)
            drafted, plain = system.generate([1, 2], params), system.plain([1, 2], params)
            assert drafted.token_ids == plain.token_ids


# Bias and custom rules ----------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_bias_holds_for_accepted_corrected_and_bonus_tokens(drafter):
    params = SamplingParams(max_tokens=9, temperature=1.0, logit_bias={3: 100.0}, seed=1)
    free = remembered(random_law(V, seed=5))
    output = speculator(DRAFTERS[drafter](), target=ToyModel(free, V)).generate([0, 1], params)
    assert output.token_ids == (3,) * 9


class Forbids:
    """Bans what it has seen twice; keeps the count itself, so a leaked draft would show."""

    def __init__(self):
        self.counts = np.zeros(V, dtype=int)

    def __call__(self, input_ids, scores):
        self.counts[int(input_ids[0, -1])] += 1
        scores = scores.clone()
        if (self.counts < 2).any():
            scores[0, self.counts >= 2] = -np.inf
        return scores


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stateful_processor_acts_as_in_plain_decoding(drafter, temperature):
    """Rejected drafts must not count; other systems kept them in the processor's state."""
    params = SamplingParams(
        max_tokens=14, temperature=temperature, seed=4, logits_processors=[Forbids()]
    )
    free = ToyModel(remembered(random_law(V, seed=5)), V)
    system = speculator(DRAFTERS[drafter](), target=free)
    outputs = system.generate([[0], [2, 3, 1]], params)
    assert tokens(outputs) == tokens(system.plain([[0], [2, 3, 1]], params))


def test_rule_of_the_users_own_is_used_for_the_request():
    """A rule that accepts everything is seen to be one: it must not equal plain decoding."""
    from draftproof.core import Verdict

    class Trusting:
        name = "trusting"
        accepts = frozenset({Proposal.POINT})
        greedy = False
        keyed = False
        trees = False

        def verify(self, draft, p, position, noise):
            nodes = tuple(range(len(draft.tokens)))
            return Verdict(nodes, noise.race(p[-1], position + len(nodes)), all_accepted=True)

    params = SamplingParams(max_tokens=20, temperature=1.0, seed=1)
    system = speculator(model(opposite(TARGET)), verifier=Trusting())
    assert system.generate([0], params).token_ids != system.plain([0], params).token_ids
