"""`draftproof generate`: text from a prompt, with what it cost."""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import options

if TYPE_CHECKING:
    from draftproof.api import Speculator
    from draftproof.output import Output
    from draftproof.sampling.params import SamplingParams

EXAMPLES = """
Examples:

  draftproof generate "Why is the sky blue?"

  draftproof generate --compare --prompt-file notes.txt --drafter ngram

  cat notes.txt | draftproof generate - --temperature 0.7 --seed 1 --json

  draftproof generate "Hi" --target ./qwen-1.5b --drafter model:./qwen-0.5b
"""


def generate(
    context: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; - reads it from standard input.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="Read the prompt from this file.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message of the chat.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text; no chat template.")
    ] = False,
    target: options.Target = options.TARGET,
    drafter: options.DrafterName = options.DRAFTER,
    depth: options.Depth = options.DEPTH,
    width: options.Width = 1,
    nodes: options.Nodes = None,
    min_confidence: options.MinConfidence = 0.0,
    tree: options.Tree = None,
    settings: options.SettingsFile = None,
    verifier: options.VerifierName = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    min_tokens: Annotated[int, typer.Option(help="No end before this many tokens.")] = 0,
    temperature: options.Temperature = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens that hold this probability.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Keep tokens at least this likely relative to the best.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Weakens tokens seen before; 1 is none.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted once from tokens in the output; 0 is none.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Subtracted once per occurrence in the output; 0 is none.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="ID=VALUE added to a logit; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; repeatable.")
    ] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(help="End with this token id; repeatable.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")
    ] = False,
    json_schema: Annotated[
        Path | None, typer.Option(help="JSON that fits the schema in this file.")
    ] = None,
    json_object: Annotated[bool, typer.Option("--json-object", help="Any JSON object.")] = False,
    regex: Annotated[str | None, typer.Option(help="Text that matches as a whole.")] = None,
    choice: Annotated[
        list[str] | None, typer.Option(help="This text, or another --choice; repeatable.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also decode plainly, and compare text and time.")
    ] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    kernels: options.KernelsName = "exact",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Generate text from a prompt.

    The text goes to standard output, what it cost to standard error.
    On a terminal, drafted tokens that were accepted are green, corrections
    yellow and bonus tokens cyan.
    """
    from draftproof.sampling.params import SamplingParams

    text = options.read_prompt(prompt, prompt_file)
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=options.parse_pairs(logit_bias or [], "--logit-bias", "ID=VALUE, as 42=-5"),
        seed=seed,
        stop=stop or (),
        stop_token_ids=stop_token_id or (),
        ignore_eos=ignore_eos,
        grammar=options.read_grammar(json_schema, json_object, regex, choice or []),
    )
    silent = quiet or json_
    shape = {"depth": depth, "width": width, "nodes": nodes}
    pair = options.from_settings(context, settings, target=target, drafter=drafter, **shape)
    speculator = options.load_speculator(
        **pair,
        min_confidence=min_confidence,
        tree=tree,
        verifier=verifier,
        dtype=dtype,
        device=device,
        kernels=kernels,
        quiet=silent,
    )
    message = options.chat_or_text(speculator, text, system, raw)
    run = _Run(speculator, message, params, json_, silent)
    run.show(run.compared() if compare else run.alone())


@dataclass(frozen=True)
class _Run:
    """One request, decoded with drafts and, for a comparison, without."""

    speculator: Speculator
    message: Any
    params: SamplingParams
    as_json: bool
    """No text on standard output."""
    silent: bool
    """Nothing on standard error."""

    def alone(self) -> dict[str, Any]:
        return self._report(self._decode(), None)

    def compared(self) -> dict[str, Any]:
        run = self._with_seed()
        run._warm_up()
        plain = run._decode(plain=True)
        return run._report(run._decode(title="speculative decoding"), plain)

    def show(self, report: dict[str, Any]) -> None:
        """The report as one JSON object, or as a table where it is not to be quiet."""
        if self.as_json:
            typer.echo(json.dumps(report, ensure_ascii=False, allow_nan=False))
        elif not self.silent:
            from draftproof.cli.show import show_table

            show_table(report, self.speculator.target.name, self.speculator.drafter.name)

    def _with_seed(self) -> _Run:
        """Sampled texts can be compared where both draw with the same seed."""
        if self.params.is_greedy or self.params.seed is not None:
            return self
        return replace(self, params=replace(self.params, seed=secrets.randbits(32)))

    def _warm_up(self) -> None:
        short = replace(self.params, max_tokens=min(self.params.max_tokens, 8), min_tokens=0)
        with options.status("Warming up", self.silent):
            self.speculator.plain(self.message, short)
            self.speculator.generate(self.message, short)

    def _decode(self, plain: bool = False, title: str | None = None) -> Output:
        """Stream one text; the plain one is only shown to somebody who watches."""
        stream = self.speculator.stream(self.message, self.params, plain=plain)
        watched = sys.stdout.isatty() and not self.silent
        if self.as_json or (plain and not watched):
            with options.status("Decoding plainly" if plain else "Decoding", self.silent):
                for _ in stream:
                    pass
            return stream.output
        from draftproof.cli.show import show_stream

        show_stream(stream, ("plain decoding" if plain else title) if watched else None)
        return stream.output

    def _report(self, output: Output, plain: Output | None) -> dict[str, Any]:
        """The JSON object that docs/cli.md describes."""
        report = _text(output) | dict.fromkeys(("plain", "speedup", "identical", "difference"))
        report["seed"] = self.params.seed
        if plain is None:
            return report
        mine, theirs = output.stats.tokens_per_second, plain.stats.tokens_per_second
        report["plain"] = _text(plain)
        report["speedup"] = mine / theirs if mine and theirs else None
        if not self._keeps_texts():
            return report
        from draftproof.checks.difference import first_difference

        report["identical"] = output.token_ids == plain.token_ids
        difference = first_difference(
            self.speculator.target,
            plain.prompt_token_ids,
            plain.token_ids,
            output.token_ids,
            self.params,
            self.speculator.num_tokens,
            self.speculator.language.matcher(self.params),
        )
        report["difference"] = None if difference is None else difference.as_dict()
        return report

    def _keeps_texts(self) -> bool:
        """Whether the rule gives plain decoding's own text, and not only its distribution."""
        from draftproof.verification.registry import choose

        drafter = self.speculator.drafter
        pairing = choose(drafter.proposals, drafter.name, self.params, self.speculator.verifier)
        return pairing.verifier.keyed or drafter.name == "none"


def _text(output: Output) -> dict[str, Any]:
    return {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "stats": output.stats.as_dict(),
    }
