"""Prompts by workload: the set that comes with the package, or a JSONL file of the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from draftproof.errors import InvalidPrompt, InvalidSetting

if TYPE_CHECKING:
    from draftproof.api import Speculator

Messages: TypeAlias = "list[Mapping[str, Any]]"
OWN_SETS = {"mixed": "prompts.jsonl", "code-editing": "code_editing.jsonl"}
"""Sets that come with the package, by the name to ask for them with."""
_FORMS = (
    'give {"prompt": "..."}, {"messages": [{"role": "user", "content": "..."}]} or '
    '{"turns": ["..."]}, with "id" and "category" where you have them'
)


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt and the workload it belongs to."""

    id: str
    category: str
    messages: tuple[Mapping[str, Any], ...]

    def prompt(self, has_template: bool) -> str | Messages:
        """A chat where the model has a template for it, else the bare text."""
        if has_template:
            return list(self.messages)
        return "\n\n".join(str(message["content"]) for message in self.messages)


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt as the target reads it."""

    item: Item
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """What will be decoded, and what was there."""

    source: str
    tasks: tuple[Task, ...]
    too_long: int
    """Prompts of the source that were left out for their length."""
    total: int

    @property
    def categories(self) -> list[str]:
        """The workloads, in the order of the source."""
        return list(dict.fromkeys(task.item.category for task in self.tasks))


def read_items(path: Path | None) -> list[Item]:
    """The prompts of a JSONL file, one object a line; of one of our own sets, mixed by default.

    A line holds "prompt", "messages", or "turns" as in Spec-Bench, of which the first is taken.
    """
    given = path or Path("mixed")
    own = None if given.exists() else OWN_SETS.get(str(given))
    source = given if own is None else files("draftproof.bench") / own
    try:
        lines = source.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPrompt(f"{path} cannot be read as UTF-8 text: {error}") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise InvalidPrompt(f"{path} holds no prompts; {_FORMS}, one object a line")
    return [_item(line, number, f"{source}, line {number}") for number, line in numbered]


def select(
    items: Sequence[Item],
    source: str,
    encode: Callable[[Item], Iterable[int]],
    max_prompt_tokens: int,
    per_category: int | None,
) -> Selection:
    """Leave out prompts of more than `max_prompt_tokens`, then spread a choice over each workload.

    `per_category` prompts of each are taken at even distances, so that the choice does not depend
    on how a file begins.
    """
    tasks = [Task(item, tuple(encode(item))) for item in items]
    fitting = [task for task in tasks if len(task.ids) <= max_prompt_tokens]
    if not fitting:
        shortest = min(len(task.ids) for task in tasks)
        raise InvalidSetting(
            f"no prompt of {source} has at most {max_prompt_tokens} tokens, the shortest has "
            f"{shortest}; raise --max-prompt-tokens, lower --max-tokens or give other prompts"
        )
    chosen: set[int] = set()
    for category in dict.fromkeys(task.item.category for task in fitting):
        own = [i for i, task in enumerate(fitting) if task.item.category == category]
        count = min(per_category or len(own), len(own))
        chosen.update(own[i * len(own) // count] for i in range(count))
    kept = tuple(task for i, task in enumerate(fitting) if i in chosen)
    return Selection(source, kept, len(tasks) - len(fitting), len(tasks))


def select_for(
    speculator: Speculator,
    items: Sequence[Item],
    source: str,
    max_prompt_tokens: int,
    max_tokens: int,
    per_category: int | None,
) -> Selection:
    """`select` as the target reads prompts, those left out behind which a text has no room."""
    has_template = bool(getattr(speculator.tokenizer, "chat_template", None))
    limit = max_prompt_tokens
    if speculator.target.max_positions is not None:
        # Every text has to have its room, or some would be shorter.
        limit = min(limit, speculator.target.max_positions - max_tokens)
    return select(
        items,
        source,
        lambda item: speculator.encode(item.prompt(has_template)),
        limit,
        per_category,
    )


def _item(line: str, number: int, place: str) -> Item:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidPrompt(f"{place} is no JSON ({error}); {_FORMS}") from error
    if not isinstance(entry, dict):
        raise InvalidPrompt(f"{place} holds a {type(entry).__name__}; {_FORMS}")
    named = entry.get("question_id", entry.get("id", number))
    return Item(str(named), str(entry.get("category", "all")), _messages(entry, place))


def _messages(entry: Mapping[str, Any], place: str) -> tuple[Mapping[str, Any], ...]:
    found = [key for key in ("prompt", "messages", "turns") if key in entry]
    if len(found) != 1:
        raise InvalidPrompt(f"{place} has {' and '.join(found) or 'no prompt'}; {_FORMS}")
    value = entry[found[0]]
    if found[0] == "messages":
        if isinstance(value, list) and value and all(map(_is_message, value)):
            return tuple(value)
    else:
        text = value[0] if found[0] == "turns" and isinstance(value, list) and value else value
        if isinstance(text, str) and text:
            return ({"role": "user", "content": text},)
    raise InvalidPrompt(f"{place} has a {found[0]!r} that is no prompt: {value!r:.60}; {_FORMS}")


def _is_message(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str)
    )
