"""The runs that all ids share: each environment's data, model and test results, computed once and kept under OUT/runs."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from metastep import Comparison, Experiment, Method, MethodSpec, Model, Run, Tracker, envs, load_experiment
from metastep.controllers import MetaFQIController
from metastep.evaluation import TuningTable, join
from metastep.experiments import stages
from metastep.experiments.provenance import read_comparison, write_comparison
from metastep.experiments.schema import MethodSection
from metastep.mdp.dataset import Dataset
from paper.environments import ENVIRONMENTS, USUAL, Environment

Scale = Literal["quick", "full", "tiny"]

# Just enough of everything, in the same shapes for all: the tests run every id with this.
_TINY = (
    *("rollout.num_episodes=4", "rollout.horizon=16", "rollout.block_size=8", "meta.num_updates=2"),
    *("collect.num_meta_episodes=16", "fqi.iterations=3", "fqi.regressor.trees=3", "selection.num_tasks=3"),
    *("compare.num_updates=2", "compare.num_tasks=4", "compare.num_tuning_tasks=2", "compare.num_resamples=100"),
)
# The same for a further model, where a preset has one.
_TINY_MODEL = ("collect.num_meta_episodes=16", "collect.labels=2", "fqi.iterations=2", "fqi.regressor.trees=3")


class PresetRun(Run):
    """The run of a preset; its stages report to the tracker of the reproduction.

    Args:
        preset: its name, which is also the environment's.
        path: folder of the run.
        config: the experiment.
        bench: the reproduction that it belongs to.
    """

    def __init__(self, preset: str, path: Path, config: Experiment, bench: "Workbench") -> None:
        super().__init__(path, config)
        self.preset, self.bench = preset, bench
        self.tracker = None if bench.tracker is None else _Named(bench.tracker, path.name)

    @property
    def title(self) -> str:
        """The environment's name in figures and tables."""
        return envs.REGISTRY.entry(self.config.env.name).label

    @property
    def environment(self) -> Environment:
        """How the environment appears in the paper."""
        return ENVIRONMENTS[self.preset]

    def collect(self, **options: Any) -> Dataset:
        return super().collect(**{"tracker": self.tracker} | options)

    def learn(self, model: str = "", **options: Any) -> Model:
        return super().learn(model, **{"tracker": self.tracker} | options)

    def tune(self, spec: MethodSpec, **options: Any) -> tuple[Method, TuningTable]:
        return super().tune(spec, **{"tracker": self.tracker} | options)

    def test(self, methods: Sequence[Method], **options: Any) -> Comparison:
        return super().test(methods, **{"tracker": self.tracker} | options)

    def tested(self, *names: str) -> Comparison:
        """Return methods on the test tasks; one that the configuration does not list is taken as it is registered."""
        listed = [name for name in names if name in self.methods]
        for spec in (self.methods[name] for name in listed if not self.result_file(name).exists()):
            if stages.example_controller(spec).needs_model:
                self.learn(spec.model)
        results = dict(zip(listed, stages.method_results(self, listed, tracker=self.tracker), strict=True))
        return join([results[name] if name in results else self._unlisted(name) for name in names])

    def _unlisted(self, name: str) -> Comparison:
        return self.tuned(stages.method_spec(self.config, MethodSection(name=name)))

    def tuned(self, spec: MethodSpec) -> Comparison:
        """Return a method on the test tasks that the configuration does not list, tuned first where it needs it."""

        def make() -> Comparison:
            if not spec.grid:
                return self.test([self.prepared(spec)])
            method, table = self.tune(spec)
            return self.test([method], tuning=[table])

        return self.kept(f"method-{spec.name}", make)

    def kept(self, name: str, make: Callable[[], Comparison], uses: Sequence[str] = ()) -> Comparison:
        """Return a further comparison, made only if the folder does not hold it; `uses` names "data" or "model"."""
        if not self.extra_file(name).exists():
            write_comparison(self, self.extra_file(name), make(), uses)
        return read_comparison(self, self.extra_file(name))

    def extra_file(self, name: str) -> Path:
        """File of a further comparison."""
        return self.path / "extra" / f"{name}.safetensors"

    def prepared(self, spec: MethodSpec) -> Method:
        """Return a method that has nothing to tune."""
        return stages.prepare_method(self, spec, tracker=self.tracker)

    def with_values(self, method: str, values: Mapping[str, float], name: str) -> Method:
        """Return a method of the configuration with given values, under another name."""
        spec = dataclasses.replace(self.methods[method], name=name, label=name, colour="")
        return spec.method(self.mdp, values)

    def refitted(self, other: Run, name: str, label: str, random_state: int | None = None) -> Method:
        """Return metaFQI refitted on the data of this run with the settings of another one.

        Its iteration is selected on validation tasks, or, with a random state of its own, the last one.
        """
        model = stages.fit_model(other, self.collect(), tracker=self.tracker, random_state=random_state)
        if random_state is None:
            model = stages.select(model, stages.validate(other, model, tracker=self.tracker))
        return Method(name, self.mdp.rule, MetaFQIController(model), label=label)

    def changed(self, section: str, **changes: Any) -> Run:
        """Return a run with other settings in a section, for methods that are refitted on the data of this one."""
        updated = getattr(self.config, section).model_copy(update=changes)
        return Run(self.path, self.config.model_copy(update={section: updated}), self.tasks)


class _Named:
    """A tracker whose stages begin with a name."""

    def __init__(self, tracker: Tracker, name: str) -> None:
        self._tracker, self._name = tracker, name

    def stage(self, name: str, total: float, unit: str) -> Any:
        return self._tracker.stage(f"{self._name}: {name}", total, unit)


@dataclass(frozen=True, eq=False)
class Workbench:
    """Settings of a reproduction."""

    out: Path  # the folder of everything
    scale: Scale  # of the presets
    seed: int  # of everything random
    overrides: tuple[str, ...] = ()  # settings for all presets, like `rollout.block_size=3200`
    tracker: Tracker | None = None  # shows the progress of the stages
    environments: tuple[str, ...] = USUAL  # those that an id is made for

    def config(self, preset: str, changes: Sequence[str] = ()) -> Experiment:
        """Return the preset at the scale, with the overrides and then the changes."""
        last = [*self.overrides, f"seed={self.seed}", *changes]
        if self.scale != "tiny":
            return load_experiment(preset, self.scale, last)
        models = load_experiment(preset, "quick").models
        tiny = [*_TINY, *(f"models.{name}.{change}" for name in models for change in _TINY_MODEL)]
        return load_experiment(preset, "quick", [*tiny, *last])

    def run(self, preset: str, variant: str = "", changes: Sequence[str] = ()) -> PresetRun:
        """Return the run of a preset, or of a variant of it with other settings."""
        path = self.out / "runs" / (f"{preset}-{variant}" if variant else preset)
        return PresetRun(preset, path, self.config(preset, changes), self).prepare_folder()

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Callable[[float], object]]:
        """Show the progress of something that is not a run; yields the function that advances it."""
        if self.tracker is None:
            yield lambda amount: None
        else:
            with self.tracker.stage(name, total, unit) as stage:
                yield stage.advance
