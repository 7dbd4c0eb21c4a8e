"""`draftproof generate`: text from a prompt, with what it cost."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
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

  draftproof generate --compare --drafter ngram --prompt-file notes.txt

  cat prompt.txt | draftproof generate - --temperature 0.7 --seed 1 --json

  draftproof generate "Write quicksort" --target ./qwen-1.5b --drafter model:./qwen-0.5b
"""


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt, or - to read standard input.")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    system: Annotated[str | None, typer.Option(help="System message of the chat.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text; no chat template.")
    ] = False,
    target: options.Target = options.TARGET,
    drafter: options.DrafterName = options.DRAFTER,
    depth: options.Depth = options.DEPTH,
    verifier: options.VerifierName = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    min_tokens: Annotated[int, typer.Option(help="No end before this many tokens.")] = 0,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Keep this much probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Keep tokens this likely beside the best.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="1 is none.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="0 is none.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="0 is none.")] = 0.0,
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="ID=VALUE added to a logit; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End at this text; repeatable.")] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(help="End at this id; repeatable.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also decode plainly, and compare text and time.")
    ] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Generate text; drafted tokens that were accepted show green, corrections yellow."""
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
        logit_bias=options.parse_bias(logit_bias or []),
        seed=seed,
        stop=stop or (),
        stop_token_ids=stop_token_id or (),
        ignore_eos=ignore_eos,
    )
    speculator = options.load_speculator(
        target, drafter, depth, verifier, dtype, device, quiet or json_
    )
    message = options.chat_or_text(speculator, text, system, raw)
    if compare:
        params = _prepared_for_comparison(speculator, message, params)
    plain = _decode(speculator, message, params, "plain", json_, compare) if compare else None
    output = _decode(speculator, message, params, "speculative", json_, compare)
    report = _report(speculator, output, plain, params)
    if json_:
        typer.echo(json.dumps(report, ensure_ascii=False))
    elif not quiet:
        from draftproof.cli.show import show_table

        show_table(report, speculator)


def _prepared_for_comparison(
    speculator: Speculator, message: Any, params: SamplingParams
) -> SamplingParams:
    """Warm both paths, and fix a seed so that sampled texts can be compared."""
    warmup = replace(params, max_tokens=min(params.max_tokens, 8), min_tokens=0)
    speculator.plain(message, warmup)
    speculator.generate(message, warmup)
    if params.is_greedy or params.seed is not None:
        return params
    return replace(params, seed=secrets.randbits(32))


def _decode(
    speculator: Speculator,
    message: Any,
    params: SamplingParams,
    how: str,
    silent: bool,
    titled: bool,
) -> Output:
    """Stream to stdout unless silent."""
    stream = speculator.stream(message, params, plain=how == "plain")
    if silent:
        for _ in stream:
            pass
        return stream.output
    from draftproof.cli.show import show_stream

    show_stream(stream, title=f"{how} decoding" if titled else None)
    return stream.output


def _report(
    speculator: Speculator, output: Output, plain: Output | None, params: SamplingParams
) -> dict[str, Any]:
    """The documented JSON object (docs/cli.md)."""
    report: dict[str, Any] = {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "stats": output.stats.as_dict(),
        "plain": None,
        "speedup": None,
        "identical": None,
        "difference": None,
        "seed": params.seed,
    }
    if plain is None:
        return report
    from draftproof.checks.difference import first_difference

    report["plain"] = {
        "text": plain.text,
        "token_ids": list(plain.token_ids),
        "finish_reason": plain.finish_reason,
        "stats": plain.stats.as_dict(),
    }
    mine, theirs = output.stats.tokens_per_second, plain.stats.tokens_per_second
    report["speedup"] = mine / theirs if mine and theirs else None
    report["identical"] = output.token_ids == plain.token_ids
    difference = first_difference(
        speculator.target,
        plain.prompt_token_ids,
        plain.token_ids,
        output.token_ids,
        params,
        speculator.num_tokens,
    )
    if difference is not None:
        report["difference"] = {
            "position": difference.position,
            "plain_token": difference.expected,
            "token": difference.found,
            "gap": difference.gap,
            "near_tie": difference.is_near_tie,
        }
    return report
