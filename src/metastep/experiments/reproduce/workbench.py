"""What all ids share: each environment's data, model and test results, computed once and kept under OUT/runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from metastep import storage
from metastep.evaluation import Comparison, load, save
from metastep.experiments.config import Experiment, load_preset
from metastep.experiments.folder import RunFolder
from metastep.experiments.stages import collect_data, fit_and_select, join, method_result
from metastep.fqi import Model
from metastep.meta.dataset import Dataset
from metastep.progress import Silent, Stage, Tracker

Scale = Literal["quick", "paper", "tiny"]

TITLES = {
    "nav2d": "Nav2D",
    "minigolf": "Minigolf",
    "cartpole": "CartPole",
    "swingup": "SwingUp",
    "halfcheetah": "HalfCheetah",
}
ENVIRONMENTS = ("nav2d", "minigolf", "cartpole")
"""Those of the paper's figures 2 and 3 that take minutes. SwingUp has a figure of its own."""
WITH_CHEETAH = (*ENVIRONMENTS, "halfcheetah")
"""HalfCheetah takes hours on a few processors: it is made where it is asked for by name."""

# Just enough of everything to go through the motions, in the same shapes for all: the tests run every id with this.
_TINY = (
    "rollout.num_episodes=4",
    "rollout.horizon=16",
    "rollout.block_size=8",
    "meta.num_updates=2",
    "collect.num_meta_episodes=16",
    "fqi.iterations=3",
    "fqi.trees=3",
    "selection.num_tasks=3",
    "compare.num_updates=2",
    "compare.num_tasks=4",
    "compare.num_tuning_tasks=2",
    "compare.num_resamples=100",
)


class _Prefixed(NamedTuple):
    """Says which environment a stage belongs to."""

    tracker: Tracker
    prefix: str

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Stage]:
        with self.tracker.stage(f"{self.prefix}: {name}", total, unit) as stage:
            yield stage


@dataclass(frozen=True, eq=False)
class Workbench:
    """Settings of a reproduction, and the shared stages.

    Args:
        out: the folder of everything.
        scale: of the presets.
        seed: of everything random.
        overrides: settings for all presets, like `rollout.block_size=3200`.
        tracker: is told about the stages.
        environments: those that an id is made for, where it can be made for several.
    """

    out: Path
    scale: Scale
    seed: int
    overrides: tuple[str, ...] = ()
    tracker: Tracker = field(default_factory=Silent)
    environments: tuple[str, ...] = ENVIRONMENTS

    def config(self, env: str, changes: Sequence[str] = ()) -> Experiment:
        """The preset at the scale, with the overrides and then the changes."""
        tiny = _TINY if self.scale == "tiny" else ()
        overrides = [*tiny, *self.overrides, f"seed={self.seed}", *changes]
        return load_preset(env, "quick" if self.scale == "tiny" else self.scale, overrides)

    def folder(self, env: str, variant: str = "", changes: Sequence[str] = ()) -> RunFolder:
        """The run of an environment, or of a variant of it with other settings."""
        name = f"{env}-{variant}" if variant else env
        return RunFolder.create(self.out / "runs" / name, self.config(env, changes))

    def dataset(self, folder: RunFolder) -> Dataset:
        """The training data of a run."""
        dataset = collect_data(folder, tracker=self.watching(folder))
        assert dataset is not None  # nobody else has a share
        return dataset

    def model(self, folder: RunFolder) -> Model:
        """The fitted and selected model of a run."""
        if not (folder.model.exists() and folder.validation.exists()):
            self.dataset(folder)
        return fit_and_select(folder, tracker=self.watching(folder))

    def tested(self, folder: RunFolder, *names: str) -> Comparison:
        """Methods of a run on its test tasks."""
        if "metafqi" in names and not folder.result("metafqi").exists():
            self.model(folder)
        return join([method_result(folder, name, tracker=self.watching(folder)) for name in names])

    def kept(self, folder: RunFolder, name: str, make: Callable[[Tracker], Comparison]) -> Comparison:
        """A further comparison on a run, made only if the folder does not hold it."""
        path = folder.path / "extra" / f"{name}.safetensors"
        if not path.exists():
            storage.create_folder(path.parent)
            save(path, make(self.watching(folder)))
        return load(path)

    def watching(self, folder: RunFolder) -> Tracker:
        """The tracker, told which run it watches."""
        return _Prefixed(self.tracker, folder.path.name)
