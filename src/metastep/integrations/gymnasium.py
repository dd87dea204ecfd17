"""The meta-MDP as a Gymnasium environment: any library for Gymnasium can learn step sizes (extra `gym`).

Importing this module registers all `ENVIRONMENTS`, such as `metastep/CartPole-v0`, at the paper's settings. Gymnasium itself
imports it for `gymnasium.make("metastep.integrations.gymnasium:metastep/CartPole-v0")`.

One meta-episode is one learner that makes `num_updates` updates. The observation is x = <theta, g, omega>, the action chooses
the step size of the next update, the reward is the improvement of the return `j(theta') - j(theta)`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.settings import Count, check_values
from metastep.experiments.config import Scale, build_mdp, load, parse
from metastep.features import make, meta_observation
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.blocks import Stream

ENVIRONMENTS = {"CartPole": "cartpole", "Minigolf": "minigolf", "Nav2D": "nav2d", "SwingUp": "swingup"}
"""Preset of each registered environment."""

ActionUnit = Literal["normalised", "stepsize"]
Mode = AutoresetMode | str
Floats = NDArray[np.float32]
Info = dict[str, Any]


@partial(jax.jit, static_argnums=(0, 1))
def _hyperparameters(mdp: MetaMDP, actions: ActionUnit, values: Array) -> Array:
    if actions == "normalised":
        return mdp.space.from_unit((jnp.clip(values, -1.0, 1.0) + 1.0) / 2.0)
    return mdp.space.clip(values)


class MetaVectorEnv(VectorEnv[Floats, Floats, NDArray[Any]]):
    """Many learners in lockstep: one block, simulated together, hence much faster than as many single environments.

    Meta-episodes begin and end together; the autoreset mode says what happens then. Arguments and `options` are those of
    `MetaEnv`, with one row of options for all learners or one for each.
    """

    def __init__(
        self,
        mdp: MetaMDP,
        num_envs: Count,
        num_updates: Count,
        actions: ActionUnit = "normalised",
        autoreset_mode: Mode = AutoresetMode.NEXT_STEP,
    ):
        given = {"num_envs": num_envs, "num_updates": num_updates, "actions": actions}
        check_values(MetaVectorEnv.__init__, given, "environment")
        self._mode = AutoresetMode(autoreset_mode)
        self.num_envs, self.num_updates, self.actions = num_envs, num_updates, actions
        self.metadata = {"render_modes": [], "autoreset_mode": self._mode}
        self.mdp = replace(mdp, block_size=num_envs).with_budget(num_updates)
        self.updates_left, self._reset_is_due = 0, False
        self._learners: Learners
        self._mean_return: Floats
        # Of the context the bounds of the task distribution, of other features any finite number.
        bounds = [make(name).bounds(mdp) for name in mdp.observation]
        low, high = (np.concatenate([np.asarray(bound[end], np.float32) for bound in bounds]) for end in (0, 1))
        self.single_observation_space = Box(low, high)
        self._action_shape = num_envs, (num := mdp.space.num_coordinates)
        ends = (mdp.space.low, mdp.space.high) if actions == "stepsize" else ((-1.0,) * num, (1.0,) * num)
        low, high = (np.asarray(bound, np.float32) for bound in ends)
        self.single_action_space = Box(low, high)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, Info]:
        super().reset(seed=seed)
        options = dict(options or {})
        if not np.all(options.pop("reset_mask", True)):
            raise InputError("options.reset_mask: learners in lockstep can only be reset together, all must be true.")
        mdp, num, size = self.mdp, self.num_envs, self.mdp.policy.num_parameters
        # Tasks and policies follow from two random numbers, so that options, which replace some, change nothing else.
        number, block = (int(drawn) for drawn in self.np_random.integers(2**31, size=2))
        tasks = mdp.tasks(number, Stream.TRAIN, block)
        for name, value in options.items():
            if name not in ("context", "theta"):
                raise InputError(f"options: {name!r} is unknown, allowed are 'context' and 'theta'.")
            field, rows = f"options.{name}", np.atleast_2d(np.asarray(value, np.float32))
            if name == "context":
                rows = mdp.env.context_space.validate(rows, field)
            elif rows.shape[1:] != (size,) or not np.all(np.isfinite(rows)):
                raise InputError(f"{field}: {rows.tolist()} must be {size} finite numbers for each learner.")
            if len(rows) not in (1, num):
                raise InputError(f"{field}: got {len(rows)} rows, allowed is one or one for each learner ({num}).")
            tasks = tasks._replace(**{name: jnp.asarray(np.broadcast_to(rows, (num, rows.shape[1])))})
        self.updates_left, self._reset_is_due = self.num_updates, False
        return self._show(mdp.begin(tasks), np.zeros(self._action_shape, np.float32))

    def step(self, actions: Floats) -> tuple[Floats, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        never = np.zeros(self.num_envs, np.bool_)
        if self._reset_is_due:
            observation, info = self.reset()
            return observation, np.zeros(self.num_envs), never, never.copy(), info
        if not self.updates_left:
            raise ResetNeeded("The meta-episode is over, or none was begun: call reset() before step().")
        values = np.asarray(actions, np.float32)
        if values.shape != self._action_shape or not np.all(np.isfinite(values)):
            size = self._action_shape[1]
            raise InputError(f"action: {values.tolist()} must be {size} finite number(s) for each learner.")
        chosen, before = _hyperparameters(self.mdp, self.actions, values), self._mean_return
        observation, info = self._show(self.mdp.advance(self._learners, chosen), np.array(chosen))
        self.updates_left -= 1
        # A learner that diverged has no return to compare with: the reward is zero, `flagged` marks it.
        with np.errstate(invalid="ignore", over="ignore"):
            improvement = self._mean_return - before
        reward = np.where(np.isfinite(improvement), improvement, 0.0).astype(np.float64)
        over = not self.updates_left
        if over and self._mode is AutoresetMode.SAME_STEP:
            final = np.empty(self.num_envs, object)
            final[:] = list(observation)
            ended = {"final_obs": final, "final_info": info}
            observation, info = self.reset()
            info |= ended | {f"_{name}": np.ones(self.num_envs, np.bool_) for name in ended}
        self._reset_is_due = over and self._mode is AutoresetMode.NEXT_STEP
        return observation, reward, never, np.full(self.num_envs, over), info

    def _show(self, learners: Learners, stepsize: Floats) -> tuple[Floats, Info]:
        """Keep the learners; return observations and information, learners first, as arrays that JAX does not share."""
        shown = meta_observation(self.mdp, learners), learners.estimate.mean_return, learners.context, learners.flagged
        observation, mean_return, context, flagged = (np.array(array) for array in jax.device_get(shown))
        self._learners, self._mean_return = learners, mean_return.copy()
        info = {"mean_return": mean_return, "context": context, "flagged": flagged, "stepsize": stepsize}
        # A mask beside each entry says which learners have it, here all.
        return np.nan_to_num(observation), info | {f"_{name}": np.ones(self.num_envs, np.bool_) for name in info}


class MetaEnv(gym.Env[Floats, Floats]):
    """One learner as a Gymnasium environment.

    `reset(seed=...)` makes everything that follows reproducible. `reset(options={"context": [...], "theta": [...]})` fixes the
    task, the first policy, or both. `info` holds `mean_return`, `context`, `flagged` and `stepsize` (zero at a reset). The
    meta-episode is truncated after `num_updates` updates and never terminates. Numbers that are not finite appear as 0 or as
    the largest float32 in the observation and as 0 in the reward; `flagged` marks them.

    Args:
        mdp: the meta-MDP; its block size does not matter here, there is one learner.
        num_updates: T.
        actions: "normalised" actions lie in [-1, 1], mapped along each hyperparameter's scale onto its bounds; "stepsize"
            actions are the hyperparameters themselves. Either way they are clipped to their bounds.
    """

    def __init__(self, mdp: MetaMDP, num_updates: int, actions: ActionUnit = "normalised"):
        self.metadata = {"render_modes": []}
        self.block = MetaVectorEnv(mdp, 1, num_updates, actions, AutoresetMode.DISABLED)
        self.mdp = self.block.mdp
        self.observation_space = self.block.single_observation_space
        self.action_space = self.block.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, Info]:
        super().reset(seed=seed)
        self.block.np_random = self.np_random
        observation, info = self.block.reset(options=options)
        return observation[0], _single(info)

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, Info]:
        observation, reward, _, truncated, info = self.block.step(np.asarray([action], np.float32))
        return observation[0], float(reward[0]), False, bool(truncated[0]), _single(info)


def _single(info: Info) -> Info:
    """Return the information about the only learner, with Python's own numbers and without masks."""
    own = {name: array for name, array in info.items() if not name.startswith("_")}
    return {name: array[0] if array.ndim > 1 else array[0].item() for name, array in own.items()}


def make_env(
    preset: str | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    scale: Scale = "full",
    num_updates: int | None = None,
    num_episodes: int | None = None,
    horizon: int | None = None,
    overrides: Sequence[str] = (),
    actions: ActionUnit = "normalised",
) -> MetaEnv:
    """Build the environment of a preset, or of all settings as `Experiment.to_dict` gives them, for `gymnasium.make`.

    `num_updates`, `num_episodes`, `horizon` (T, n and H) and `overrides` like `"policy.sigma=0.5"` differ from the preset's.
    """
    keywords = {"meta.num_updates": num_updates, "rollout.num_episodes": num_episodes, "rollout.horizon": horizon}
    given = [*overrides, *(f"{name}={value}" for name, value in keywords.items() if value is not None)]
    if config is None and preset is None:
        raise InputError("preset: nothing was given, a preset or a config is needed.")
    if config is not None and given:
        raise InputError(f"config: it is complete already, but {given[0]!r} was given beside it.")
    experiment = parse(config) if config is not None else load(str(preset), scale, given)
    return MetaEnv(build_mdp(experiment), experiment.meta.num_updates, actions)


def make_vector_env(
    preset: str | None = None, *, num_envs: int, autoreset_mode: Mode = AutoresetMode.NEXT_STEP, **settings: Any
) -> MetaVectorEnv:
    """Build a vector environment, for `gymnasium.make_vec`. The settings are the arguments of `make_env`."""
    block = make_env(preset, **settings).block
    return MetaVectorEnv(block.mdp, num_envs, block.num_updates, block.actions, autoreset_mode)


_entries: Any = {"entry_point": f"{__name__}:make_env", "vector_entry_point": f"{__name__}:make_vector_env"}
for _name, _preset in ENVIRONMENTS.items():
    gym.register(f"metastep/{_name}-v0", kwargs={"preset": _preset}, **_entries)
