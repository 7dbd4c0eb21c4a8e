"""`draftproof serve`: the model behind OpenAI's routes, for many users at a time."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from draftproof.cli import options
from draftproof.config import EngineSettings, ServerSettings, ServiceSettings
from draftproof.errors import InvalidSetting, MissingExtra

if TYPE_CHECKING:
    import socket

    from draftproof.api import Speculator
    from draftproof.config import Kernels
    from draftproof.drafters.base import Drafter

EXAMPLES = """
Examples:

  draftproof serve

  draftproof serve --target ./qwen-1.5b --drafter model:./qwen-0.5b --drafter suffix

  draftproof serve --settings tuned.json --port 9000 --max-batch 8

  DRAFTPROOF_API_KEYS=secret draftproof serve --host 0.0.0.0
"""

KEYS_VARIABLE = "DRAFTPROOF_API_KEYS"
_ENGINE, _SERVICE, _SERVER = EngineSettings(), ServiceSettings(), ServerSettings()
_LISTENING, _LIMITS = "Listening", "Limits"


def _limit(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=_LIMITS)


def serve(
    context: typer.Context,
    target: options.Target = options.TARGET,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="What proposes tokens; repeatable: requests may name the further ones, too. "
            f"Default: {options.DRAFTER}.",
            metavar="NAME",
        ),
    ] = None,
    depth: options.Depth = options.DEPTH,
    width: options.Width = 1,
    nodes: options.Nodes = None,
    tree: options.Tree = None,
    settings: options.SettingsFile = None,
    verifier: options.VerifierName = None,
    name: Annotated[
        str | None, typer.Option(help="What clients call the model. Default: its own name.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at.", rich_help_panel=_LISTENING)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(help="0 takes a free one.", min=0, max=65535, rich_help_panel=_LISTENING),
    ] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Serve only who shows this key; repeatable. Better in {KEYS_VARIABLE}, parted "
            "by commas, or in a file: a command line can be seen by others.",
            rich_help_panel=_LISTENING,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="Read keys from this file, one a line.", rich_help_panel=_LISTENING),
    ] = None,
    log_prompts: Annotated[
        bool,
        typer.Option(
            "--log-prompts", help="Log prompts and answers, too.", rich_help_panel=_LISTENING
        ),
    ] = False,
    show_text: Annotated[
        bool,
        typer.Option(
            "--show-text",
            help="Show the texts of all requests on the page at /.",
            rich_help_panel=_LISTENING,
        ),
    ] = False,
    drain_seconds: Annotated[
        float,
        typer.Option(
            help="After SIGTERM or Ctrl-C, running requests may go on for so long.",
            rich_help_panel=_LISTENING,
        ),
    ] = _SERVER.drain_seconds,
    max_batch: Annotated[int, _limit("Sequences decoded side by side.")] = _ENGINE.max_batch,
    max_cache_bytes: Annotated[
        int, _limit("Memory of keys and values, of all requests together.")
    ] = _ENGINE.max_cache_bytes,
    max_waiting: Annotated[
        int, _limit("Requests in the queue; one more gets status 429.")
    ] = _SERVICE.max_waiting,
    keep_prefixes: Annotated[
        bool, _limit("Keep read prompts for requests that begin alike, of whichever key.")
    ] = _SERVICE.keep_prefixes,
    max_length: Annotated[
        int | None, _limit("Most tokens of a prompt with its answer. Default: all that fit.")
    ] = None,
    max_samples: Annotated[int, _limit("Largest n of a request.")] = _SERVICE.max_samples,
    max_running: Annotated[
        int, _limit("Requests of one key at a time; one more gets status 429.")
    ] = _SERVER.max_running,
    max_body_bytes: Annotated[int, _limit("Largest body.")] = _SERVER.max_body_bytes,
    max_prompts: Annotated[int, _limit("Prompts of one request.")] = _SERVER.max_prompts,
    max_prompt_tokens: Annotated[
        int | None, _limit("Most tokens of a prompt. Default: all that fit.")
    ] = None,
    max_tokens_limit: Annotated[
        int, _limit("Largest max_tokens of a request.")
    ] = _SERVER.max_tokens_limit,
    max_depth: Annotated[int, _limit("Largest depth a request may fix.")] = _SERVER.max_depth,
    max_stops: Annotated[
        int, _limit("Stop strings and stop ids of a request.")
    ] = _SERVER.max_stops,
    max_seconds: Annotated[
        float, _limit("Time of one request, the queue included.")
    ] = _SERVER.max_seconds,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    kernels: options.KernelsName = "exact",
    quiet: options.Quiet = False,
) -> None:
    """Serve a model over HTTP, as OpenAI does: completions and chats, streamed or whole.

    Speculation is inside and changes no text. Each request becomes one line of JSON on standard
    error, without its text. The first SIGTERM or Ctrl-C lets running requests end, a second one
    does not. Exit code 0, 1 when the service failed by itself, or 2 for bad input.
    """
    _check_extra()
    limits = ServerSettings(
        keys=_keys(api_key or [], api_key_file),
        max_running=max_running,
        max_body_bytes=max_body_bytes,
        max_prompts=max_prompts,
        max_prompt_tokens=max_prompt_tokens,
        max_tokens_limit=max_tokens_limit,
        max_depth=max_depth,
        max_stops=max_stops,
        max_seconds=max_seconds,
        drain_seconds=drain_seconds,
        log_prompts=log_prompts,
    )
    queue = ServiceSettings(
        max_waiting=max_waiting,
        max_length=max_length,
        max_samples=max_samples,
        keep_prefixes=keep_prefixes,
    )
    shape = {"depth": depth, "width": width, "nodes": nodes}
    names = drafter or [options.DRAFTER]
    pair = options.from_settings(context, settings, target=target, drafter=names, **shape)
    engine = EngineSettings(
        depth=options.parse_depth(pair["depth"]),
        width=pair["width"],
        nodes=pair["nodes"],
        tree=options.parse_tree(tree),
        max_batch=max_batch,
        max_cache_bytes=max_cache_bytes,
        kernels=cast("Kernels", kernels),
    )
    names = [pair["drafter"]] if isinstance(pair["drafter"], str) else pair["drafter"]
    target = pair["target"]
    with _bind(host, port, bool(limits.keys)) as bound:
        models = _load(target, names, verifier, dtype, device, engine, quiet)
        run = _Run(*models, name or _short(target), limits, queue, show_text, quiet)
        run.until_told(bound)


@dataclass(frozen=True)
class _Run:
    """Everything that one server is made of."""

    speculator: Speculator
    further: dict[str, Drafter]
    """Drafters that requests may name, beside the speculator's."""
    name: str
    limits: ServerSettings
    queue: ServiceSettings
    show_text: bool
    quiet: bool

    def until_told(self, bound: socket.socket) -> None:
        """Serve until a signal comes and what runs is done."""
        from draftproof.server.app import make_app
        from draftproof.server.lifecycle import Server, address_of
        from draftproof.server.live import Live, Together
        from draftproof.server.log import log_to_stderr
        from draftproof.server.metrics import Metrics
        from draftproof.server.page import routes
        from draftproof.service.service import Service

        metrics, live = Metrics(), Live()
        service = Service(
            self.speculator,
            drafters=self.further,
            settings=self.queue,
            listener=Together(metrics, live),
        )
        page = routes(service, metrics, live, show_text=self.show_text)
        refused = metrics.turned_away
        app = make_app(
            self.speculator, service, self.limits, name=self.name, parts=[page], refused=refused
        )
        log_to_stderr()
        self._say(
            f"{self.name} at {address_of(bound)}/v1, requests and drafts at {address_of(bound)}/"
        )
        server = Server(app, service, self.limits.drain_seconds, self._say)
        server.run([bound])
        if code := server.exit_code():
            raise typer.Exit(code)

    def _say(self, text: str) -> None:
        if not self.quiet:
            typer.echo(text, err=True)


def _check_extra() -> None:
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtra(package.replace("_", "-"), "serve", "draftproof serve") from error


def _keys(given: list[str], path: Path | None) -> frozenset[str]:
    """The keys of all three sources."""
    keys = [*given, *filter(None, os.environ.get(KEYS_VARIABLE, "").split(","))]
    if path is not None:
        try:
            found = path.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSetting(f"{path} cannot be read as UTF-8 text: {error}") from error
        if not found:  # and everybody would be served
            raise InvalidSetting(f"{path} holds no key; write one a line")
        keys += found
    return frozenset(keys)


def _bind(host: str, port: int, has_keys: bool) -> socket.socket:
    """Before a model is loaded: a port that is taken is told at once."""
    from draftproof.server.lifecycle import bind, is_loopback

    bound = bind(host, port)
    if not has_keys and not is_loopback(bound):
        typer.echo(
            f"draftproof: whoever reaches {host} is served; --api-key keeps others out", err=True
        )
    return bound


def _load(
    target: str,
    names: list[str],
    verifier: str | None,
    dtype: str,
    device: str,
    engine: EngineSettings,
    quiet: bool,
) -> tuple[Speculator, dict[str, Drafter]]:
    from draftproof.api import Speculator
    from draftproof.drafters.registry import Surroundings, check_spec, make_drafter
    from draftproof.verification.registry import find

    # Bad names are told before a model is loaded for them.
    for name in names:
        check_spec(name)
    if verifier is not None:
        find(verifier)
    with options.status(f"Loading {target} with drafters {', '.join(names)}", quiet):
        speculator = Speculator.from_pretrained(
            target, names[0], settings=engine, verifier=verifier, dtype=dtype, device=device
        )
        around = Surroundings(speculator.target, speculator.tokenizer, dtype, device, engine)
        return speculator, {name: make_drafter(name, around) for name in names[1:]}


def _short(target: str) -> str:
    """A folder or file is called by its own name; where it lies is nobody's business."""
    path = Path(target)
    return path.resolve().name if path.exists() else target
