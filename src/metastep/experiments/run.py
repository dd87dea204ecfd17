"""A run is one experiment in one folder; its configuration, meta-MDP, data and models are read or built once, on first use.

path/config.json              the configuration and the listed training tasks
path/data/                    training data
path/rounds/N.safetensors     models that later rounds of collection follow
path/model.safetensors        the fitted and selected model
path/validation.safetensors   every iteration, or level, of the model on the validation tasks
path/search/, path/levels/    the state of the search of each level, and its best controller as a model
path/results/NAME.safetensors one method on the test tasks
path/comparison.safetensors   all methods on the test tasks
path/report.html              the report
path/models/NAME/             a further model of the experiment: a run within the run
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from metastep import policies
from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Prefixed, Silent, Tracker
from metastep._core.settings import require_modules
from metastep._core.storage import write_lock as write_lock
from metastep.controllers import Controller, Exploration, Exploring, MetaFQIController
from metastep.envs.contexts import load_tasks
from metastep.evaluation import Comparison, Method, MethodSpec, TuningTable, compare, join, tune
from metastep.experiments import config as configs
from metastep.experiments import provenance, reporting, searching, stages
from metastep.experiments.budget import require_affordable
from metastep.experiments.schema import Experiment
from metastep.fqi import save_model
from metastep.mdp import MetaMDP, collection
from metastep.mdp.blocks import Stream
from metastep.mdp.dataset import Dataset, DatasetWriter, all_transitions
from metastep.testing.envs import check_env, declared


class Run:
    """An experiment and the folder of its results; stages write files atomically, so a stopped run can be resumed.

    The constructor accesses no files: `Run.create` creates the folder, `Run.open` opens one. `tasks` are contexts to train on in
    place of the task distribution, (tasks, coordinates).
    """

    def __init__(self, path: Path, config: Experiment, tasks: NDArray[np.float32] | None = None) -> None:
        self.path, self.config, self.tasks = Path(path), config, tasks
        self.data_folder, self.report_file = self.path / "data", self.path / "report.html"
        self.model_file, self.validation_file = self.path / "model.safetensors", self.path / "validation.safetensors"
        self.comparison_file = self.path / "comparison.safetensors"
        self._models: dict[str, Run] = {"": self}

    @classmethod
    def create(cls, path: Path, config: Experiment, tasks: Any = None, *, command: str = "") -> Self:
        """Create the folder, or resume one with the same configuration; record the command for the report."""
        return cls(path, config, tasks).prepare_folder(command)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder of an existing run."""
        file = Path(path) / "config.json"
        if not file.exists():
            raise InputError(f"Folder {path} holds no config.json; `metastep collect` or `metastep run` creates one.")
        record = provenance.read_config(file)
        config = provenance.parsed(f"File {file}", record["experiment"])
        run = cls(path, config, provenance.listed_tasks(file, record["tasks"]))
        run.record = record
        return run

    def prepare_folder(self, command: str = "") -> Self:
        """Create the folder with its config.json; a folder that was started with other settings is an error."""
        tasks = None if self.tasks is None else np.asarray(self.tasks).tolist()
        wanted = storage.stamp("run") | {"experiment": self.config.to_dict(), "tasks": tasks}
        file = storage.open_output_folder(self.path, "config.json")
        # Of several processes that start at the same time, one writes the file; all compare their settings with it.
        storage.write_atomically(file, storage.canonical_json(storage.with_checksum(wanted)), overwrite=False)
        # Parsing fills in settings that are newer than the folder, so that they do not count as a difference.
        filled = provenance.parsed(f"File {file}", self.record["experiment"]).to_dict()
        started = {name: self.record[name] for name in wanted} | {"experiment": filled}
        place, remedy = f"Folder {self.path} was started with", "resume with the same setting or use another folder"
        provenance.require_same(started, wanted, place, "which is now", remedy)
        if command:
            storage.write_atomically(self.path / "command.txt", f"{command}\n".encode(), overwrite=False)
        return self

    def importing(self, allow_imports: bool) -> Self:
        """Import the modules that the configuration names, if that is allowed, and check the listed tasks."""
        require_modules(self.config.part_names(), f"File {self.path / 'config.json'}", allow_imports=allow_imports)
        if self.tasks is not None:
            space = configs.build_env(self.config).context_space
            space.validate(self.tasks, f"File {self.path / 'config.json'}, tasks")
        return self

    def require_buildable(self) -> Self:
        """Raise an error if a meta-MDP, estimator or method of the configuration cannot be built."""
        for model_run in map(self.of_model, ("", *self.config.models)):
            if model_run.config.learner == "search":
                searching.build_search(model_run)
            else:
                configs.build_fqi(model_run.config, model_run.mdp.space)
        assert self.methods is not None
        return self

    def of_model(self, name: str) -> Run:
        """Return the run of a further model, in a subfolder that may not exist yet; "" is this run."""
        if name not in self._models:
            self._models[name] = Run(self.path / "models" / name, configs.variant(self.config, name), self.tasks)
        return self._models[name]

    def write_lock(self) -> AbstractContextManager[None]:
        """Lock the folder, so that no other process writes there."""
        return write_lock(provenance.lock_folder(self.path))

    # Parts of the run, built or read on first use.

    @cached_property
    def record(self) -> dict[str, Any]:
        """The content of config.json."""
        return provenance.read_config(self.path / "config.json")

    @property
    def identity(self) -> str:
        """The checksum of configuration and tasks; the run's files record it."""
        return str(self.record["checksum"])

    @cached_property
    def mdp(self) -> MetaMDP:
        """The meta-MDP."""
        return configs.build_mdp(self.config)

    @cached_property
    def methods(self) -> dict[str, MethodSpec]:
        """The methods of the comparison by name; a method that cannot be built is an error."""
        specs = stages.method_specs(self.config)
        for spec in specs.values():
            model_run = self.of_model(spec.model)
            spec.on(model_run.mdp, spec.first_values)
            level, levels = getattr(stages.example_controller(spec), "level", ""), model_run.config.search.levels
            if level and level not in levels:
                only = f"only {', '.join(levels)}"
                raise InputError(f"compare.methods.{spec.name}: the level {level!r} is not searched, {only}.")
        return specs

    @cached_property
    def models_needed(self) -> tuple[str, ...]:
        """Names of the models that methods of the comparison use; "" is the experiment's main model."""
        names = (spec.model for spec in self.methods.values() if stages.example_controller(spec).needs_model)
        return tuple(dict.fromkeys(names))

    @cached_property
    def dataset(self) -> Dataset:
        """The training data."""
        self._require_fitted_q()
        return provenance.read_dataset(self)

    @cached_property
    def model(self) -> Any:
        """The selected model: a fitted `Model` or a `SearchedModel`."""
        return provenance.read_model(self)

    @cached_property
    def validation(self) -> Comparison:
        """Every iteration of the model on the validation tasks."""
        return provenance.read_comparison(self, self.validation_file)

    @cached_property
    def comparison(self) -> Comparison:
        """The results of all methods on the test tasks."""
        comparison = provenance.read_comparison(self, self.comparison_file)
        if comparison.names != self.config.compare.names:
            raise InputError(f"File {self.comparison_file} compares other methods; remove it to compare again.")
        return comparison

    def _require_fitted_q(self) -> None:
        if self.config.learner == "search":
            raise InputError(f"learner: 'search' collects no training data, so there is none in {self.path}.")

    def require_searched(self) -> list[str]:
        """Return the names of the models that are searched; raise if there is none."""
        if searched := [name for name in self.models_needed if self.of_model(name).config.learner == "search"]:
            return searched
        raise InputError(f'search: no method of {self.path} follows a model with `learner = "search"`.')

    def command(self) -> str:
        """Return the command that created the folder; empty if it is not recorded."""
        try:
            return storage.read_bytes(self.path / "command.txt").decode("utf-8").strip()
        except (InputError, UnicodeDecodeError):
            return ""

    # Stages; each skips or continues work that an earlier call did.

    def collect(self, *, tracker: Tracker | None = None) -> Dataset:
        """Collect the training data, or what is missing of it."""
        config, mdp, settings = self.config, self.mdp, self.config.collect
        self._require_fitted_q()
        with suppress(InputError):  # incomplete data are completed below, and damaged data reported
            # The data may hold more features than the model observes.
            if set(collection.recorded_features(mdp)) <= set(self.dataset.layout.features):
                return self.dataset
        timed = stages.Timed(self.path, tracker)
        with self.write_lock():
            self.dataset = collection.collect(
                dataclasses.replace(mdp, block_size=settings.block_size or mdp.block_size),
                self.data_folder,
                num_episodes=configs.learners_collected(config),
                labels=settings.labels,
                rounds=settings.rounds,
                controller_of_round=None if settings.rounds == 1 else partial(self._controller_of_round, timed),
                num_updates=configs.updates_collected(config),
                seed=config.seed,
                config=provenance.recorded_with_data(self),
                task_list=self.tasks,
                tracker=timed,
            )
        return self.dataset

    def _controller_of_round(self, tracker: Tracker, writer: DatasetWriter, index: int) -> Controller:
        """Return the controller of a round: random exploration, then the model fitted on all earlier rounds."""
        if index == 0:
            return Exploration()
        config, path = self.config, self.round_file(index)
        blocks = range(index * len(writer.layout.blocks) // config.collect.rounds)
        fingerprint = storage.sha256_of_json([storage.sha256_of(writer.path(block)) for block in blocks])
        if path.exists():
            model = provenance.read_round_model(self, index, fingerprint)
        else:
            histories = (writer.layout.read(writer.folder, block) for block in blocks)
            transitions = all_transitions(histories, config.meta.observation)
            model = stages.fit_on(self, transitions, fingerprint, tracker=tracker)
            model = stages.select(model, stages.validate(self, model, tracker=tracker)).only_selected()
            storage.create_folder(path.parent)
            save_model(model, path)
        return Exploring(MetaFQIController(model), config.collect.exploration, config.collect.near)

    def learn(self, model: str = "", *, tracker: Tracker | None = None) -> Any:
        """Learn one of the experiment's models: collect, fit and select, or search; continue where an earlier call stopped."""
        model_run = self.of_model(model)
        if model:
            model_run.prepare_folder()
            tracker = Prefixed(tracker or Silent(), model)
        if model_run.config.learner == "search":
            searching.search_and_select(model_run, stages.Timed(model_run.path, tracker))
            return stages.read_fitted(model_run)[0]
        if not (model_run.model_file.exists() and model_run.validation_file.exists()):
            model_run.collect(tracker=tracker)
        return stages.fit_and_select(model_run, tracker=tracker)

    def compare(self, *, tracker: Tracker | None = None) -> Comparison:
        """Tune the baselines and run every method on the test tasks; write each result as soon as it is complete."""
        if not self.comparison_file.exists():
            names = self.config.compare.names
            with self.write_lock():
                comparison = join(stages.method_results(self, names, tracker=tracker))
                uses = [f"results/{name}" for name in names]
                self.comparison = provenance.write_comparison(self, self.comparison_file, comparison, uses)
        return self.comparison

    def run_all(self, *, tracker: Tracker | None = None) -> Path:
        """Run every stage and write the report; return the path of its page."""
        with self.write_lock():
            for model in self.models_needed:
                self.learn(model, tracker=tracker)
            self.compare(tracker=tracker)
            return self.report()

    def report(self) -> Path:
        """Write the report; return the path of its page."""
        return reporting.write_report(self)

    def tune(self, spec: MethodSpec, **changed: Any) -> tuple[Method, TuningTable]:
        """Tune a method on the tuning tasks; keyword arguments replace those that the run passes to `tune`."""
        settings = self.config.compare
        options = self._options(num_tasks=settings.num_tuning_tasks, shared_noise=settings.shared_noise)
        return tune(spec, self.of_model(spec.model).mdp, **options | changed)

    def test(self, methods: Sequence[Method], **changed: Any) -> Comparison:
        """Run methods on the test tasks, without writing; keyword arguments replace those that the run passes to `compare`."""
        return compare(methods, self.mdp, **self._options(num_tasks=self.config.compare.num_tasks) | changed)

    def validate(self, methods: Sequence[Method], **changed: Any) -> Comparison:
        """Run methods on the validation tasks, as `test` does on the test tasks."""
        return self.test(methods, num_tasks=self.config.selection.num_tasks, stream=Stream.VALIDATION, **changed)

    def _options(self, **own: Any) -> dict[str, Any]:
        """Return the arguments that tuning, validation and test have in common, and those of one of them."""
        settings = self.config.compare
        shared = {"num_updates": settings.num_updates, "blocks_together": settings.blocks_together}
        return {"seed": self.config.seed} | shared | own

    def result_file(self, method: str) -> Path:
        """Return the file of one method's results on the test tasks, with its grid search."""
        return self.path / "results" / f"{method}.safetensors"

    def round_file(self, index: int) -> Path:
        """Return the file of the model that a later round of collection uses."""
        return self.path / "rounds" / f"{index}.safetensors"


def run(source: str | Path, out: str | Path, *, tracker: Tracker | None = None, **settings: Any) -> Run:
    """Run the experiment of a preset or .toml file in a folder, or resume it, as `metastep run` does.

    Settings are those of `start_run`, such as `scale="full"`, `seed=1` or `overrides=["fqi.regressor.trees=20"]`.
    """
    started = start_run(source, settings.pop("scale", None), Path(out), **settings)
    started.run_all(tracker=tracker)
    return started


def start_run(
    source: str | Path,
    scale: configs.Scale | None,
    out: Path,
    *,
    command: str = "",
    seed: int | None = None,
    overrides: Sequence[str] | None = None,
    tasks: Path | None = None,
    data: Path | None = None,
    anyway: bool = False,
    stage: str = "",
) -> Run:
    """Create or resume a run; an experiment that cannot run is an error before a folder is created.

    `command` is for the report, `tasks` a file of contexts to train on, `data` another run to copy the training data from,
    `stage` the first stage to run, by the name of its command. `anyway` allows experiments of many days.
    """
    config = configs.load(source, scale, [*(overrides or ()), *([f"seed={seed}"] if seed is not None else [])])
    env = configs.build_env(config)
    if ":" in config.env.name:  # a user's environment, which may break the contract, fail later or give wrong numbers
        declared(env)  # the policy is built from it
        policy = policies.build(config.policy.name, config.policy.options, env)
        check_env(env, horizon=min(config.rollout.horizon, 50), sigma=getattr(policy, "sigma", 1.0), thorough=False)
    new = Run(out, config, None if tasks is None else load_tasks(tasks, env.context_space)).require_buildable()
    if stage == "collect" or data is not None:
        new._require_fitted_q()
    if stage == "search":
        new.require_searched()
    configs.require_available(new.mdp)
    require_affordable(new, anyway=anyway)
    dataset = None if data is None else provenance.find_data(data, new)
    new.prepare_folder(command)
    if dataset is not None:
        with new.write_lock(), stages.Timed(new.path, None).stage("copy", 1, "datasets"):
            provenance.copy_data(dataset, new)
    return new
