"""Options that several subcommands share, and how they become library objects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from draftproof.config import (
    DEFAULT_DEPTH,
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    MAX_DEPTH,
    MAX_NODES,
)
from draftproof.errors import InvalidPrompt, InvalidSetting

if TYPE_CHECKING:
    from draftproof import config
    from draftproof.api import Speculator
    from draftproof.config import Kernels
    from draftproof.sampling.grammar import Grammar
    from draftproof.static_tree import StaticTree

Target = Annotated[
    str,
    typer.Option(
        help="The model: a name of `draftproof models`, a folder, a .gguf file or a hub id."
    ),
]
DrafterName = Annotated[
    str,
    typer.Option(
        "--drafter",
        help="What proposes tokens: self-int8, ngram and suffix (or with :FILE), recycling, "
        "lookahead, model:PATH (model-tli:, model-slem: by a method of your choice for another "
        "vocabulary), early-exit:N, hybrid:A,B (look-up A where it is confident, else B) or none.",
        metavar="NAME",
    ),
]
Depth = Annotated[
    str,
    typer.Option(
        help=f"Tokens drafted per round, 0 to {MAX_DEPTH}; auto drafts as deep as pays.",
        metavar="auto|N",
    ),
]
Width = Annotated[
    int,
    typer.Option(
        help=f"Children of a drafted token, 1 (a chain) to {MAX_NODES}, where the drafter can "
        "branch; needs a --depth, as auto chooses the width, too."
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(help=f"Most tokens of one draft, 1 to {MAX_NODES}. Default: all that fit."),
]
MinConfidence = Annotated[
    float,
    typer.Option(
        help="Where a model drafts, go on only behind tokens at whose place it was at least so "
        "sure, 0 to 1; needs a --depth, as auto finds out what pays."
    ),
]
Tree = Annotated[
    str | None,
    typer.Option(
        help="A tree of fixed places instead of depth, width and nodes: children by level, as "
        "4,2,1, or each place, as '[(0,), (1,), (0, 0)]'.",
        metavar="TREE",
    ),
]
VerifierName = Annotated[
    str | None,
    typer.Option(
        "--verifier",
        help="The rule: tokenwise, blockwise, tree, traversal, coupled or point; by default the "
        "best one.",
        metavar="NAME",
    ),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
KernelsName = Annotated[
    str,
    typer.Option(
        "--kernels",
        help="exact: equal texts to the token; fastest: torch's product where it is faster.",
        metavar="NAME",
    ),
]
Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token; 1 samples.")]
Prompts = Annotated[
    Path | None, typer.Option(help="Prompts as JSONL, or our own: mixed (default), code-editing.")
]
MaxPromptTokens = Annotated[int, typer.Option(help="Leave out prompts that are longer.")]
TextTokens = Annotated[int, typer.Option(help="Tokens of every text.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the result.")]

SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        help="Target, drafter, depth, width and nodes as `draftproof tune --output` wrote them; "
        "what is given beside it wins.",
    ),
]

TARGET, DRAFTER, DEPTH = DEFAULT_TARGET, DEFAULT_DRAFTER, str(DEFAULT_DEPTH)
CHECK_DEPTH = "4"
"""An audit needs drafts, and "auto" may find that plain decoding is faster."""


def load_speculator(
    target: str,
    drafter: str,
    depth: str | int,
    verifier: str | None,
    dtype: str,
    device: str,
    kernels: str,
    quiet: bool,
    width: int = 1,
    nodes: int | None = None,
    min_confidence: float = 0.0,
    tree: str | None = None,
) -> Speculator:
    """Load a pair with a spinner on stderr."""
    from draftproof.api import Speculator
    from draftproof.config import EngineSettings
    from draftproof.verification.registry import find

    # Bad settings are told before a model is loaded for them.
    settings = EngineSettings(
        depth=parse_depth(depth),
        width=width,
        nodes=nodes,
        min_confidence=min_confidence,
        tree=parse_tree(tree),
        kernels=cast("Kernels", kernels),
    )
    if verifier is not None:
        find(verifier)
    with status(f"Loading {target} with drafter {drafter}", quiet):
        return Speculator.from_pretrained(
            target, drafter, settings=settings, verifier=verifier, dtype=dtype, device=device
        )


def from_settings(context: typer.Context, path: Path | None, **given: Any) -> dict[str, Any]:
    """`given`, with what a settings file says of the options that were not on the command line."""
    if path is None:
        return given
    from draftproof.tuned import read_tuned

    tuned = read_tuned(path)
    named = {name for name in given if _is_from_command_line(context, name)}
    # Width and nodes were found for the depth beside them, and a tree has its own.
    if _is_from_command_line(context, "tree"):
        named |= {"depth", "width", "nodes"}
    if "depth" in named:
        named |= {"width", "nodes"}
    return {name: given[name] if name in named else getattr(tuned, name) for name in given}


def _is_from_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def parse_depth(text: str | int) -> config.Depth:
    """What --depth says; whether a number is in range is for `EngineSettings` to tell."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise InvalidSetting(f"--depth is {text!r}; give auto, or 0 to {MAX_DEPTH}") from None


def parse_tree(text: str | None) -> StaticTree | None:
    """What --tree says."""
    from draftproof.static_tree import StaticTree

    return None if text is None else StaticTree.parse(text)


@contextmanager
def status(text: str, quiet: bool) -> Iterator[None]:
    """A spinner on stderr while something runs, where somebody can see it."""
    from rich.console import Console
    from rich.markup import escape

    if quiet or not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(escape(text)):
        yield


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt from its argument, `-` for stdin, or a file; exactly one of them."""
    if prompt is not None and prompt_file is not None:
        raise InvalidPrompt("a prompt and --prompt-file were both given; give one of them")
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and prompt_file is None:
        raise InvalidPrompt("no prompt was given; give one, or - for standard input, or a file")
    try:
        return (prompt_file.read_bytes() if prompt_file else sys.stdin.buffer.read()).decode()
    except (OSError, UnicodeDecodeError) as error:
        source = prompt_file or "standard input"
        raise InvalidPrompt(f"{source} cannot be read as UTF-8 text: {error}") from error


def read_grammar(
    json_schema: Path | None, json_object: bool, regex: str | None, choice: list[str]
) -> Grammar | None:
    """The grammar that one of the four options gives; None without any of them."""
    given = {
        "--json-schema": json_schema is not None,
        "--json-object": json_object,
        "--regex": regex is not None,
        "--choice": bool(choice),
    }
    names = [name for name, is_given in given.items() if is_given]
    if not names:
        return None
    if len(names) > 1:
        raise InvalidSetting(f"{names[0]} and {names[1]} were both given; give one of them")
    from draftproof.sampling.grammar import Grammar

    if json_schema is not None:
        try:
            return Grammar.json_schema(json_schema.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSetting(f"{json_schema} cannot be read as UTF-8 text: {error}") from error
    if regex is not None:
        return Grammar.regex(regex)
    return Grammar.choice(choice) if choice else Grammar.json_object()


def chat_or_text(speculator: Speculator, text: str, system: str | None, raw: bool) -> Any:
    """One user message where the model has a chat template, else the text as it is."""
    chats = bool(getattr(speculator.tokenizer, "chat_template", None))
    if raw or not chats:
        if system is not None:
            raise InvalidSetting("--system needs a model with a chat template and no --raw")
        return text
    messages = [{"role": "system", "content": system}] if system is not None else []
    return [*messages, {"role": "user", "content": text}]


def parse_pairs(entries: list[str], option: str, form: str) -> dict[int, float]:
    """WHOLE=NUMBER entries to a mapping; `form` says what `option` expects."""
    pairs = {}
    for entry in entries:
        key, _, value = entry.partition("=")
        try:
            pairs[int(key)] = float(value)
        except ValueError:
            raise InvalidSetting(f"{option} is {entry!r}; give {form}") from None
    return pairs
