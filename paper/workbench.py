"""What all ids share: each environment's data, model and test results, computed once and kept under OUT/runs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from metastep import envs
from metastep._core.progress import Named, Silent, Tracker
from metastep.controllers import MetaFQIController
from metastep.evaluation import Comparison, Method, join
from metastep.experiments.build import build_mdp, method_spec, some_controller, unlisted_spec
from metastep.experiments.config import Experiment
from metastep.experiments.config import load as load_config
from metastep.experiments.provenance import read_comparison as kept
from metastep.experiments.provenance import write_comparison as keep
from metastep.experiments.run import Run as RunFolder
from metastep.experiments.stages import collect as collect_data
from metastep.experiments.stages import learn, method_results, on_test_tasks
from metastep.experiments.stages import prepare_method as prepared
from metastep.experiments.stages import tune_method as tuned
from metastep.fqi import Model
from metastep.mdp.dataset import Dataset
from paper.environments import ENVIRONMENTS, USUAL, Environment

Scale = Literal["quick", "full", "tiny"]

# Just enough of everything to go through the motions, in the same shapes for all: the tests run every id with this.
_TINY = (
    "rollout.num_episodes=4",
    "rollout.horizon=16",
    "rollout.block_size=8",
    "meta.num_updates=2",
    "collect.num_meta_episodes=16",
    "fqi.iterations=3",
    "fqi.regressor.trees=3",
    "selection.num_tasks=3",
    "compare.num_updates=2",
    "compare.num_tasks=4",
    "compare.num_tuning_tasks=2",
    "compare.num_resamples=100",
)
# The same for a further model, where a preset has one.
_TINY_MODEL = ("collect.num_meta_episodes=16", "collect.labels=2", "fqi.iterations=2", "fqi.regressor.trees=3")


@dataclass(frozen=True, eq=False)
class Run:
    """The run of a preset and its stages."""

    preset: str  # its name, which is also the environment's
    folder: RunFolder  # where everything is kept
    tracker: Tracker  # is told about the stages

    @property
    def config(self) -> Experiment:
        """The experiment."""
        return self.folder.config

    @property
    def title(self) -> str:
        """The environment's name in figures and tables."""
        return envs.REGISTRY.entry(self.config.env.name).label

    @property
    def environment(self) -> Environment:
        """How the environment appears in the paper."""
        return ENVIRONMENTS[self.preset]

    def dataset(self) -> Dataset:
        """The training data."""
        return collect_data(self.folder, tracker=self.tracker)

    def model(self) -> Model:
        """The fitted and selected model."""
        return learn(self.folder, tracker=self.tracker)

    def tested(self, *names: str) -> Comparison:
        """Methods on the test tasks; one that the configuration does not list is taken as it is registered."""
        listed = [name for name in names if self.config.compare.method(name) is not None]
        for name in listed:
            spec = method_spec(self.config, name)
            if some_controller(spec).needs_model and not self.folder.result_file(name).exists():
                learn(self.folder, spec.model, tracker=self.tracker)
        results = dict(zip(listed, method_results(self.folder, listed, tracker=self.tracker), strict=True))
        return join([results[name] if name in results else self._unlisted(name) for name in names])

    def _unlisted(self, name: str) -> Comparison:
        spec = unlisted_spec(self.config, name)

        def make() -> Comparison:
            if not spec.grid:
                return on_test_tasks(
                    self.folder, [prepared(self.folder, spec, tracker=self.tracker)], tracker=self.tracker
                )
            method, table = tuned(self.folder, spec, tracker=self.tracker)
            return on_test_tasks(self.folder, [method], tuning=[table], tracker=self.tracker)

        return self.kept(f"method-{name}", make)

    def kept(self, name: str, make: Callable[[], Comparison], uses: Sequence[str] = ()) -> Comparison:
        """A further comparison, made only if the folder does not hold it; `uses` is what it followed, "data" or "model"."""
        path = self._extra(name)
        if not path.exists():
            keep(self.folder, path, make(), uses)
        return kept(self.folder, path)

    def holds(self, name: str) -> bool:
        """Whether such a comparison is there."""
        return self._extra(name).exists()

    def _extra(self, name: str) -> Path:
        return self.folder.path / "extra" / f"{name}.safetensors"

    def with_values(self, method: str, values: Mapping[str, float], name: str) -> Method:
        """A method of the configuration with values that nobody tuned, under another name."""
        spec = dataclasses.replace(method_spec(self.config, method), name=name, label=name, colour="")
        return spec.method(build_mdp(self.config), values)

    def following(self, model: Model, name: str, label: str) -> Method:
        """MetaFQI with a model of its own."""
        return Method(name, build_mdp(self.config).rule, MetaFQIController(model), label=label)


@dataclass(frozen=True, eq=False)
class Workbench:
    """Settings of a reproduction."""

    out: Path  # the folder of everything
    scale: Scale  # of the presets
    seed: int  # of everything random
    overrides: tuple[str, ...] = ()  # settings for all presets, like `rollout.block_size=3200`
    tracker: Tracker = field(default_factory=Silent)  # is told about the stages
    environments: tuple[str, ...] = USUAL  # those that an id is made for
    jobs: int = 1  # processes that may work side by side

    def config(self, preset: str, changes: Sequence[str] = ()) -> Experiment:
        """The preset at the scale, with the overrides and then the changes."""
        if self.scale != "tiny":
            return load_config(preset, self.scale, [*self.overrides, f"seed={self.seed}", *changes])
        models = load_config(preset, "quick").models
        tiny = [*_TINY, *(f"models.{name}.{change}" for name in models for change in _TINY_MODEL)]
        return load_config(preset, "quick", [*tiny, *self.overrides, f"seed={self.seed}", *changes])

    def run(self, preset: str, variant: str = "", changes: Sequence[str] = ()) -> Run:
        """The run of a preset, or of a variant of it with other settings."""
        path = self.out / "runs" / (f"{preset}-{variant}" if variant else preset)
        folder = RunFolder.create(path, self.config(preset, changes))
        return Run(preset, folder, Named(self.tracker, f"{path.name}:"))
