"""How a policy that was learned does: fresh episodes on its own task, or on another one of the family."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.registry import require_modules
from metastep.experiments.build import require_available
from metastep.experiments.config import parse
from metastep.experiments.new_task import POLICY, of_one_learner, parse_task
from metastep.mdp import ActorCriticMDP, EpisodicMetaMDP, MetaMDP, Tasks
from metastep.mdp.blocks import Purpose, Stream, block_key, purpose_key
from metastep.rules.actor_critic import Sampler
from metastep.rules.actor_critic.steps import in_first_episode
from metastep.simulation.engine import engine_of


class Evaluated(NamedTuple):
    """How a policy does on a task."""

    task: dict[str, float]
    mean: float  # return; of policies with a critic without discount, of others with it: as in their curves
    error: float  # standard error of the mean
    episodes: int


def evaluate(
    path: Path, *, task: str | None = None, episodes: int = 100, seed: int = 1, allow_imports: bool = False
) -> Evaluated:
    """Simulate fresh episodes of a policy that `learn` wrote, on its own task or another one of the family."""
    path = path / POLICY if path.is_dir() else path
    arrays, metadata = storage.read_tensors(path)
    storage.require_stamp(metadata, "policy", path, "learn it again")
    if episodes < 2:
        raise InputError(f"--episodes: {episodes} must be at least 2.")
    learned, recorded = metadata.get("learned"), metadata.get("experiment")
    own = learned.get("task") if isinstance(learned, dict) else None
    if (
        not isinstance(recorded, dict)
        or not isinstance(own, dict)
        or not all(isinstance(v, float) for v in own.values())
    ):
        raise InputError(f"File {path} does not hold what this version keeps.")
    config = parse(recorded)
    require_modules(config.part_names(), f"File {path}", allow_imports=allow_imports)
    mdp = of_one_learner(config)
    space, theta = mdp.env.context_space, arrays.get("theta")
    if (
        theta is None
        or theta.shape != (mdp.num_parameters,)
        or theta.dtype != np.float32
        or set(own) != set(space.names)
    ):
        raise InputError(f"File {path} does not hold a policy of its experiment.")
    context = space.validate(np.array([[own[name] for name in space.names]]), f"File {path}") if task is None else None
    context = parse_task(task, space)[None, :] if task is not None else context
    require_available(mdp)
    # Of another purpose than any learner's: these episodes are nobody's batch.
    key = jax.random.fold_in(block_key(seed, Stream.TEST, 0), 1)
    returns = _returns(mdp, Tasks(jnp.asarray(context), jnp.asarray(theta)[None], key), episodes)
    named: Sequence[float] = np.asarray(context)[0].astype(float).tolist()
    return Evaluated(dict(zip(space.names, named, strict=True)), *returns, episodes)


def _returns(mdp: MetaMDP, tasks: Tasks, episodes: int) -> tuple[float, float]:
    """Mean return of fresh episodes, and its standard error."""
    if isinstance(mdp, EpisodicMetaMDP):
        rollout = dataclasses.replace(mdp.estimator.rollout, num_episodes=episodes)
        larger = dataclasses.replace(mdp, estimator=dataclasses.replace(mdp.estimator, rollout=rollout))
        estimate = larger.begin(tasks).estimate
        return float(estimate.mean_return[0]), float(estimate.return_error[0])
    assert isinstance(mdp, ActorCriticMDP)
    sampler = dataclasses.replace(mdp.sampler, num_envs=episodes, num_steps=-(-mdp.sampler.horizon // mdp.sampler.hold))
    rewards, ended = engine_of(mdp.env).whole(_first_episodes)(sampler, *tasks)
    # Until the first end: an environment that begins again does so in the same array.
    totals = (np.asarray(rewards, np.float64) * np.asarray(in_first_episode(ended))).sum(axis=0)
    return float(totals.mean()), float(totals.std(ddof=1) / np.sqrt(episodes))


def _first_episodes(sampler: Sampler, context: Any, theta: Any, key: Any) -> tuple[Any, Any]:
    """Rewards and ends of every step, (steps, envs)."""
    start = sampler.start(context, purpose_key(key, Purpose.SIMULATION, jnp.uint32(0)))
    _, steps = sampler.simulate(theta, context, start, purpose_key(key, Purpose.SIMULATION, jnp.uint32(1)))
    return steps.reward[0], steps.ended[0]
