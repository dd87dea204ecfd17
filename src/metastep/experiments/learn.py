"""Train a policy for a new task with updates chosen by a model, without tuning, and evaluate it on fresh episodes.

A folder holds learning.json (model, task and seed), policy.safetensors, curve.csv and report.html.
"""

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from pydantic import TypeAdapter

from metastep._core import storage
from metastep._core.errors import InputError, not_registered, shown
from metastep._core.logs import to_csv
from metastep._core.progress import Silent, Tracker
from metastep._core.provenance import environment_record
from metastep._core.settings import require_modules
from metastep.controllers import controller_of
from metastep.envs.contexts import ContextSpace
from metastep.experiments.config import build_mdp, list_presets, load, parse, require_available
from metastep.experiments.provenance import require_same
from metastep.experiments.schema import Experiment
from metastep.fqi import Model
from metastep.fqi.base import AnyModel
from metastep.mdp import ActorCriticMDP, EpisodicMetaMDP, MetaMDP, Tasks
from metastep.mdp.blocks import Purpose, Stream, block_key, purpose_key
from metastep.mdp.history import History, concatenate
from metastep.mdp.loop import Checkpoints, run_segments
from metastep.policies import ActorCritic
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Table, write_document
from metastep.report.figures import FAINT, TEXT, Line, Panel, curves, in_rows, picture
from metastep.rules.actor_critic import PPO, Sampler
from metastep.rules.actor_critic.sampler import in_first_episode
from metastep.rules.spaces import HyperparameterSpace, MenuSpace, Space
from metastep.search import SearchedModel
from metastep.search.controller import space_in
from metastep.simulation.engine import compiled_for

_SECONDS_BETWEEN_CHECKPOINTS = 20.0
_POLICY, _MARKER = "policy.safetensors", "learning.json"


def learn(
    model: Model | SearchedModel,
    task: str,
    folder: Path,
    *,
    family: str = "",
    seed: int = 0,
    num_updates: int | None = None,
    command: str = "",
    tracker: Tracker | None = None,
    allow_imports: bool = False,
) -> tuple[float, float]:
    """Train a policy on a task of the model's family, or continue where an earlier call stopped.

    For a model of many families, `family` is a preset or a TOML file, whose environment and training loop are used. The default
    number of updates is that of the experiment's comparison. Return the mean returns before the first update and after the last.
    """
    config = experiment_of(model, family, allow_imports=allow_imports)
    total = num_updates or config.compare.num_updates
    mdp = dataclasses.replace(build_mdp(config), block_size=1).with_budget(total)
    if isinstance(model, SearchedModel):  # a preset's own space is that of the rate
        mdp = with_choices(mdp, space_in(model, mdp))
    context = parse_task(task, space := mdp.env.context_space)
    require_available(mdp)
    values = {name: float(str(value)) for name, value in zip(space.names, context, strict=True)}
    learned = {"model": model.fingerprint, "task": values, "seed": seed, "num_updates": total}
    wanted = storage.stamp("learning") | learned | {"family": config.env.name}
    marker = storage.open_output_folder(folder, _MARKER)
    storage.write_atomically(marker, storage.canonical_json(storage.with_checksum(wanted)), overwrite=False)
    started = storage.read_checked_json(marker, "learning", "use another folder")
    recorded = {name: started.get(name) for name in wanted}
    require_same(recorded, wanted, f"--out: {folder} was started with", "which is now", "use another folder")
    with storage.write_lock(folder):
        checkpoints = Checkpoints(folder, {**storage.stamp("part"), "learning": str(started["checksum"])})
        tasks = mdp.tasks(seed, Stream.TEST, 0, context[None, :])
        checkpoint, _ = checkpoints.load(0, mdp, tasks)
        written, controller = time.monotonic(), controller_of(model)
        options: Any = {"record": ("return_error", "last_divergence"), "checkpoint": checkpoint}
        remaining = total - (checkpoint.updates if checkpoint else 0)
        with (tracker or Silent()).stage("learn", remaining, "updates") as stage:
            for checkpoint in run_segments(mdp, controller, tasks, total, updates_per_segment=1, **options):
                stage.advance(1)
                if time.monotonic() - written > _SECONDS_BETWEEN_CHECKPOINTS and checkpoint.updates < total:
                    checkpoints.write(0, checkpoint)
                    written = time.monotonic()
        assert checkpoint is not None  # there is at least one update
        theta = np.asarray(checkpoint.learners.theta)[0]
        parts_of = mdp.policy.split(jnp.asarray(theta)) if isinstance(mdp.policy, ActorCritic) else {}
        arrays = {"theta": theta} | {f"parts/{name}": np.asarray(part) for name, part in parts_of.items()}
        metadata = {"experiment": config.to_dict(), "learned": learned, "versions": environment_record()}
        storage.write_tensors(folder / _POLICY, arrays, storage.stamp("policy") | metadata)
        history = concatenate(checkpoint.histories)
        _write_results(folder, mdp.space, wanted, history, command)
        checkpoints.remove()
    return float(history.mean_return[0, 0]), float(history.mean_return[-1, 0])


def evaluate(
    path: Path, *, task: str | None = None, episodes: int = 100, seed: int = 1, allow_imports: bool = False
) -> tuple[dict[str, float], float, float]:
    """Simulate fresh episodes of a policy that `learn` wrote, on its own task or another task of the family.

    Return the task, the mean return and its standard error; the return is discounted unless the policy has a critic.
    """
    folder, path = path, path / _POLICY if path.is_dir() else path
    arrays, metadata = storage.read_tensors(path)
    storage.require_stamp(metadata, "policy", path, "learn it again")
    try:
        learned, recorded, theta = dict(metadata["learned"]), metadata["experiment"], arrays["theta"]
        learned_task = TypeAdapter(dict[str, float]).validate_python(learned["task"])
    except (KeyError, TypeError, ValueError):  # including pydantic's errors
        raise InputError(f"File {path} does not hold what this version keeps.") from None
    if folder != path and (folder / _MARKER).exists():
        marker = storage.read_checked_json(folder / _MARKER, "learning", "learn it again")
        expected = {name: marker.get(name) for name in learned}
        require_same(learned, expected, f"File {path} was learned with", "but in this folder it is", "learn it again")
    config = parse(recorded)
    require_modules(config.part_names(), f"File {path}", allow_imports=allow_imports)
    mdp = dataclasses.replace(build_mdp(config), block_size=1)
    space = mdp.env.context_space
    is_policy = theta.shape == (mdp.policy.num_parameters,) and theta.dtype == np.float32
    if not is_policy or set(learned_task) != set(space.names):
        raise InputError(f"File {path} does not hold a policy of its experiment.")
    context = space.validate(np.array([[learned_task[name] for name in space.names]]), f"File {path}")
    if task is not None:
        context = parse_task(task, space)[None, :]
    require_available(mdp)
    # Another key than that of any learner's batch.
    key = jax.random.fold_in(block_key(seed, Stream.TEST, 0), 1)
    mean_and_error = mean_return(mdp, Tasks(jnp.asarray(context), jnp.asarray(theta)[None], key), episodes)
    return dict(zip(space.names, context[0].astype(float).tolist(), strict=True)), *mean_and_error


def mean_return(mdp: MetaMDP, tasks: Tasks, episodes: int) -> tuple[float, float]:
    """Return the mean return of one policy over complete episodes, and its standard error."""
    if isinstance(mdp, EpisodicMetaMDP):
        rollout = dataclasses.replace(mdp.estimator.rollout, num_episodes=episodes)
        larger = dataclasses.replace(mdp, estimator=dataclasses.replace(mdp.estimator, rollout=rollout))
        estimate = larger.begin(tasks).estimate
        return float(estimate.mean_return[0]), float(estimate.return_error[0])
    assert isinstance(mdp, ActorCriticMDP)
    sampler = dataclasses.replace(mdp.sampler, num_envs=episodes, num_steps=-(-mdp.sampler.horizon // mdp.sampler.hold))
    rewards, ended = compiled_for(mdp.env, _first_episodes)(sampler, *tasks)
    # Only rewards until the first end count: environments restart within the same array.
    totals = (np.asarray(rewards, np.float64) * np.asarray(in_first_episode(ended))).sum(axis=0)
    return float(totals.mean()), float(totals.std(ddof=1) / np.sqrt(episodes))


def with_choices(mdp: MetaMDP, space: HyperparameterSpace) -> MetaMDP:
    """Return the meta-MDP with another space, whose learners can make as many gradient steps as it has."""
    rule, name = mdp.rule, "gradient_steps"
    if isinstance(mdp, ActorCriticMDP) and isinstance(rule, PPO) and name in space.names:
        rule = rule.up_to(space.high[space.names.index(name)], mdp.sampler.batch_size)
    return mdp.with_rule(rule, space)


def parse_task(text: str, space: ContextSpace) -> NDArray[np.float32]:
    """Parse a task like `mass=1.2,length=0.7`; coordinates that are not named are in the middle of their ranges."""
    values = {name: 0.5 * (low + high) for name, low, high in zip(space.names, space.low, space.high, strict=True)}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (text.strip() for text in entry.partition("="))
        if name not in values:
            raise not_registered("--task", name, space.names, "is not a coordinate of the task")
        try:
            values[name] = float(value)
        except ValueError:
            raise InputError(f"--task: {shown(entry)} must have the form NAME=NUMBER.") from None
    return space.validate(np.array([[*values.values()]]), "--task")[0]


def experiment_of(model: AnyModel, family: str = "", *, allow_imports: bool = False) -> Experiment:
    """Return the experiment that a model was learned in; for one of many families, `family` is a preset or a TOML file."""
    recorded = model.record.configuration.get("experiment")
    if "families" in model.record.setting:
        if family not in list_presets() and not family.endswith(".toml"):
            raise not_registered("--family", family, [*list_presets(), "a TOML file"], "is no preset")
        config = load(family, "full")
    elif not isinstance(recorded, dict) or "env" not in recorded:
        raise InputError("model: its record does not name the experiment it was fitted in, so no learner can be built.")
    else:
        config = parse(recorded)
        if family not in ("", own := config.env.name, own.rpartition(":")[2]):  # the name after `module:` is sufficient
            raise not_registered("--family", family, [own], "is not the model's")
    require_modules(config.part_names(), "model", allow_imports=allow_imports)
    return config


def _write_results(folder: Path, space: Space, wanted: dict[str, Any], history: History, command: str) -> None:
    """Write curve.csv, a row before every update with its hyperparameters and one after the last update, and the report."""
    returns, error = history.mean_return[:, 0], history.features["return_error"][:, 0, 0]
    proposed: dict[str, Any] = dict(zip(space.names, history.hyperparameters[:, 0].astype(float).T, strict=True))
    is_log = {"stepsize": any(bounds.scale != "linear" for bounds in space.branches.values())}
    if isinstance(space, HyperparameterSpace):
        is_log = {name: scale != "linear" for name, scale in zip(space.names, space.scales, strict=True)}

    def draw_returns(axes: Axes) -> None:
        axes.plot(returns, color=TEXT)
        axes.fill_between(range(len(returns)), returns - 1.96 * error, returns + 1.96 * error, color=FAINT)
        axes.set_xlabel("updates")

    panels = [Panel("mean return of the batch", draw_returns)]
    for name, is_log_scale in is_log.items():
        panels.append(curves(name, [Line("", proposed[name][None])], ylabel="", first=1, is_log=is_log_scale))
    if isinstance(space, MenuSpace):
        proposed[space.category] = [space.directions[int(index)] for index in proposed[space.category]]
    divergence = 10.0 ** history.features["last_divergence"][:, 0, 0]
    columns: dict[str, Iterable[Any]] = {
        "update": range(len(returns)),
        "steps": np.cumsum(history.num_steps[:, 0], dtype=np.float64).astype(int),
        "return": returns.astype(float),
        "return_error": error.astype(float),
        "divergence_before": [0.0, *divergence[1:].astype(float)],
        **{name: [*column, ""] for name, column in proposed.items()},
        "flagged": history.flagged[:, 0].astype(int),
    }
    storage.write_atomically(folder / "curve.csv", to_csv([columns, *zip(*columns.values(), strict=True)]).encode())
    best = int(np.nanargmax(returns)) if np.isfinite(returns).any() else 0
    went = f"The mean return of a batch went from {returns[0]:.4g} to {returns[-1]:.4g}; the largest, {returns[best]:.4g}, "
    went += f"was seen after {best} updates. Every update was proposed by the model; nothing was tuned on this task."
    parts: list[Part] = [
        Heading("Task"),
        Table(("coordinate", "value"), [[name, f"{value:g}"] for name, value in wanted["task"].items()], (1,)),
        Heading("Learning"),
        Paragraph(went),
        picture("curve", "Return: with 95 % of the batch's standard error. Others: every update.", in_rows(panels, 2)),
        Heading("Made by"),
        Command(command or "metastep.experiments.learn.learn"),
    ]
    made = f"{wanted['num_updates']} updates, {history.num_steps.sum():.0f} environment steps, seed {wanted['seed']}"
    write_document(Document(f"A policy for {wanted['family']}", made, parts), folder)


def _first_episodes(sampler: Sampler, context: Any, theta: Any, key: Any) -> tuple[Any, Any]:
    """Return rewards and ends of every step, (steps, envs)."""
    start = sampler.start(context, purpose_key(key, Purpose.SIMULATION, jnp.uint32(0)))
    _, steps = sampler.simulate(theta, context, start, purpose_key(key, Purpose.SIMULATION, jnp.uint32(1)))
    return steps.reward[0], steps.ended[0]
