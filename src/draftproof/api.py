"""Speculator: a target, a drafter and a rule, behind a few verbs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, overload

from platformdirs import user_cache_path

from draftproof.config import DEFAULT_DRAFTER, Depth, EngineSettings
from draftproof.control.costs import CostBook
from draftproof.core import Step
from draftproof.decode import sequence as decode
from draftproof.drafters.base import Drafter, branches, check_plan, remembers
from draftproof.drafters.none import NoDrafter
from draftproof.drafters.registry import Surroundings, check_spec, make_drafter
from draftproof.engine.engine import Engine
from draftproof.engine.grammars import Grammars
from draftproof.engine.prompt import Prompt, encode, is_batch
from draftproof.engine.request import Drafts, Language, make_sequences, spread
from draftproof.errors import InvalidPrompt, InvalidSetting
from draftproof.models.base import TargetModel
from draftproof.models.load import load
from draftproof.models.vocab import num_tokens
from draftproof.output import Output, Piece, pieces, sample
from draftproof.sampling.params import SamplingParams
from draftproof.static_tree import StaticTree
from draftproof.tuned import read_tuned
from draftproof.verification.base import Verifier
from draftproof.verification.registry import choose, find


class Speculator:
    """Generates exactly what the target would, with the help of a drafter."""

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter,
        *,
        tokenizer: Any = None,
        end_ids: frozenset[int] = frozenset(),
        verifier: str | Verifier | None = None,
        settings: EngineSettings | None = None,
        costs: CostBook | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """`costs` keeps what passes and drafts cost here, for depth "auto"; `grammars` the tokens
        as grammars read them. Each makes its own if none is given."""
        self.target = target
        self.drafter = drafter
        self.tokenizer = tokenizer
        self.verifier = verifier
        self.settings = settings or EngineSettings()
        self.costs = costs or CostBook()
        self.end_ids = end_ids
        self.num_tokens = num_tokens(tokenizer, target.vocab_size)
        if grammars is None and tokenizer is not None:
            grammars = Grammars(tokenizer, self.num_tokens)
        self.grammars = grammars
        check_plan(drafter, self.settings)
        if verifier is not None and not find(verifier).greedy:
            # A pair that can never work is refused here, not in the first request.
            warm = SamplingParams(temperature=1.0)
            choose(drafter.proposals, drafter.name, warm, verifier, self.settings.width)

    @classmethod
    def from_pretrained(
        cls,
        target: Any,
        drafter: str | Drafter = DEFAULT_DRAFTER,
        *,
        tokenizer: Any = None,
        depth: Depth | None = None,
        width: int | None = None,
        nodes: int | None = None,
        min_confidence: float | None = None,
        tree: StaticTree | None = None,
        verifier: str | Verifier | None = None,
        dtype: Any = "auto",
        device: Any = "auto",
        settings: EngineSettings | None = None,
    ) -> Speculator:
        """Load a target and build its drafter.

        target: a name of `draftproof models`, a folder, a .gguf file, a hub id, a loaded model,
        or (model, tokenizer). A loaded model is left as it is; its weights are shared.
        drafter: self-int8, ngram, suffix, either with :FILE, recycling, lookahead, model:PATH,
        early-exit:N, hybrid:A,B, none (docs/drafters.md), or an object of your own.
        depth: tokens drafted per round, or "auto", the default, for as many as pay; what that
        has to know of the machine is measured once and kept in the user's cache.
        width: children of a drafted token, with a fixed depth; 1, the default, drafts chains.
        nodes, min_confidence: most tokens of a draft; how sure a model has to be to draft on.
        tree: a tree of fixed places instead of depth, width and nodes.
        verifier: tokenwise, blockwise, tree, traversal, coupled or point; by default the best for
        each request (`verification/registry.py`); or a rule of your own.
        dtype, device: "auto" is float32 on a CPU, the checkpoint's own type on a GPU.
        """
        from draftproof.models.hf import HFModel

        if verifier is not None:
            find(verifier)  # an unknown name is told before a model is loaded
        if isinstance(drafter, str):
            check_spec(drafter)
        settings = (settings or EngineSettings()).having(
            depth=depth, width=width, nodes=nodes, min_confidence=min_confidence, tree=tree
        )
        by_name = isinstance(target, str) and isinstance(drafter, str)
        loaded = load(target, tokenizer=tokenizer, dtype=dtype, device=device)
        model = HFModel(loaded.model, loaded.name, settings.kernels)
        if isinstance(drafter, str):
            around = Surroundings(model, loaded.tokenizer, dtype, device, settings)
            drafter = make_drafter(drafter, around)
        return cls(
            model,
            drafter,
            tokenizer=loaded.tokenizer,
            end_ids=model.end_ids(loaded.tokenizer),
            verifier=verifier,
            settings=settings,
            costs=CostBook(user_cache_path("draftproof") / "costs.json" if by_name else None),
        )

    @classmethod
    def from_settings(cls, path: str | Path) -> Speculator:
        """The pair and plan that `draftproof tune --output PATH` found."""
        tuned = read_tuned(Path(path))
        return cls.from_pretrained(
            tuned.target, tuned.drafter, depth=tuned.depth, width=tuned.width, nodes=tuned.nodes
        )

    def with_drafter(self, drafter: Drafter, settings: EngineSettings | None = None) -> Speculator:
        """The same target and rules with another drafter, and with other settings if given."""
        return Speculator(
            self.target,
            drafter,
            tokenizer=self.tokenizer,
            end_ids=self.end_ids,
            verifier=self.verifier,
            settings=settings or self.settings,
            costs=self.costs,
            grammars=self.grammars,
        )

    # mypy cannot tell an empty list of ids from an empty list of prompts.
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, params: SamplingParams | None = ...
    ) -> Output: ...
    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = ...,
    ) -> list[Output]: ...
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Output | list[Output]:
        """Generate for one prompt, or for a list of prompts in one decode loop.

        `params` serves all prompts, or is a list with one for each.
        """
        return self._generate(self.drafter, prompt, params)

    @overload
    def plain(  # type: ignore[overload-overlap]
        self, prompt: Prompt, params: SamplingParams | None = ...
    ) -> Output: ...
    @overload
    def plain(
        self,
        prompt: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = ...,
    ) -> list[Output]: ...
    def plain(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Output | list[Output]:
        """The same loop without drafts: the reference that `generate` must equal."""
        return self._generate(NoDrafter(), prompt, params)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        plain: bool = False,
    ) -> Stream:
        """Generate for one prompt, piece by piece; `Stream.output` holds the whole afterwards."""
        (params,) = spread(params, 1)
        if is_batch(prompt):
            raise InvalidPrompt("stream takes one prompt and was given a list; use generate")
        if params.n != 1:
            raise InvalidSetting(f"n is {params.n}; stream one sample, or use generate")
        drafter = NoDrafter() if plain else self.drafter
        ids = encode(prompt, self.tokenizer)
        (sequence,) = self.sequences(drafter, ids, params, first_id=0)
        return Stream(self._engine(drafter), sequence)

    @property
    def width(self) -> int | None:
        """Children of a drafted token; None where depth "auto" settles that round by round."""
        is_open = self.settings.depth == "auto" and branches(self.drafter)
        return None if is_open else self.settings.width

    @property
    def language(self) -> Language:
        """What is known of the target's ids."""
        return Language(self.tokenizer, self.num_tokens, self.end_ids, self.grammars)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids that `prompt` is read as."""
        return encode(prompt, self.tokenizer)

    def _generate(
        self,
        drafter: Drafter,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> Output | list[Output]:
        batch = is_batch(prompt)
        prompts = cast("Sequence[Prompt]", prompt if batch else [prompt])
        groups: list[list[decode.Sequence]] = []
        for one, wanted in zip(prompts, spread(params, len(prompts)), strict=True):
            ids = encode(one, self.tokenizer)
            first = sum(len(group) for group in groups)
            groups.append(self.sequences(drafter, ids, wanted, first_id=first))
        steps: dict[int, list[Step]] = {}
        sequences = [sequence for group in groups for sequence in group]
        for sequence, step in self._engine(drafter).run(sequences):
            steps.setdefault(sequence.seq_id, []).append(step)
        outputs = [_output(group, steps) for group in groups]
        return outputs if batch else outputs[0]

    def _engine(self, drafter: Drafter) -> Engine:
        plain = isinstance(drafter, NoDrafter)
        settings = replace(self.settings, depth=0, tree=None) if plain else self.settings
        return Engine(self.target, drafter, settings, self.costs)

    def sequences(
        self,
        drafter: Drafter,
        ids: Sequence[int],
        params: SamplingParams,
        first_id: int,
    ) -> list[decode.Sequence]:
        """One sequence per sample, numbered from `first_id`, for whoever runs a loop of their own;
        everything about the request is checked here."""
        # Without drafts there is nothing to judge, so any rule is plain decoding.
        verifier = None if isinstance(drafter, NoDrafter) else self.verifier
        drafts = Drafts(drafter.name, drafter.proposals, verifier, self.width, remembers(drafter))
        return make_sequences(ids, params, self.target, self.language, drafts, first_id)


class Stream:
    """Iterates over the pieces of one sequence; can be left at any time."""

    def __init__(self, engine: Engine, sequence: decode.Sequence) -> None:
        self._engine = engine
        self._sequence = sequence
        self._steps: list[Step] = []

    def __iter__(self) -> Iterator[Piece]:
        for _, step in self._engine.run([self._sequence]):
            self._steps.append(step)
            yield from pieces(step)

    @property
    def output(self) -> Output:
        """What has been generated so far; finish reason "length" if the stream was left early."""
        return _output([self._sequence], {self._sequence.seq_id: self._steps})


def _output(group: list[decode.Sequence], steps: dict[int, list[Step]]) -> Output:
    first = group[0]
    samples = tuple(
        sample(
            steps.get(sequence.seq_id, []),
            sequence.finish_reason or "length",
            sequence.stats,
            sequence.params.logprobs is not None,
        )
        for sequence in group
    )
    return Output(tuple(first.tokens[: first.prompt_length]), samples)
