"""The meta-MDP as a Gymnasium environment: whatever trains on Gymnasium can learn step sizes (extra `gym`).

Importing this module registers `metastep/CartPole-v0`, `metastep/Minigolf-v0`, `metastep/Nav2D-v0` and
`metastep/SwingUp-v0` at the paper's settings. Gymnasium imports it by itself when asked for
`gymnasium.make("metastep.integrations.gymnasium:metastep/CartPole-v0")`.

One meta-episode is one learner that makes `num_updates` updates. The observation is x = <theta, g, omega>, the action chooses
the step size of the next update, the reward is the improvement of the return `j(theta') - j(theta)`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.experiments.build import build_mdp
from metastep.experiments.config import Scale, load, parse
from metastep.integrations.metaepisode import ActionUnit, Floats, MetaEpisode, action_space, observation_space
from metastep.mdp import MetaMDP

# Preset of each registered environment.
ENVIRONMENTS = {"CartPole": "cartpole", "Minigolf": "minigolf", "Nav2D": "nav2d", "SwingUp": "swingup"}


class MetaEnv(gym.Env[Floats, Floats]):
    """One learner as a Gymnasium environment.

    `reset(seed=...)` makes everything that follows reproducible. `reset(options={"context": [...], "theta": [...]})` fixes the
    task, the first policy, or both. `info` holds `mean_return`, `context`, `flagged` and `stepsize` (zero at a reset). The
    meta-episode is truncated after `num_updates` updates and never terminates. Numbers that are not finite appear as 0 or as
    the largest float32 in the observation and as 0 in the reward; `flagged` marks them.

    Args:
        mdp: what is learned; its block size does not matter here, there is one learner.
        num_updates: T.
        actions: "normalised" actions lie in [-1, 1], mapped along each hyperparameter's scale onto its bounds; "stepsize"
            actions are the hyperparameters themselves. Either way they are clipped to their bounds.
    """

    def __init__(self, mdp: MetaMDP, num_updates: int, actions: ActionUnit = "normalised"):
        self.metadata = {"render_modes": []}
        self.mdp = replace(mdp, block_size=1)  # what is simulated
        self._episode = MetaEpisode(self.mdp, num_updates, actions)
        self.observation_space = observation_space(mdp)
        self.action_space = action_space(mdp, actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        moment = self._episode.begin(self.np_random, options)
        return moment.observation[0], _single(moment.info())

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        moment, reward = self._episode.update([action])
        over = not self._episode.updates_left
        return moment.observation[0], float(reward[0]), False, over, _single(moment.info())


def _single(info: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Information about the only learner; numbers as Python's own."""
    return {name: array[0] if array.ndim > 1 else array[0].item() for name, array in info.items()}


class MetaVectorEnv(VectorEnv[Floats, Floats, NDArray[Any]]):
    """Many learners in lockstep: one block, simulated together, hence much faster than as many single environments.

    All meta-episodes begin and end together. What happens then is the autoreset mode of Gymnasium 1.x, also found in
    `metadata["autoreset_mode"]`: the next step begins the new meta-episodes and ignores its actions (NEXT_STEP), the same step
    does and keeps what ended in `final_obs` and `final_info` (SAME_STEP), or the caller resets (DISABLED).

    `options` are those of `MetaEnv`, with one row for all learners or one for each; they hold for the meta-episodes begun by
    that call of `reset`, as everywhere in Gymnasium.

    Args:
        mdp: what is learned.
        num_envs: learners, the block size.
        num_updates: T.
        actions: as of `MetaEnv`.
        autoreset_mode: a member of `AutoresetMode` or its value.
    """

    def __init__(
        self,
        mdp: MetaMDP,
        num_envs: int,
        num_updates: int,
        actions: ActionUnit = "normalised",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ):
        if num_envs < 1:
            raise InputError(f"num_envs: {num_envs} must be at least 1.")
        try:
            self._mode = AutoresetMode(autoreset_mode)
        except ValueError:
            allowed = ", ".join(mode.value for mode in AutoresetMode)
            raise InputError(f"autoreset_mode: {autoreset_mode!r} must be one of {allowed}.") from None
        self.num_envs = num_envs
        self.metadata = {"render_modes": [], "autoreset_mode": self._mode}
        self.mdp = replace(mdp, block_size=num_envs)  # what is simulated
        self._episode = MetaEpisode(self.mdp, num_updates, actions)
        self._reset_is_due = False
        self.single_observation_space = observation_space(mdp)
        self.single_action_space = action_space(mdp, actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        options = dict(options or {})
        if not np.all(options.pop("reset_mask", True)):
            raise InputError("options.reset_mask: learners in lockstep can only be reset together, all must be true.")
        self._reset_is_due = False
        moment = self._episode.begin(self.np_random, options)
        return moment.observation, _masked(moment.info())

    def step(
        self, actions: Floats
    ) -> tuple[Floats, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        never = np.zeros(self.num_envs, np.bool_)
        if self._reset_is_due:
            observation, info = self.reset()
            return observation, np.zeros(self.num_envs), never, never.copy(), info
        moment, reward = self._episode.update(actions)
        observation, info = moment.observation, _masked(moment.info())
        over = not self._episode.updates_left
        if over and self._mode is AutoresetMode.SAME_STEP:
            final = np.empty(self.num_envs, object)
            final[:] = list(observation)
            ended = {"final_obs": final, "final_info": info}
            observation, info = self.reset()
            always = np.ones(self.num_envs, np.bool_)
            info = ended | {f"_{name}": always.copy() for name in ended} | info
        self._reset_is_due = over and self._mode is AutoresetMode.NEXT_STEP
        return observation, reward.astype(np.float64), never, np.full(self.num_envs, over), info


def _masked(info: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Information in Gymnasium's vector form: beside every entry a mask of the learners that have it, here all."""
    return {**info, **{f"_{name}": np.ones(len(array), np.bool_) for name, array in info.items()}}


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
    """Build the environment of a preset or of a whole configuration; what `gymnasium.make` calls.

    Args:
        preset: name of the preset.
        config: all settings, as `Experiment.to_dict` gives them, in place of a preset.
        scale: which settings of the preset, "full" or "quick".
        num_updates, num_episodes, horizon: T, n and H, where they shall differ from the preset's.
        overrides: any other settings, like `"policy.sigma=0.5"`.
        actions: as of `MetaEnv`.
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
    preset: str | None = None,
    *,
    num_envs: int,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    **settings: Any,
) -> MetaVectorEnv:
    """Build a vector environment; what `gymnasium.make_vec` calls. The settings are the arguments of `make_env`."""
    episode = make_env(preset, **settings)._episode
    return MetaVectorEnv(episode.mdp, num_envs, episode.num_updates, episode.actions, autoreset_mode)


def register() -> None:
    """Make the environments known to Gymnasium; importing this module does."""
    for name, preset in ENVIRONMENTS.items():
        gym.register(
            f"metastep/{name}-v0",
            entry_point=f"{__name__}:make_env",
            vector_entry_point=f"{__name__}:make_vector_env",
            kwargs={"preset": preset},
        )


register()
