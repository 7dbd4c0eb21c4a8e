"""Drafters of another vocabulary: the text stays the target's, and what they mean is understood."""

from __future__ import annotations

import dataclasses
import functools
from contextlib import closing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftproof.api import Speculator
from draftproof.checks.exact import emitted_law, joint_law, total_variation
from draftproof.config import MAX_NODES, EngineSettings, ServiceSettings
from draftproof.core import Context, Plan, Proposal
from draftproof.drafters.foreign import StringLevelDrafter, TokenLevelDrafter, foreign_drafter
from draftproof.errors import VocabularyMismatch
from draftproof.models.cache import KVCache
from draftproof.models.hf import HFModel
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.noise import KeyedNoise
from draftproof.sampling.params import MAX_SAMPLES, SamplingParams
from draftproof.sampling.warp import Warp
from draftproof.service.service import Service
from draftproof.verification.registry import find
from tests.foreign import CORPUS, byte_level, foreign_pair, lexicon, sentencepiece
from tests.lossless.test_distribution import FEW, SAMPLED, check, count, target_of, wanted
from tests.service.conftest import PATIENCE, Ear, Notes
from tests.tiny import tiny_model
from tests.toys import EXACT, flattened, remembered

MAKES = {"bytes": byte_level(), "pieces": sentencepiece()}
METHODS = {"tli": TokenLevelDrafter, "slem": StringLevelDrafter}
LONG = 512
SHORT_PARTS = {"prefill_chunk": 8, "prefill_tokens": 8}
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
EVERY_TARGET = pytest.mark.parametrize("target", MAKES)


def other(make: str) -> str:
    return "pieces" if make == "bytes" else "bytes"


@functools.cache
def model_of(make: str, seed: int, positions: int = 256) -> HFModel:
    size = len(MAKES[make])
    return HFModel(tiny_model("gpt2", seed, vocab_size=size, n_positions=positions), make)


def system(target: str, method: str, positions: int = 256, **others) -> Speculator:
    """A pair of random models; the drafter reads and writes the other make of tokens."""
    model, drafter = model_of(target, 1, positions), model_of(other(target), 2, positions)
    pair = foreign_pair(MAKES[target], MAKES[other(target)], drafter, model.vocab_size)
    made = METHODS[method](pair)
    return Speculator(
        model, made, tokenizer=MAKES[target], settings=EngineSettings(depth=4, **others)
    )


# The text is the target's -------------------------------------------------------------------

PARAMS = {
    "greedy": {},
    "seeded": {"temperature": 1.3, "seed": 5},
    "cut": {"temperature": 1.1, "seed": 7, "top_k": 20, "top_p": 0.9},
    "penalised": {"temperature": 0.9, "seed": 3, "repetition_penalty": 1.4, "min_tokens": 9},
}


@EVERY_METHOD
@EVERY_TARGET
@pytest.mark.parametrize("kind", PARAMS)
def test_texts_equal_plain_ones(target: str, method: str, kind: str) -> None:
    made = system(target, method, max_batch=2)
    params = SamplingParams(max_tokens=24, **PARAMS[kind])
    outputs, plain = made.generate(CORPUS[:4], params), made.plain(CORPUS[:4], params)
    for drafted, expected in zip(outputs, plain, strict=True):
        assert drafted.token_ids == expected.token_ids
        assert drafted.prompt_token_ids == expected.prompt_token_ids
    assert sum(output.stats.drafted for output in outputs) > 0


@EVERY_METHOD
def test_a_prompt_that_ends_inside_a_character_is_continued(method: str) -> None:
    made = system("bytes", method)
    ids = lexicon(MAKES["bytes"]).write(b"", "The dog says 語".encode())
    for cut in (1, 2):
        params = SamplingParams(max_tokens=12, temperature=1.0, seed=cut)
        plain = made.plain(ids[:-cut], params)
        assert made.generate(ids[:-cut], params).token_ids == plain.token_ids


@EVERY_METHOD
def test_a_text_longer_than_the_drafter_can_read_is_decoded_plainly(method: str) -> None:
    narrow = HFModel(
        tiny_model("gpt2", 2, vocab_size=len(MAKES["pieces"]), n_positions=48), "narrow"
    )
    model = model_of("bytes", 1)
    pair = foreign_pair(MAKES["bytes"], MAKES["pieces"], narrow, model.vocab_size)
    made = Speculator(
        model, METHODS[method](pair), tokenizer=MAKES["bytes"], settings=EngineSettings(depth=4)
    )
    prompts = [CORPUS[3] * 2, "The dog", "the light", "words:"]
    params = SamplingParams(max_tokens=24)
    outputs = made.generate(prompts, params)
    assert outputs[0].stats.drafted == 0
    assert sum(output.stats.drafted for output in outputs) > 0
    for output, plain in zip(outputs, made.plain(prompts, params), strict=True):
        assert output.token_ids == plain.token_ids


@EVERY_METHOD
def test_a_text_that_stretches_too_far_in_the_drafters_tokens_is_decoded_plainly(method) -> None:
    target = byte_level(600)
    ids = lexicon(target).write(b"", " 日本語の文章".encode() * 11)
    model = model_of("pieces", 2)
    pair = foreign_pair(target, MAKES["pieces"], model, len(target))
    warp = Warp(SamplingParams(), prompt_length=1, num_tokens=len(target))
    drafting = METHODS[method](pair).begin(KVCache(rows=1, capacity=len(ids) + MAX_NODES + 2))
    context = Context(0, 0, ids, warp, KeyedNoise(1), Proposal.POINT)
    (draft,) = drafting.propose([context], [Plan(3)])
    assert draft.tokens == ()


@EVERY_METHOD
@EVERY_TARGET
def test_a_service_lets_it_read_a_long_prompt_in_parts(target: str, method: str, monkeypatch):
    """Nobody waits for it to read all of a prompt at once."""
    made = system(target, method, LONG, max_batch=2)
    parts, prefill = [], HFModel.prefill

    def watched(model, tokens, *others):
        if model is model_of(other(target), 2, LONG):
            parts.append(len(tokens))
        prefill(model, tokens, *others)

    monkeypatch.setattr(HFModel, "prefill", watched)
    text = " ".join([CORPUS[0], CORPUS[2]] * 3)
    ids, params = lexicon(MAKES[target]).write(b"", text.encode()), SamplingParams(max_tokens=9)
    expected, notes = made.generate(ids, params), Notes()
    assert expected.token_ids == made.plain(ids, params).token_ids
    settings = ServiceSettings(**SHORT_PARTS)
    with closing(Service(made, settings=settings, listener=notes)) as service:
        service.start()
        assert service.wait_until_ready(PATIENCE)
        for _ in range(2):  # the second time most of it is kept, for the target
            ear, before = Ear(), len(parts)
            service.submit(ids, params, ear)
            assert ear.wait().tokens() == expected.token_ids
            most, *others = sorted(parts[before:], reverse=True)
            assert most < sum(others) / 2, parts[before:]
        assert service.drain(PATIENCE)
    drafted = [(report.stats.drafted, report.stats.accepted) for report in notes.reports]
    assert drafted == [(expected.stats.drafted, expected.stats.accepted)] * 2


@EVERY_METHOD
@EVERY_TARGET
@pytest.mark.parametrize("size", [1, 2])
def test_a_prompt_of_one_or_two_tokens_is_enough(target: str, method: str, size: int):
    made = system(target, method)
    ids = lexicon(MAKES[target]).write(b"", CORPUS[0].encode())[:size]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    assert made.generate(ids, params).token_ids == made.plain(ids, params).token_ids


# Drafts mean what the drafter meant ---------------------------------------------------------


def writer_of(text: str, make: str) -> ToyModel:
    """A drafter that writes `text` in its own tokens from wherever it stands, and then ends."""
    words, whole = lexicon(MAKES[make]), text.encode()

    def law(prefix):
        done = words.read(prefix)
        known = whole.startswith(done) and len(done) < len(whole)
        following = words.write(done, whole[len(done) :])[0] if known else words.end
        return [float(i == following) for i in range(len(MAKES[make]))]

    return ToyModel(law, len(MAKES[make]))


def drafted(target: str, text: str, committed, method: str, depth: int = 64) -> list[int]:
    size = len(MAKES[target])
    pair = foreign_pair(
        MAKES[target], MAKES[other(target)], writer_of(text, other(target)), vocab_size=size
    )
    drafting = METHODS[method](pair).begin(KVCache(rows=1, capacity=400))
    warp = Warp(SamplingParams(), prompt_length=1, num_tokens=size)
    context = Context(0, 0, committed, warp, KeyedNoise(1), Proposal.POINT)
    (draft,) = drafting.propose([context], [Plan(depth)])
    return list(draft.tokens)


@EVERY_TARGET
@settings(max_examples=60, deadline=None)
@given(st.text(min_size=2, max_size=16), st.data())
@example("naïve café, señor 日本語 😀😃", None)
@example("  two  spaces \n\n and lines", None)
def test_text_behind_any_border_is_proposed_as_the_targets_own_ids(target, text, data) -> None:
    """Or nothing is, where the border would not have been cut there."""
    words = lexicon(MAKES[target])
    ids = words.write(b"", text.encode())
    assert words.read(ids) == text.encode()
    borders = range(1, len(ids) + 1) if data is None else [data.draw(st.integers(1, len(ids)))]
    for border in borders:
        proposed = drafted(target, text, ids[:border], "slem")
        assert proposed in ([], [*ids[border:], words.end])


@EVERY_TARGET
def test_ordinary_text_is_proposed_behind_every_token(target: str) -> None:
    words = lexicon(MAKES[target])
    for text in (CORPUS[0], CORPUS[2]):
        ids = words.write(b"", text.encode())
        for border in range(1, len(ids), 3):
            proposed = drafted(target, text, ids[:border], "slem", depth=9)
            assert proposed
            # The last word may have been longer, had the drafter gone on.
            begins = [n for n, i in enumerate(proposed) if words.texts.get(i, b" ")[:1] == b" "]
            complete = begins[-1] if begins else 0
            assert proposed[:complete] == ids[border : border + complete]


@EVERY_TARGET
def test_what_was_drafted_and_accepted_is_not_read_again(target: str, monkeypatch) -> None:
    words, text, read = lexicon(MAKES[target]), CORPUS[0], []
    ids = words.write(b"", text.encode())
    model, drafter = writer_of(text, target), writer_of(text, other(target))
    pair = foreign_pair(MAKES[target], MAKES[other(target)], drafter, len(MAKES[target]))
    made = Speculator(model, StringLevelDrafter(pair), settings=EngineSettings(depth=4))
    prefill = ToyModel.prefill

    def spy(self, tokens, *rest):
        read.append((self is drafter, len(tokens)))
        return prefill(self, tokens, *rest)

    monkeypatch.setattr(ToyModel, "prefill", spy)
    output = made.generate(ids[:6], SamplingParams(max_tokens=len(ids) - 6))
    assert list(output.token_ids) == ids[6:]
    assert output.stats.accepted > output.stats.drafted / 2
    again = [length for its, length in read if its][1:]
    assert sum(again) < output.stats.accepted / 2


def test_a_word_that_was_committed_in_parts_is_not_continued_by_the_whole() -> None:
    words = lexicon(MAKES["bytes"])
    (whole,) = words.write(b"", b" the")
    *parts, e = (words.ids[bytes([byte])] for byte in b" the")
    assert drafted("bytes", "dog the lazy", [*words.write(b"", b"dog"), *parts], "slem") == []
    assert drafted("bytes", "dog the lazy", words.write(b"", b"dog"), "slem")[0] == whole
    assert drafted("bytes", "dog the lazy", [*words.write(b"", b"dog"), *parts, e], "slem") == []


def test_only_shared_tokens_are_drafted_token_by_token() -> None:
    words = lexicon(MAKES["bytes"])
    text = "The quick brown fox"
    ids = words.write(b"", text.encode())
    own, lengths = lexicon(MAKES["pieces"]).ids, set()
    for border in range(1, len(ids)):
        proposed = drafted("bytes", text, ids[:border], "tli", depth=5)
        assert all(words.texts.get(token, b"") in own or token == words.end for token in proposed)
        assert text.encode().startswith(words.read([*ids[:border], *proposed]))
        lengths.add(len(proposed))
    assert max(lengths) > 1


# The law of what is drawn -------------------------------------------------------------------


class Words:
    """A tokenizer that is only its words."""

    def __init__(self, words) -> None:
        self._words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self._words)}


def words_drafter(law, drafter_words: str, target_words: str) -> TokenLevelDrafter:
    """`law` is over the drafter's words."""
    model = ToyModel(law, len(drafter_words))
    pair = foreign_pair(Words(target_words), Words(drafter_words), model, len(target_words))
    return TokenLevelDrafter(pair)


def narrow_drafter() -> TokenLevelDrafter:
    """Knows two of the target's three words, in another order, and one of its own."""
    return words_drafter(remembered(flattened(random_law(3, seed=22))), "xca", "abc")


@pytest.mark.parametrize("rule", ["tokenwise", "blockwise", "point", "coupled"])
def test_first_three_tokens_have_the_targets_joint_law(rule: str) -> None:
    made = Speculator(
        ToyModel(target_of(3), 3),
        narrow_drafter(),
        verifier=rule,
        settings=EngineSettings(depth=3, max_batch=MAX_SAMPLES),
    )
    assert check(count(made, FEW, SAMPLED), wanted(3))


@pytest.mark.parametrize(
    ("rule", "proposal"),
    [
        ("tokenwise", Proposal.SAMPLED),
        ("blockwise", Proposal.SAMPLED),
        ("point", Proposal.POINT),
    ],
)
def test_emitted_law_is_exactly_the_targets(rule: str, proposal: Proposal) -> None:
    warp = Warp(SamplingParams(temperature=1.0), prompt_length=0, num_tokens=3)

    def propose(prefix, most, noise):
        drafting = narrow_drafter().begin(KVCache(rows=1, capacity=90))
        context = Context(0, 0, [0, 1, *prefix], warp, noise, proposal)
        (draft,) = drafting.propose([context], [Plan(min(2, most))])
        assert draft.q is None or not draft.q[:, 1].any()
        return draft

    law = random_law(3, seed=9, zeros=0.2)
    emitted = emitted_law(find(rule), law, propose, length=3)
    assert total_variation(emitted, joint_law(law, 3)) < EXACT


@pytest.mark.parametrize("rule", ["coupled", "tokenwise"])
@pytest.mark.parametrize("penalties", [{}, {"repetition_penalty": 1.6, "frequency_penalty": 0.7}])
def test_a_drafter_of_the_same_law_in_other_numbers_is_always_right(rule, penalties) -> None:
    """Behind a context of another length too: keys and penalties go by the committed ids."""
    law = remembered(random_law(3, seed=5, order=1))
    renumbered = {0: 1, 1: 2, 2: 0}

    def target(prefix):
        return [*law(prefix[-1:]), 0.0]

    def drafter(prefix):
        return [law((renumbered[prefix[-1]],))[renumbered[i]] for i in range(3)]

    made = Speculator(
        ToyModel(target, 4),
        words_drafter(drafter, "bca", "abcd"),
        verifier=rule,
        settings=EngineSettings(depth=3),
    )
    for seed in range(4):
        params = SamplingParams(max_tokens=25, temperature=1.2, seed=seed, **penalties)
        output = made.generate([3, 0, 3, 3, 1, 0, 2], params)
        assert output.stats.accepted == output.stats.drafted > 0


@pytest.mark.parametrize("params", [{"temperature": 1.2}, {"temperature": 1.2, "seed": 4}, {}])
def test_trees_are_drafted_in_shared_tokens(params) -> None:
    made = Speculator(
        ToyModel(target_of(3), 3), narrow_drafter(), settings=EngineSettings(depth=3, width=2)
    )
    output = made.generate([0, 1, 0, 2], SamplingParams(max_tokens=40, **params))
    assert output.stats.drafted > output.stats.accepted > 0
    if params.get("seed") or not params:
        plain = made.plain([0, 1, 0, 2], SamplingParams(max_tokens=40, **params))
        assert output.token_ids == plain.token_ids


def test_nothing_is_drafted_where_the_drafter_means_nothing_that_is_shared() -> None:
    made = Speculator(
        ToyModel(target_of(3), 3), words_drafter(lambda _prefix: [1.0, 0.0, 0.0], "xca", "abc")
    )
    for params in (SamplingParams(max_tokens=6), SamplingParams(max_tokens=6, temperature=1.0)):
        assert made.generate([0, 2, 1], params).stats.drafted == 0


# Which method -------------------------------------------------------------------------------


def test_much_in_common_is_drafted_by_tokens_and_little_by_text() -> None:
    tiny = HFModel(tiny_model("gpt2", vocab_size=len(MAKES["pieces"])), "tiny")
    pair = foreign_pair(MAKES["bytes"], MAKES["pieces"], tiny, len(MAKES["bytes"]))
    assert pair.overlap.share > 0.5
    assert foreign_drafter(pair, None).name == "model-tli:tiny"
    assert foreign_drafter(pair, "slem").name == "model-slem:tiny"
    few = dataclasses.replace(pair.overlap, shared={5: 5})
    assert foreign_drafter(dataclasses.replace(pair, overlap=few), None).name == "model-slem:tiny"


@pytest.mark.parametrize(
    ("method", "words", "message"),
    [
        (None, "xyz", r"TLI takes tokens in common; 0 tokens in common, of 3 .* and 3 .*: 0%"),
        ("slem", "abx", r"SLEM takes two tokenizers whose tokens are text; 2 tokens .* 67%"),
    ],
)
def test_a_pair_without_common_ground_is_refused_with_what_was_measured(
    method, words, message
) -> None:
    model = ToyModel(random_law(3, seed=1), 3)
    pair = foreign_pair(Words("abc"), Words(words), model, 3)
    with pytest.raises(VocabularyMismatch, match=message):
        foreign_drafter(pair, method)
