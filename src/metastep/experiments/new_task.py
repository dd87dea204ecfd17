"""A policy for a new task: a fitted model steers its learning, update by update; no number is left to tune.

folder/learning.json        what is learned here: the model, the task, the seed
folder/policy.safetensors   the policy after the last update, with all that is needed to run it
folder/curve.csv            return and step of every update
folder/report.html          the same as a figure, with the settings
"""

import dataclasses
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from metastep._core import storage
from metastep._core.errors import InputError, not_registered, shown
from metastep._core.locks import writing
from metastep._core.logs import to_csv
from metastep._core.progress import Silent, Tracker
from metastep._core.provenance import first_difference, versions_of
from metastep._core.registry import require_modules
from metastep._core.storage import claim
from metastep.controllers import MetaFQIController
from metastep.envs.contexts import ContextSpace
from metastep.experiments.build import build_mdp, require_available
from metastep.experiments.config import parse
from metastep.experiments.schema import Experiment
from metastep.fqi import Model
from metastep.mdp import MetaMDP
from metastep.mdp.blocks import Stream
from metastep.mdp.history import History, joined
from metastep.mdp.parts import Growth, Parts, grow, remove_parts
from metastep.policies import ActorCritic
from metastep.report.document import Command, Document, Heading, Paragraph, Table, write_document
from metastep.report.figures import Panel, picture
from metastep.report.style import Ink

_SECONDS_BETWEEN_PARTS = 20.0
POLICY, _CURVE, _MARKER = "policy.safetensors", "curve.csv", "learning.json"


class Learned(NamedTuple):
    """What came of it."""

    folder: Path
    first: float  # mean return before any update
    last: float  # and after the last
    best: float


def parse_task(text: str, space: ContextSpace) -> NDArray[np.float32]:
    """The task of `mass=1.2,length=0.7`; what it does not name is in the middle of its range."""
    middle = {name: 0.5 * (low + high) for name, low, high in zip(space.names, space.low, space.high, strict=True)}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in entry.partition("="))
        if name not in middle:
            raise not_registered("--task", name, space.names, "is not a coordinate of the task")
        try:
            middle[name] = float(value)
        except ValueError:
            raise InputError(f"--task: {shown(entry)} must have the form NAME=NUMBER.") from None
    return space.validate(np.array([[*middle.values()]]), "--task")[0]


def experiment_of(model: Model, family: str = "", *, allow_imports: bool = False) -> Experiment:
    """The experiment that a model was fitted in, which says what its learners are; of several families one is named."""
    configuration = model.record.configuration
    recorded = [*configuration.get("families", {"": configuration.get("experiment")}).values()]
    if not all(isinstance(each, dict) and "env" in each for each in recorded):
        raise InputError(
            "model: its record does not say which experiment it was fitted in, so no learner can be built."
        )
    experiments = {config.env.name: config for config in map(parse, recorded)}
    # Of `module:name` the name will do.
    named = [name for name in experiments if family in (name, name.rpartition(":")[2])]
    named = [*experiments] if not family and len(experiments) == 1 else named
    if len(named) != 1:
        raise not_registered("--family", family, [*experiments], "is not one of the model's")
    config = experiments[named[0]]
    require_modules(config.part_names(), "model", allow_imports=allow_imports)
    return config


def of_one_learner(config: Experiment) -> MetaMDP:
    """An experiment's meta-MDP with blocks of a single learner."""
    mdp: Any = build_mdp(config)
    one: MetaMDP = dataclasses.replace(mdp, block_size=1)
    return one


def learn(
    model: Model,
    task: str,
    folder: Path,
    *,
    family: str = "",
    seed: int = 0,
    num_updates: int | None = None,
    command: str = "",
    tracker: Tracker | None = None,
    allow_imports: bool = False,
) -> Learned:
    """Train a policy on a task of the model's family, or go on where an earlier call was stopped.

    Args:
        model: a fitted model.
        task: as `parse_task` takes it.
        folder: where everything goes; new, empty or of the same call.
        family: of the task, to be named where the model was fitted on several.
        seed: of the first policy and the simulation.
        num_updates: updates to make, as the model is told; None takes as many as its experiment compares methods over.
        command: that was typed, for the report.
        tracker: is told about progress.
        allow_imports: whether modules that the model's record names may be imported.
    """
    config = experiment_of(model, family, allow_imports=allow_imports)
    total = num_updates or config.compare.num_updates
    mdp = of_one_learner(config).with_budget(total)
    context = parse_task(task, mdp.env.context_space)
    require_available(mdp)
    wanted = {
        **storage.stamp("learning"),
        "model": model.fingerprint,
        "family": config.env.name,
        "task": {name: float(str(value)) for name, value in zip(mdp.env.context_space.names, context, strict=True)},
        "seed": seed,
        "num_updates": total,
    }
    marker = claim(folder, _MARKER)
    storage.write_atomically(marker, storage.canonical_json(storage.sealed(wanted)), overwrite=False)
    there = storage.read_sealed(marker, "learning", "use another folder")
    if difference := first_difference({name: there.get(name) for name in wanted}, wanted):
        key, before, now = difference
        raise InputError(f"--out: {folder} was started with {key} = {before}, which is now {now}; use another folder.")
    with writing(folder):
        growth = _grown(mdp, model, context, seed, total, folder, str(there["checksum"]), tracker or Silent())
        history = joined(growth.pieces)
        _write_policy(folder / POLICY, mdp, config, growth, wanted)
        storage.write_atomically(folder / _CURVE, to_csv(_rows(model, history)).encode())
        write_document(_report(model, config, wanted, history, command), folder)
        remove_parts(folder)
    returns = history.mean_return[:, 0].astype(float)
    return Learned(folder, returns[0], returns[-1], float(np.nanmax(returns)))


def _grown(
    mdp: MetaMDP,
    model: Model,
    context: NDArray[np.float32],
    seed: int,
    total: int,
    folder: Path,
    identity: str,
    tracker: Tracker,
) -> Growth:
    """All updates; what a stopped call left is gone on with."""
    tasks = mdp.tasks(seed, Stream.TEST, 0, context[None, :])
    parts = Parts(folder, {**storage.stamp("part"), "learning": identity})
    begun, _ = parts.take_up(0, mdp, tasks)
    written, growth, since = time.monotonic(), begun, begun.updates if begun else 0
    with tracker.stage("learn", total - since, "updates") as stage:
        for growth in grow(
            mdp,
            MetaFQIController(model),
            tasks,
            total,
            stretch=1,
            record=("return_error", "last_divergence"),
            begun=begun,
        ):
            stage.advance(1)
            if time.monotonic() - written > _SECONDS_BETWEEN_PARTS and growth.updates < total:
                parts.write(0, growth, since)
                written, since = time.monotonic(), growth.updates
    assert growth is not None  # there is one update at least
    return growth


def _rows(model: Model, history: History) -> list[list[Any]]:
    """A header, then what was seen before every update and after the last one, and the update that was chosen there."""
    chosen, names = history.hyperparameters[:, 0], model.record.directions
    steps = np.cumsum(history.num_steps[:, 0], dtype=np.float64)
    rows: list[list[Any]] = [
        ["update", "steps", "return", "return_error", "divergence_before", "stepsize", "direction", "flagged"]
    ]
    for index in range(len(history.mean_return)):
        proposal = chosen[index] if index < len(chosen) else None
        rows.append(
            [
                index,
                int(steps[index]),
                float(history.mean_return[index, 0]),
                float(history.features["return_error"][index, 0, 0]),
                float(10.0 ** history.features["last_divergence"][index, 0, 0]) if index else 0.0,
                "" if proposal is None else float(proposal[-1]),
                "" if proposal is None or not names else names[int(proposal[0])],
                int(history.flagged[index, 0]),
            ]
        )
    return rows


def _write_policy(path: Path, mdp: MetaMDP, config: Experiment, growth: Growth, wanted: dict[str, Any]) -> None:
    theta = np.asarray(growth.learners.theta)[0]
    arrays = {"theta": theta}
    if isinstance(mdp.policy, ActorCritic):  # as other frameworks take them
        arrays |= {f"parts/{name}": np.asarray(part) for name, part in mdp.policy.split(jnp.asarray(theta)).items()}
    made = {name: wanted[name] for name in ("model", "task", "seed", "num_updates")}
    metadata = {"experiment": config.to_dict(), "learned": made, "versions": versions_of(())}
    storage.write_tensors(path, arrays, storage.stamp("policy") | metadata)


def _report(model: Model, config: Experiment, wanted: dict[str, Any], history: History, command: str) -> Document:
    returns, steps = history.mean_return[:, 0], history.hyperparameters[:, 0, -1]
    error = history.features["return_error"][:, 0, 0]
    is_linear = all(branch.scale == "linear" for branch in model.record.branches)

    def draw_returns(axes: Axes, ink: Ink) -> None:
        axes.plot(returns, color=ink.text)
        axes.fill_between(range(len(returns)), returns - 1.96 * error, returns + 1.96 * error, color=ink.faint)
        axes.set_xlabel("updates")

    def draw_steps(axes: Axes, ink: Ink) -> None:
        axes.plot(steps, ".", color=ink.text)
        axes.set_yscale("linear" if is_linear else "log")
        axes.set_xlabel("update")

    panels = [Panel("mean return of the batch", draw_returns), Panel("step that was proposed", draw_steps)]
    task = [[name, f"{value:g}"] for name, value in wanted["task"].items()]
    best = int(np.nanargmax(returns)) if np.isfinite(returns).any() else 0
    return Document(
        f"A policy for {config.env.name}",
        f"{wanted['num_updates']} updates, {history.num_steps.sum():.0f} environment steps, seed {wanted['seed']}",
        [
            Heading("Task"),
            Table(("coordinate", "value"), task, (1,)),
            Heading("Learning"),
            Paragraph(
                f"The mean return of a batch went from {returns[0]:.4g} to {returns[-1]:.4g}; the largest, {returns[best]:.4g}, "
                f"was seen after {best} updates. Every step was proposed by the model; nothing was tuned on this task."
            ),
            picture("curve", "Left: with 95 % of the batch's standard error. Right: every update.", [panels]),
            Heading("Made by"),
            Command(command or "metastep.experiments.new_task.learn"),
        ],
    )
