"""`draftproof generate`: where prompts come from, what options do, and what is printed where."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

import draftproof as dp
from draftproof.core import TargetOutput
from draftproof.sampling.grammar import Grammar
from draftproof.sampling.params import SamplingParams
from tests.cli.conftest import Result
from tests.test_api import tokenizer
from tests.tiny import tiny_model

DRAFTING = ("--drafter", "early-exit:1", "--depth", "4")
SHORT = ("--max-tokens", "12", *DRAFTING, "--dtype", "float64")


@pytest.fixture(scope="module")
def spec():
    pair = (tiny_model("llama", max_position_embeddings=512), tokenizer())
    return dp.Speculator.from_pretrained(pair, "none")


@pytest.fixture
def generate(call, folder):
    def run(*arguments, stdin=b"") -> Result:
        return call("generate", "--target", folder, *SHORT, *arguments, stdin=stdin)

    return run


def parsed(result: Result) -> dict:
    """The one JSON object that standard output holds, and nothing else anywhere."""
    assert result.code == 0, result.err
    assert result.err == ""
    assert result.out.count("\n") == 1
    return json.loads(result.out)


# Prompts ------------------------------------------------------------------------------------


def test_a_prompt_comes_from_its_argument_standard_input_or_a_file(generate, spec, tmp_path):
    text = "héllo\n\nwörld"
    file = tmp_path / "prompt.txt"
    file.write_bytes(text.encode())
    expected = spec.plain(text, SamplingParams(max_tokens=12))
    for given in (
        generate(text, "--raw", "--json"),
        generate("-", "--raw", "--json", stdin=text.encode()),
        generate("--prompt-file", file, "--raw", "--json"),
    ):
        assert parsed(given)["token_ids"] == list(expected.token_ids)


def test_a_prompt_is_a_chat_message_where_the_model_has_a_template(generate, spec):
    chat = [{"role": "user", "content": "hello"}]
    expected = spec.plain(chat, SamplingParams(max_tokens=12))
    assert parsed(generate("hello", "--json"))["text"] == expected.text
    told = [{"role": "system", "content": "be brief"}, *chat]
    expected = spec.plain(told, SamplingParams(max_tokens=12))
    assert parsed(generate("hello", "--json", "--system", "be brief"))["text"] == expected.text


# Output -------------------------------------------------------------------------------------


def test_the_text_goes_to_standard_output_and_the_table_to_standard_error(generate, spec):
    result = generate("hello", "--raw")
    expected = spec.plain("hello", SamplingParams(max_tokens=12))
    assert result.code == 0
    assert result.out == expected.text + "\n"
    assert "acceptance rate" in result.err
    assert "target calls" in result.err
    assert "\x1b" not in result.out + result.err, "colours are for terminals"


def test_quiet_prints_the_text_alone(generate, spec):
    result = generate("hello", "--raw", "--quiet", "--compare")
    assert result == Result(0, spec.plain("hello", SamplingParams(max_tokens=12)).text + "\n", "")


def test_json_counts_as_the_library_does(generate, folder):
    report = parsed(generate("hello", "--raw", "--json", "--depth", "3"))
    judged = dp.Speculator.from_pretrained(folder, "early-exit:1", depth=3, dtype="float64")
    stats = judged.generate("hello", SamplingParams(max_tokens=12)).stats
    for key in ("generated", "target_calls", "drafted", "accepted", "acceptance_rate"):
        assert report["stats"][key] == getattr(stats, key), key
    assert report["stats"]["calls_saved"] == 12 - stats.target_calls
    assert report["stats"]["accepted_per_call"] == stats.accepted / stats.target_calls
    assert report["stats"]["tokens_per_second"] > 0
    assert [report[key] for key in ("plain", "speedup", "identical", "difference")] == [None] * 4


@pytest.mark.parametrize("drafter", ["self-int8", "ngram", "early-exit:1", "none"])
@pytest.mark.parametrize("sampled", [(), ("--temperature", "0.8", "--seed", "4")])
def test_compare_finds_the_texts_identical(generate, drafter, sampled):
    report = parsed(generate("hello", "--json", "--compare", "--drafter", drafter, *sampled))
    assert report["identical"] is True
    assert report["difference"] is None
    assert report["plain"]["token_ids"] == report["token_ids"]
    assert report["plain"]["stats"]["drafted"] == 0
    ours, theirs = (s["stats"]["tokens_per_second"] for s in (report, report["plain"]))
    assert report["speedup"] == pytest.approx(ours / theirs)


def test_compare_fixes_a_seed_where_none_was_given_and_names_it(generate):
    report = parsed(generate("hello", "--json", "--compare", "--temperature", "1"))
    assert report["identical"] is True
    again = parsed(generate("hello", "--json", "--temperature", "1", "--seed", str(report["seed"])))
    assert again["token_ids"] == report["token_ids"]


def test_compare_shows_one_text_where_nobody_watches_and_says_that_they_are_equal(generate, spec):
    result = generate("hello", "--raw", "--compare")
    assert result.out == spec.plain("hello", SamplingParams(max_tokens=12)).text + "\n"
    assert "identical to plain decoding" in result.err
    assert "speed-up" in result.err


@pytest.mark.parametrize("verifier", ["tokenwise", "blockwise", "point"])
def test_a_rule_that_keeps_only_the_law_is_not_called_different(generate, verifier):
    options = ("--compare", "--temperature", "1", "--verifier", verifier)
    report = parsed(generate("hello", "--json", *options))
    assert report["identical"] is None
    assert report["difference"] is None
    assert report["plain"]["text"]
    assert "not compared" in generate("hello", *options).err


class FavoursNine:
    """A target that wants token 9 at every drafted position."""

    def __init__(self, target):
        self._target = target

    def __getattr__(self, name):
        return getattr(self._target, name)

    def forward(self, batch, cache, columns=None):
        logits = self._target.forward(batch, cache, columns).logits.clone()
        logits[:, 1:, 9] += 20
        return TargetOutput(logits)


def wrong_target(monkeypatch):
    """Every pair that the command loads gets a target that errs at drafted positions."""
    honest = dp.Speculator.from_pretrained

    def wrong(*arguments, **named):
        made = honest(*arguments, **named)
        made.target = FavoursNine(made.target)
        return made

    monkeypatch.setattr(dp.Speculator, "from_pretrained", wrong)


def test_a_difference_is_told_with_its_place_and_gap(generate, monkeypatch):
    wrong_target(monkeypatch)
    report = parsed(generate("hello", "--json", "--compare"))
    assert report["identical"] is False
    difference = report["difference"]
    assert difference["token"] == 9
    assert difference["token"] == report["token_ids"][difference["position"]]
    assert difference["plain_token"] == report["plain"]["token_ids"][difference["position"]]
    assert difference["gap"] > difference["tolerance"]
    assert difference["near_tie"] is False
    told = generate("hello", "--compare").err
    assert f"DIFFERENT from plain decoding at token {difference['position']}" in told


# Options ------------------------------------------------------------------------------------


OPTIONS = {
    "max_tokens": ("--max-tokens 5", {"max_tokens": 5}),
    "min_tokens": ("--stop-token-id 3 --min-tokens 9", {"stop_token_ids": [3], "min_tokens": 9}),
    "temperature": ("--temperature 1.5 --seed 3", {"temperature": 1.5, "seed": 3}),
    "top_k": ("--temperature 2 --seed 3 --top-k 2", {"temperature": 2, "seed": 3, "top_k": 2}),
    "top_p": ("--temperature 2 --seed 3 --top-p .3", {"temperature": 2, "seed": 3, "top_p": 0.3}),
    "min_p": ("--temperature 2 --seed 3 --min-p .5", {"temperature": 2, "seed": 3, "min_p": 0.5}),
    "repetition_penalty": ("--repetition-penalty 2", {"repetition_penalty": 2.0}),
    "presence_penalty": ("--presence-penalty 9", {"presence_penalty": 9.0}),
    "frequency_penalty": ("--frequency-penalty 9", {"frequency_penalty": 9.0}),
    "logit_bias": ("--logit-bias 7=90 --logit-bias 8=-5.5", {"logit_bias": {7: 90.0, 8: -5.5}}),
    "seed": ("--temperature 1.5 --seed 4", {"temperature": 1.5, "seed": 4}),
    "stop": ("--stop zz --stop q", {"stop": ["zz", "q"]}),
    "stop_token_ids": ("--stop-token-id 40 --stop-token-id 41", {"stop_token_ids": [40, 41]}),
    "ignore_eos": ("--logit-bias 2=90 --ignore-eos", {"logit_bias": {2: 90.0}, "ignore_eos": True}),
    "grammar": ("--regex [a-f]{9}", {"grammar": Grammar.regex("[a-f]{9}")}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_sampling_option_reaches_the_request(generate, monkeypatch, name):
    """What the library is asked for is what the same fields ask for, and the text obeys it."""
    line, wanted = OPTIONS[name]
    seen = []
    stream = dp.Speculator.stream

    def spy(self, message, params, **others):
        seen.append(params)
        return stream(self, message, params, **others)

    monkeypatch.setattr(dp.Speculator, "stream", spy)
    report = parsed(generate("hello", "--json", "--compare", *line.split()))
    expected = SamplingParams(**{"max_tokens": 12} | wanted)
    assert seen == [expected, expected]
    assert getattr(expected, name) != getattr(SamplingParams(max_tokens=12), name)
    assert report["identical"] is True


def test_options_change_the_text_as_they_do_in_plain_decoding(generate, spec):
    for line, wanted in OPTIONS.values():
        report = parsed(generate("hello", "--raw", "--json", *line.split()))
        plain = spec.plain("hello", SamplingParams(**{"max_tokens": 12} | wanted))
        assert report["token_ids"] == list(plain.token_ids), line


def test_every_field_of_a_request_that_fits_a_command_line_has_its_option():
    beyond = {"stop_rule", "n", "logprobs", "logits_processors"}  # functions, and what JSON lacks
    assert OPTIONS.keys() | beyond == {field.name for field in fields(SamplingParams)}


def test_depth_reaches_the_engine(generate):
    report = parsed(generate("hello", "--json", "--depth", "1"))
    assert len(report["stats"]["drafted_per_position"]) == 1
    assert parsed(generate("hello", "--json", "--depth", "0"))["stats"]["drafted"] == 0


def test_width_and_nodes_reach_the_engine(generate):
    wide = ("hello", "--json", "--depth", "3", "--width", "3")
    tree, small = parsed(generate(*wide)), parsed(generate(*wide, "--nodes", "2"))
    assert tree["stats"]["drafted"] > 3 * tree["stats"]["target_calls"]
    assert small["stats"]["drafted"] <= 2 * small["stats"]["target_calls"]
    assert tree["token_ids"] == small["token_ids"]


def test_a_static_tree_reaches_the_engine(generate):
    report = parsed(generate("hello", "--json", "--depth", "2", "--tree", "3,2"))
    stats = report["stats"]
    assert stats["drafted"] > 3 * stats["target_calls"]
    assert len(stats["drafted_per_position"]) == 2
    assert report["token_ids"] == parsed(generate("hello", "--json", "--depth", "0"))["token_ids"]


def test_grammars_shape_the_text(generate, tmp_path):
    """Each of the four options, in what the model says."""
    schema = {"enum": ["left", "right"], "x-guidance": {"whitespace_flexible": False}}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    for line, wanted in (
        (("--json-schema", tmp_path / "schema.json"), ('"left"', '"right"')),
        (("--choice", "yes", "--choice", "no"), ("yes", "no")),
        (("--regex", "(ha){3}"), ("hahaha",)),
    ):
        report = parsed(generate("hello", "--raw", "--json", "--compare", *line))
        assert report["identical"] is True
        assert report["text"] in wanted
    report = parsed(generate("hello", "--raw", "--json", "--json-object"))
    assert report["text"].startswith("{")


# Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ((), "no prompt was given"),
        (("hello", "--prompt-file", "x.txt"), "both given"),
        (("--prompt-file", "no-such-file.txt"), "no-such-file.txt cannot be read"),
        (("", "--raw"), "no tokens"),
        (("hello", "--drafter", "magic"), "drafter is 'magic'; choose one of self-int8"),
        (("hello", "--drafter", "early-exit:99"), "early-exit:99"),
        (("hello", "--drafter", "model:./nowhere"), "nowhere"),
        (("hello", "--depth", "65"), "depth is 65"),
        (("hello", "--depth", "-1"), "depth is -1"),
        (("hello", "--depth", "four"), "--depth"),
        (("hello", "--width", "0"), "width is 0"),
        (("hello", "--nodes", "65"), "nodes is 65"),
        (("hello", "--depth", "auto", "--width", "2"), "chooses the width as well"),
        (("hello", "--width", "2", "--verifier", "blockwise"), "judges chains and width is 2"),
        (("hello", "--verifier", "typical"), "verifier is 'typical'"),
        (("hello", "--verifier", "greedy", "--temperature", "1"), "is for temperature 0"),
        (("hello", "--target", "./no-such-model"), "no-such-model"),
        (("hello", "--logit-bias", "7"), "--logit-bias is '7'; give ID=VALUE"),
        (("hello", "--logit-bias", "7=x"), "--logit-bias is '7=x'"),
        (("hello", "--logit-bias", "99999=1"), "token id 99999"),
        (("hello", "--temperature", "-1"), "temperature is -1"),
        (("hello", "--temperature", "nan"), "temperature is nan"),
        (("hello", "--top-p", "0"), "top_p is 0"),
        (("hello", "--max-tokens", "-1"), "max_tokens is -1"),
        (("hello", "--min-tokens", "13"), "min_tokens is 13"),
        (("hello", "--raw", "--system", "x"), "--system"),
        (("hello", "--regex", "a", "--choice", "b"), "--regex and --choice were both given"),
        (("hello", "--regex", "a("), "unclosed group"),
        (("hello", "--json-schema", "gone.json"), "gone.json cannot be read"),
        (("hello", "--json-object", "--min-tokens", "3"), "min_tokens and a grammar"),
        (("hello", "--dtype", "int3"), "dtype is 'int3'"),
        (("hello", "--device", "toaster"), "toaster"),
        (("hello", "--no-such-option"), "--no-such-option"),
        (("x" * 600, "--raw"), "reads at most 512"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(generate, line, named):
    result = generate(*line)
    assert result.code == 2
    assert result.out == ""
    assert named in result.err
    assert result.err.startswith("draftproof: ")
    assert result.err.count("\n") == 1, result.err


def test_input_that_is_not_utf_8_is_refused(generate, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"\xff\xfe")
    for result in (
        generate("-", stdin=b"\xff\xfe"),
        generate("--prompt-file", tmp_path / "prompt.txt"),
        generate("--prompt-file", tmp_path),
    ):
        assert result.code == 2
        assert "cannot be read as UTF-8 text" in result.err


def test_an_interruption_is_told_in_one_line(generate, monkeypatch):
    def interrupted(*_arguments, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr(dp.Speculator, "stream", interrupted)
    assert generate("hello") == Result(130, "", "draftproof: interrupted\n")
