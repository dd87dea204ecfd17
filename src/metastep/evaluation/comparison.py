"""The paired comparison: every method on the same tasks, from the same initial policies, with the same simulation keys."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.blocks import Blocks, Stream
from metastep.envs.base import packages_of
from metastep.errors import InputError
from metastep.evaluation.methods import Method, MethodRecord, check_names, record_of, refuse_overlap
from metastep.evaluation.tuning import TuningTable
from metastep.meta.collection import device_name, with_task_list
from metastep.meta.loop import Controller, ControllerState, Episode, run
from metastep.meta.mdp import Learners, MetaMDP, Tasks
from metastep.progress import Silent, Tracker
from metastep.storage import environment_record


@dataclass(frozen=True, eq=False)
class Comparison:
    """Learning curves of several methods on the same tasks; the task is the unit of replication.

    Args:
        methods: who took part, in the order of the first axis of every array.
        context_names: of the columns of `context`.
        context: (tasks, coordinates).
        returns: (methods, tasks, updates + 1), estimated on each batch; the first is before any update.
        hyperparameters: (methods, tasks, updates, coordinates), of each update.
        flagged: (methods, tasks, updates + 1): an estimate that was zero or not finite.
        num_steps: (methods, tasks), environment steps of the batches (a controller's own simulations not counted).
        diagnostics: what controllers report, "method/quantity" -> (tasks, updates).
        tuning: how the tuned values were found.
        settings: everything needed to repeat it.
    """

    methods: tuple[MethodRecord, ...]
    context_names: tuple[str, ...]
    context: NDArray[np.float32]
    returns: NDArray[np.float32]
    hyperparameters: NDArray[np.float32]
    flagged: NDArray[np.bool_]
    num_steps: NDArray[np.float64]
    diagnostics: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    tuning: tuple[TuningTable, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The methods' names."""
        return tuple(method.name for method in self.methods)

    @property
    def num_tasks(self) -> int:
        """Replications."""
        return self.returns.shape[1]

    def index(self, name: str) -> int:
        """Position of a method."""
        if name not in self.names:
            raise InputError(f"method: {name!r} is not in this comparison, allowed are {', '.join(self.names)}.")
        return self.names.index(name)

    def num_flagged(self) -> dict[str, int]:
        """Estimates that could not be followed, by method."""
        return {name: int(count) for name, count in zip(self.names, self.flagged.sum(axis=(1, 2)), strict=True)}

    def num_diverged(self) -> dict[str, int]:
        """Tasks with a return that is not finite, by method."""
        counts = (~np.isfinite(self.returns)).any(axis=2).sum(axis=1)
        return {name: int(count) for name, count in zip(self.names, counts, strict=True)}


class _Watched(NamedTuple):
    """Keeps the last state of a controller, for its report."""

    controller: Controller
    last: list[ControllerState]

    @property
    def name(self) -> str:
        return self.controller.name

    def init(self, mdp: MetaMDP, learners: Learners) -> ControllerState:
        self.last[:] = [self.controller.init(mdp, learners)]
        return self.last[0]

    def propose(self, state: ControllerState, learners: Learners) -> Array:
        return self.controller.propose(state, learners)

    def observe(
        self, state: ControllerState, before: Learners, hyperparameters: Array, after: Learners
    ) -> ControllerState:
        self.last[:] = [self.controller.observe(state, before, hyperparameters, after)]
        return self.last[0]

    def report(self) -> dict[str, NDArray[np.float32]]:
        """What the controller noted, (updates, learners) each; most note nothing."""
        reporter = getattr(self.controller, "report", None)
        return jax.device_get(reporter(self.last[0])) if reporter else {}


def compare(
    methods: Sequence[Method],
    mdp: MetaMDP,
    *,
    seed: int,
    num_updates: int,
    num_tasks: int | None = None,
    contexts: NDArray[np.float32] | None = None,
    stream: Stream = Stream.TEST,
    tuning: Sequence[TuningTable] = (),
    tracker: Tracker | None = None,
) -> Comparison:
    """Run every method on the same tasks with the same initial policies and simulation keys.

    Args:
        methods: each replaces the meta-MDP's rule by its own.
        mdp: everything but the rule.
        seed: of tasks, initial policies and simulations.
        num_updates: T.
        num_tasks: how many tasks of the stream; with `contexts`, their number is the default.
        contexts: an explicit task list (tasks, coordinates) in place of sampled ones; used in turn when there are
            fewer of them than `num_tasks`.
        stream: where tasks and keys come from; a method that was shaped on it is refused.
        tuning: tables to keep with the result.
        tracker: is told the blocks done.
    """
    check_names(methods)
    if contexts is not None:
        contexts = mdp.estimator.rollout.env.context_space.validate(contexts)
        if not len(contexts):
            raise InputError("contexts: the task list is empty.")
        num_tasks = num_tasks or len(contexts)
    if num_tasks is None or num_tasks < 1 or num_updates < 1:
        raise InputError(f"compare: {num_tasks} tasks and {num_updates} updates; both must be at least 1.")
    blocks = Blocks(num_tasks, mdp.block_size)
    tasks = [_tasks(mdp, seed, stream, block, contexts) for block in blocks]
    context = np.concatenate([np.asarray(block.context) for block in tasks])[:num_tasks]
    refuse_overlap(methods, stream, context)
    runs = []
    with (tracker or Silent()).stage(_stage_name(methods, stream), len(methods) * len(blocks), "blocks") as stage:
        for method in methods:
            variant = dataclasses.replace(mdp, rule=method.rule)
            watched = _Watched(method.controller, [])
            parts = []
            for block in blocks:
                episode = run(variant, watched, tasks[block], num_updates).first(blocks.num_valid(block))
                parts.append((episode, watched.report()))
                stage.advance(1)
            runs.append(_joined(parts))
    settings = {
        "seed": seed,
        "stream": stream.name.lower(),
        "num_updates": num_updates,
        "num_tasks": num_tasks,
        "listed_tasks": contexts is not None,
        "mdp": describe(mdp),
        "versions": environment_record(device_name(), packages_of(mdp.estimator.rollout.env)),
    }
    return Comparison(
        methods=tuple(record_of(method) for method in methods),
        context_names=mdp.estimator.rollout.env.context_space.names,
        context=context,
        returns=np.stack([run.returns for run in runs]),
        hyperparameters=np.stack([run.hyperparameters for run in runs]),
        flagged=np.stack([run.flagged for run in runs]),
        num_steps=np.stack([run.num_steps for run in runs]),
        diagnostics={
            f"{method.name}/{name}": array
            for method, run in zip(methods, runs, strict=True)
            for name, array in run.diagnostics.items()
        },
        tuning=tuple(tuning),
        settings=settings,
    )


def _stage_name(methods: Sequence[Method], stream: Stream) -> str:
    """What is under way: who is judged on the test tasks, or that something is chosen on others."""
    if stream is not Stream.TEST:
        return {Stream.VALIDATION: "validate", Stream.TUNING: "tune", Stream.TRAIN: "train"}[stream]
    return f"test {methods[0].name}" if len(methods) == 1 else f"test {len(methods)} methods"


def _tasks(mdp: MetaMDP, seed: int, stream: Stream, block: int, contexts: NDArray[np.float32] | None) -> Tasks:
    tasks = mdp.tasks(seed, stream, block)
    return tasks if contexts is None else with_task_list(tasks, block, contexts)


class _Run(NamedTuple):
    """One method on all tasks; tasks first."""

    returns: NDArray[np.float32]
    hyperparameters: NDArray[np.float32]
    flagged: NDArray[np.bool_]
    num_steps: NDArray[np.float64]
    diagnostics: dict[str, NDArray[np.float32]]


def _joined(parts: list[tuple[Episode, dict[str, NDArray[np.float32]]]]) -> _Run:
    episodes = [episode for episode, _ in parts]
    diagnostics = {
        name: np.concatenate([report[name][:, : len(episode.context)].T for episode, report in parts])
        for name in parts[0][1]
    }
    return _Run(
        returns=np.concatenate([episode.mean_return.T for episode in episodes]),
        hyperparameters=np.concatenate([np.swapaxes(episode.hyperparameters, 0, 1) for episode in episodes]),
        flagged=np.concatenate([episode.flagged.T for episode in episodes]),
        num_steps=np.concatenate([episode.num_steps.sum(axis=0, dtype=np.float64) for episode in episodes]),
        diagnostics=diagnostics,
    )


def describe(value: Any) -> Any:
    """A tree of dataclasses, tuples and numbers as JSON can hold it; a dataclass names its type, a function itself."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A field that does not tell two objects apart decides no number: the threads of a simulator.
        entries = (entry for entry in dataclasses.fields(value) if entry.compare)
        return {"type": type(value).__name__, **{entry.name: describe(getattr(value, entry.name)) for entry in entries}}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, tuple | list):
        return [describe(entry) for entry in value]
    if isinstance(value, dict):
        return {str(name): describe(entry) for name, entry in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | float | None):
        return value
    # Not str(value): it may hold an address, and the same comparison must give the same bytes.
    return getattr(value, "__qualname__", type(value).__name__)
