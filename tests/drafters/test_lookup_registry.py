"""Names of look-ups: what is built from them, and what is told before a model is loaded."""

from __future__ import annotations

import json

import pytest

from draftproof.api import Speculator
from draftproof.config import EngineSettings
from draftproof.drafters.corpus import MAX_BYTES
from draftproof.drafters.registry import DRAFTER_HELP, Surroundings, check_spec, make_drafter
from draftproof.errors import InvalidSetting
from draftproof.models.toy import ToyModel, random_law
from draftproof.sampling.params import SamplingParams
from tests.tiny import tiny_model, word_tokenizer

LOOKUPS = ["ngram", "suffix", "recycling", "lookahead"]
WORDS = ["<unk>", "a", "b", "c", "d", "e", "f"]


def around(tokenizer=None):
    target = ToyModel(random_law(6, seed=1), 6)
    return Surroundings(target, tokenizer, "auto", "auto", EngineSettings())


@pytest.mark.parametrize("spec", [*LOOKUPS, "hybrid:suffix,none", "hybrid:recycling,ngram"])
def test_a_drafter_is_called_what_it_was_asked_for(spec):
    check_spec(spec)
    assert make_drafter(spec, around()).name == spec


def test_every_look_up_is_in_the_list_of_drafters():
    assert set(LOOKUPS) < set(DRAFTER_HELP)
    assert {"ngram:FILE", "suffix:FILE", "hybrid:A,B"} < set(DRAFTER_HELP)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("suffixes", "choose one of"),
        ("ngram:3", "cannot be read"),
        ("ngram:", "give a file of text, ngram:notes.txt"),
        ("recycling:x", "choose one of"),
        ("suffix:", "give a file of text"),
        ("suffix:/no/such/file", "cannot be read"),
        ("hybrid", "give a look-up"),
        ("hybrid:suffix", "another drafter: hybrid:suffix,self-int8"),
        ("hybrid:suffix,", "another drafter"),
        ("hybrid:self-int8,suffix", "give a look-up"),
        ("hybrid:suffix,suffix", "has to be another one"),
        ("hybrid:suffix,hybrid:ngram,none", "no hybrid"),
        ("hybrid:suffix,wrong", "'wrong'; choose one of"),
        ("hybrid:suffix:/no/such/file,none", "cannot be read"),
        ("hybrid:ngram,early-exit:x", "give a number of layers"),
    ],
)
def test_a_wrong_name_is_told_before_anything_is_loaded(spec, message):
    with pytest.raises(InvalidSetting, match=message):
        check_spec(spec)
    with pytest.raises(InvalidSetting, match=message):
        Speculator.from_pretrained("/no/such/model", spec)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "holds no text"),
        ("blank.txt", b" \n\n", "holds no text"),
        ("bytes.txt", b"\xff\xfe\x00", "cannot be read as UTF-8"),
        ("bad.jsonl", b'{"text": "a"}\n{"text"\n', "line 2 of .* is no JSON"),
        ("other.jsonl", b'{"prompt": "a"}\n', "line 1 of .* has no text"),
        ("number.jsonl", b'{"text": 3}\n', "line 1 of .* has no text"),
        ("list.jsonl", b'["a"]\n', "line 1 of .* has no text"),
        ("none.jsonl", b'{"text": ""}\n\n', "holds no text"),
    ],
)
def test_a_corpus_that_holds_no_text_is_refused_by_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidSetting, match=message) as error:
        check_spec(f"suffix:{tmp_path / name}")
    assert name in str(error.value)


def test_a_folder_or_a_huge_file_is_no_corpus(tmp_path):
    with pytest.raises(InvalidSetting, match="cannot be read"):
        check_spec(f"suffix:{tmp_path}")
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(InvalidSetting, match="give a part of it"):
        check_spec(f"suffix:{tmp_path / 'huge.txt'}")


def test_a_corpus_needs_the_targets_tokenizer(tmp_path):
    (tmp_path / "notes.txt").write_text("a b c")
    with pytest.raises(InvalidSetting, match="without a tokenizer"):
        make_drafter(f"suffix:{tmp_path / 'notes.txt'}", around())


@pytest.mark.parametrize("name", ["ngram", "suffix"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_a_corpus_is_read_with_the_targets_tokenizer_and_drafted_from(tmp_path, kind, name):
    target = tiny_model("llama", vocab_size=len(WORDS))
    pair = (target, word_tokenizer(WORDS))
    params = SamplingParams(max_tokens=24)
    plain = Speculator.from_pretrained(pair, "none").generate("a b c d", params)
    path = tmp_path / f"notes.{kind}"
    text = f"a b c d {plain.text}"
    path.write_text(json.dumps({"text": text}) + "\n" if kind == "jsonl" else text)
    knowing = Speculator.from_pretrained(pair, f"{name}:{path}", depth=4)
    assert knowing.drafter.name == f"{name}:notes.{kind}"
    output = knowing.generate("a b c d", params)
    assert output.token_ids == plain.token_ids
    assert output.stats.target_calls < plain.stats.target_calls / 2
