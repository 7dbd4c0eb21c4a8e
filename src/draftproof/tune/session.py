"""One tuning from its settings to its result: probe, predict, verify the best few; no terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftproof.api import Speculator
from draftproof.bench.workloads import read_items, select_for
from draftproof.config import EngineSettings, Kernels
from draftproof.drafters.base import fresh
from draftproof.drafters.registry import Surroundings, check_spec, make_drafter
from draftproof.engine.calibrate import measure_costs
from draftproof.errors import InvalidSetting
from draftproof.models.load import load
from draftproof.sampling.params import SamplingParams
from draftproof.stats.counters import Stats
from draftproof.theory.machine import CostCurves
from draftproof.tune.predict import Forecast, Probe, Shape
from draftproof.tuned import Tuned

DRAFTERS = ("self-int8", "ngram", "suffix", "recycling")
PROBE_DEPTH = 8
TREE = (4, 3, 12)
"""Depth, width and nodes of the tree that is tried where a drafter branches."""
_APART = 3
"""Levels between two depths of one drafter that are both verified, at least."""
LEAST_GAIN = 1.03
"""Below this speed-up plain decoding is the better setting."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to tune; checked before anything is loaded."""

    target: str
    drafters: tuple[str, ...] = DRAFTERS
    prompts: Path | None = None
    """JSONL or the name of one of our sets; None for the mixed one."""
    per_category: int | None = 2
    max_prompt_tokens: int = 1024
    max_tokens: int = 64
    temperature: float = 0.0
    best: int = 3
    """Settings that are verified."""
    dtype: str = "auto"
    device: str = "auto"
    kernels: Kernels = "exact"

    def __post_init__(self) -> None:
        SamplingParams(max_tokens=self.max_tokens, temperature=self.temperature)
        for name, least in (("max_tokens", 2), ("best", 1), ("max_prompt_tokens", 1)):
            if getattr(self, name) < least:
                raise InvalidSetting(f"{name} is {getattr(self, name)}; give at least {least}")
        if self.per_category is not None and self.per_category < 1:
            raise InvalidSetting(f"per_category is {self.per_category}; give at least 1")
        for spec in self.drafters:
            check_spec(spec)
            if spec == "none":
                raise InvalidSetting("drafter is 'none', which every other is compared with anyway")
        if not self.drafters or len(set(self.drafters)) < len(self.drafters):
            raise InvalidSetting(f"drafters are {', '.join(self.drafters)}; name some, each once")


@dataclass(frozen=True, slots=True)
class Verified:
    """A forecast and what came of it."""

    forecast: Forecast
    speedup: float
    """Measured: rate of decoding over plain decoding's, all prompts together."""
    identical: int
    """Texts that are plain decoding's, of `total`."""
    total: int


@dataclass(frozen=True, slots=True)
class Result:
    """What came out."""

    target: str
    prompts: int
    curves: dict[str, CostCurves]
    forecasts: tuple[Forecast, ...]
    """Every depth of every drafter."""
    verified: tuple[Verified, ...]
    """The best few, fastest first as measured."""
    best: Tuned


Progress = Callable[[str, int, int], None]


def run_tune(settings: Settings, progress: Progress = lambda _what, _done, _total: None) -> Result:
    """Load, measure, predict and verify; `progress` is told what runs."""
    return _Tuning(settings, progress).run()


class _Tuning:
    def __init__(self, settings: Settings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        progress(f"loading {settings.target}", 0, 0)
        items = read_items(settings.prompts)
        loaded = load(settings.target, dtype=settings.dtype, device=settings.device)
        self._plain = Speculator.from_pretrained(
            (loaded.model, loaded.tokenizer),
            "none",
            settings=EngineSettings(depth=0, kernels=settings.kernels),
        )
        self._tasks = select_for(
            self._plain,
            items,
            str(settings.prompts or "mixed"),
            settings.max_prompt_tokens,
            settings.max_tokens,
            settings.per_category,
        ).tasks
        around = Surroundings(
            self._plain.target,
            loaded.tokenizer,
            settings.dtype,
            settings.device,
            self._plain.settings,
        )
        self._drafters = {spec: make_drafter(spec, around) for spec in settings.drafters}

    def run(self) -> Result:
        curves = {}
        for done, (spec, drafter) in enumerate(self._drafters.items()):
            self._progress(f"costs of {spec}", done, len(self._drafters))
            curves[spec] = measure_costs(self._plain.target, drafter, self._tasks[0].ids, 1)
        shapes = [*self._probes(curves)]
        plain, stats, _ = self._decode(shapes, "probing")
        length = sum(len(task.ids) for task in self._tasks) // len(self._tasks)
        forecasts = [
            forecast
            for shape, own in zip(shapes, stats, strict=True)
            for forecast in Probe(shape, own, plain, curves[shape.drafter], length).forecasts()
        ]
        forecasts.sort(key=lambda forecast: -forecast.speedup)
        verified = self._verify(forecasts)
        return Result(
            target=self._plain.target.name,
            prompts=len(self._tasks),
            curves=curves,
            forecasts=tuple(forecasts),
            verified=tuple(verified),
            best=self._choose(verified),
        )

    def _probes(self, curves: dict[str, CostCurves]) -> Iterator[Shape]:
        for spec in self._drafters:
            yield Shape(spec, PROBE_DEPTH, 1, None)
            if curves[spec].widest > 1:
                yield Shape(spec, *TREE)

    def _verify(self, forecasts: Sequence[Forecast]) -> list[Verified]:
        """Run the best forecasts, no two of one drafter and width alike but for a level or two."""
        chosen: list[Forecast] = []
        for forecast in forecasts:
            shape = forecast.shape
            near = any(
                (one.shape.drafter, one.shape.width) == (shape.drafter, shape.width)
                and abs(one.shape.depth - shape.depth) < _APART
                for one in chosen
            )
            if not near and len(chosen) < self._settings.best:
                chosen.append(forecast)
        plain, stats, identical = self._decode([one.shape for one in chosen], "verifying")
        verified = [
            Verified(
                forecast=forecast,
                speedup=(own.tokens_per_second or 0.0) / (plain.tokens_per_second or 1.0),
                identical=same,
                total=len(self._tasks),
            )
            for forecast, own, same in zip(chosen, stats, identical, strict=True)
        ]
        return sorted(verified, key=lambda one: -one.speedup)

    def _decode(self, shapes: Sequence[Shape], what: str) -> tuple[Stats, list[Stats], list[int]]:
        """Every prompt plainly and by every shape, in turn: counts, and texts equal to plain's."""
        systems = [self._plain, *(self._speculator(shape) for shape in shapes)]
        labels = ["plain", *(shape.label for shape in shapes)]
        totals = [Stats() for _ in systems]
        identical = [0] * len(systems)
        for number, task in enumerate(self._tasks):
            texts: dict[int, tuple[int, ...]] = {}
            order = [(number + i) % len(systems) for i in range(len(systems))]
            for turn, place in enumerate(order):
                done = number * len(systems) + turn
                self._progress(f"{what}: {labels[place]}", done, len(self._tasks) * len(systems))
                if number == 0:  # warms caches and compiled code up
                    systems[place].generate(list(task.ids), SamplingParams(max_tokens=4))
                # What a drafter remembers of this very prompt would be its answer.
                forgetful = systems[place].with_drafter(fresh(systems[place].drafter))
                output = forgetful.generate(list(task.ids), self._params(number))
                texts[place] = output.token_ids
                totals[place].add(output.stats)
            for place, text in texts.items():
                identical[place] += text == texts[0]
        return totals[0], totals[1:], identical[1:]

    def _params(self, number: int) -> SamplingParams:
        settings = self._settings
        return SamplingParams(
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            seed=number,
            ignore_eos=True,
        )

    def _speculator(self, shape: Shape) -> Speculator:
        settings = replace(
            self._plain.settings, depth=shape.depth, width=shape.width, nodes=shape.nodes
        )
        return self._plain.with_drafter(self._drafters[shape.drafter], settings)

    def _choose(self, verified: Sequence[Verified]) -> Tuned:
        best = verified[0]
        if best.speedup < LEAST_GAIN:
            return Tuned(self._settings.target, "none", 0)
        shape = best.forecast.shape
        return Tuned(self._settings.target, shape.drafter, shape.depth, shape.width, shape.nodes)
