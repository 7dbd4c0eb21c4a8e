"""Where prompts come from, which are taken, and what is said of files that hold none."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from draftproof.bench.workloads import OWN_SETS, Item, read_items, select
from draftproof.errors import InvalidPrompt, InvalidSetting


def file(tmp_path, *lines):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def items(*sizes, category="chat"):
    return [
        Item(str(i), category, ({"role": "user", "content": "x" * n},)) for i, n in enumerate(sizes)
    ]


def lengths(given, limit, per_category=None):
    chosen = select(given, "here", lambda item: range(len(item.prompt(False))), limit, per_category)
    return [len(task.ids) for task in chosen.tasks], chosen


def test_our_own_set_has_workloads_from_repetitive_to_free():
    own = read_items(None)
    assert list(Counter(item.category for item in own)) == ["edit", "extract", "chat", "story"]
    assert min(Counter(item.category for item in own).values()) >= 3
    assert len({item.id for item in own}) == len(own)


def test_a_set_of_ours_is_asked_for_by_name_unless_a_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in OWN_SETS:
        assert len(read_items(Path(name))) >= 10
    (category,) = {item.category for item in read_items(Path("code-editing"))}
    assert category == "code-editing"
    Path("code-editing").write_text('{"prompt": "mine"}')
    assert len(read_items(Path("code-editing"))) == 1


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "Hi"}',
        '{"messages": [{"role": "user", "content": "Hi"}]}',
        '{"turns": ["Hi", "and then?"]}',
    ],
)
def test_every_form_is_the_same_prompt(tmp_path, line):
    (item,) = read_items(file(tmp_path, line))
    assert item.prompt(has_template=True) == [{"role": "user", "content": "Hi"}]
    assert item.prompt(has_template=False) == "Hi"
    assert (item.id, item.category) == ("1", "all")


def test_names_and_workloads_are_taken_where_they_are_given(tmp_path):
    lines = (
        '{"question_id": 81, "category": "writing", "turns": ["a"]}',
        "",
        '{"id": "z", "prompt": "b\u2028c"}',
    )
    found = read_items(file(tmp_path, *lines))
    assert [(item.id, item.category) for item in found] == [("81", "writing"), ("z", "all")]
    assert found[1].prompt(False) == "b\u2028c", "only a newline ends a line"


def test_a_system_message_stays_where_there_is_no_template(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (item,) = read_items(file(tmp_path, json.dumps({"messages": chat})))
    assert item.prompt(False) == "Be brief.\n\nHi"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "is no JSON"),
        ('["a"]', "holds a list"),
        ('{"text": "a"}', "has no prompt"),
        ('{"prompt": "a", "turns": ["a"]}', "has prompt and turns"),
        ('{"prompt": ""}', "'prompt' that is no prompt"),
        ('{"turns": []}', "'turns' that is no prompt"),
        ('{"messages": [{"role": "user"}]}', "'messages' that is no prompt"),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path, line, said):
    path = file(tmp_path, '{"prompt": "good"}', line)
    with pytest.raises(InvalidPrompt) as caught:
        read_items(path)
    assert f"{path}, line 2" in str(caught.value)
    assert said in str(caught.value)
    assert '{"prompt": "..."}' in str(caught.value), "what is expected is shown"


def test_files_without_prompts_are_named(tmp_path):
    for path, said in (
        (tmp_path / "none.jsonl", "cannot be read"),
        (tmp_path, "cannot be read"),
        (file(tmp_path, "", ""), "holds no prompts"),
    ):
        with pytest.raises(InvalidPrompt, match=said) as caught:
            read_items(path)
        assert str(path) in str(caught.value)


def test_long_prompts_are_left_out_and_counted_and_none_is_cut():
    left, chosen = lengths(items(5, 20, 10, 11), limit=10)
    assert left == [5, 10]
    assert (chosen.too_long, chosen.total) == (2, 4)


def test_a_choice_is_spread_over_each_workload():
    given = items(*range(1, 9)) + items(*range(11, 13), category="story")
    left, chosen = lengths(given, limit=50, per_category=4)
    assert left == [1, 3, 5, 7, 11, 12]
    assert chosen.categories == ["chat", "story"]


def test_a_limit_that_leaves_nothing_is_refused_with_what_there_is():
    with pytest.raises(InvalidSetting, match="at most 4 tokens, the shortest has 5"):
        lengths(items(5, 6), limit=4)
