"""A callback for Stable-Baselines3's PPO and A2C: a fitted model proposes the learning rate of every update."""

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, is_vecenv_wrapped

from metastep._core.errors import InputError
from metastep._core.logs import Log, as_log
from metastep.fqi import Model, Stepper
from metastep.fqi.stepper import Outside
from metastep.integrations.rates import rate_model, warn_of_differences

_ROWS = 4096
"""Observations that the policy looks at together."""

_STATE = "learned_rate"
"""The attribute of an algorithm that holds what must be saved with it."""


class Returns:
    """What the episodes of each environment paid: the last ones that ended, or while none has, the one that is running so far.

    Args:
        envs: that run side by side.
        each: episodes to keep of each of them.
        state: what `state` gave, to go on from there; of other environments it is ignored.
        begins: where a new episode begins, whatever was paid before.
    """

    def __init__(self, envs: VecEnv, each: int, state: Mapping[str, Any], begins: NDArray[np.bool_]) -> None:
        num, self.each = envs.num_envs, each
        ended, paid = state.get("ended", []), state.get("paid", [])
        self.ended = [list(returns[-each:]) for returns in (ended if len(ended) == num else [[]] * num)]
        self.paid: list[float] = np.where(begins, 0.0, paid if len(paid) == num else 0.0).tolist()
        # A monitor knows better than `dones` when an episode ends: a life that is lost need not end it.
        self._is_told = np.array(envs.env_is_wrapped(Monitor)) | is_vecenv_wrapped(envs, VecMonitor)

    def add(self, rewards: NDArray[Any], dones: NDArray[Any], infos: Sequence[Mapping[str, Any]]) -> bool:
        """A step of every environment; whether an episode ended of which nobody tells the return."""
        self._is_told |= ["episode" in info for info in infos]
        for index, (reward, done, info) in enumerate(zip(rewards, dones, infos, strict=True)):
            self.paid[index] += float(reward)
            if "episode" in info or (done and not self._is_told[index]):
                told = info.get("episode", {}).get("r", self.paid[index])
                self.ended[index] = [*self.ended[index], float(told)][-self.each :]
                self.paid[index] = 0.0
        return bool(np.any(dones & ~self._is_told))

    def __call__(self) -> list[float]:
        """The same that simulated learners see (`metastep.rules.actor_critic.experience`)."""
        return [value for ended, paid in zip(self.ended, self.paid, strict=True) for value in (ended or [paid])]

    def state(self) -> dict[str, Any]:
        """All that is remembered, as JSON holds it; the very lists, which change as episodes go on."""
        return {"ended": self.ended, "paid": self.paid}


class LearnedRate(BaseCallback):
    """Measures what the model looks at after every rollout, and sets the rate that the update after it is made with.

    What is remembered is saved and loaded with the algorithm: give a new callback to the one that was loaded, and
    `reset_num_timesteps=False`, and it goes on.

    Args:
        model: a model, or the name of one that comes with the library, a file or the folder of a run.
        log: is told of every update (`metastep._core.logs`); a path is a CSV file.
        verbose: as in other callbacks.
        outside: warn once of numbers that the training data did not reach, or refuse each.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Model,
        log: Log | str | os.PathLike[str] | None = None,
        verbose: int = 0,
        *,
        outside: Outside = "warn",
    ) -> None:
        super().__init__(verbose)
        self.rates, self._log, self._outside = rate_model(model), as_log(log), outside
        self.rates.stepper(1, outside)  # what is wrong is said now
        self.stepper: Stepper  # from the start of the training on
        self.measured: dict[str, float] = {}  # of the last update
        self.proposed: list[float] = []
        self._returns: Returns
        self._kept: dict[str, Any]  # what the algorithm is saved with
        self._has_warned = False
        self._seen: dict[str, Any] = {}

    def _init_callback(self) -> None:
        if not isinstance(self.model, PPO | A2C):
            raise InputError(
                f"LearnedRate: {type(self.model).__name__} is not an algorithm it knows, allowed are PPO, A2C."
            )
        self._warn_of_differences()

    def _warn_of_differences(self) -> None:
        algorithm: Any = self.model
        own = {
            "algorithm": type(algorithm).__name__.lower(),
            "steps of a batch": algorithm.n_steps * algorithm.n_envs,
            "epochs": getattr(algorithm, "n_epochs", None),
            "minibatch": getattr(algorithm, "batch_size", None),
            "discount": algorithm.gamma,
        }
        warn_of_differences(self.rates, "LearnedRate", own)

    def _on_training_start(self) -> None:
        algorithm: Any = self.model
        total = max(1, math.ceil(self.locals["total_timesteps"] / (algorithm.n_steps * algorithm.n_envs)))
        state = getattr(algorithm, _STATE, {}) if algorithm.num_timesteps else {}
        # As many episodes as the model's learners had environments, in equal shares.
        wanted = int(self.rates.record.setting.get("num_envs") or algorithm.n_envs)
        each = -(-wanted // algorithm.n_envs)
        returns = Returns(algorithm.env, each, state.get("returns", {}), algorithm._last_episode_starts)
        if state:
            stepper = self.rates.stepper(None, self._outside, state.get("stepper", {}), self._log)
            stepper.num_updates = total  # those that were made and those to come
        else:
            stepper = self.rates.stepper(total, self._outside, log=self._log)
        measured: dict[str, float] = dict(state.get("measured", {}))
        self.stepper, self._returns, self.measured = stepper, returns, measured
        self._has_warned, self._seen = False, {}
        # The algorithm's own from now on: the callback may serve another one later.
        self._kept = {"stepper": stepper.record(), "measured": measured, "returns": returns.state()}
        setattr(algorithm, _STATE, self._kept)

    def _on_step(self) -> bool:
        scaled: Any = self.model.get_vec_normalize_env()
        rewards = self.locals["rewards"] if scaled is None else scaled.get_original_reward()
        untold = self._returns.add(rewards, self.locals["dones"], self.locals["infos"])
        if untold and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "LearnedRate: an episode ended without info['episode'], so its return is the sum of the rewards that the "
                "algorithm got; wrap the environments in Monitor or VecMonitor.",
                stacklevel=2,
            )
        return True

    def _on_rollout_start(self) -> None:
        self._measure_update()

    def _on_training_end(self) -> None:
        self._measure_update()

    def _on_rollout_end(self) -> None:
        algorithm: Any = self.model
        buffer = algorithm.rollout_buffer
        # The buffer takes new arrays when it is emptied: these stay as they are.
        self._seen = {name: getattr(buffer, name) for name in ("observations", "actions", "log_probs")}
        told = {
            "returns": self._returns(),
            "entropy": self._entropy(),
            "values": buffer.values.ravel(),
            "targets": buffer.returns.ravel(),
            **self.measured,
        }
        if self.stepper.needs_parameters:
            told["parameters"] = torch.cat([each.detach().flatten() for each in algorithm.policy.parameters()])
        rate = self.stepper(told).stepsize
        # An algorithm may be saved at any time, and has no hook for it.
        self._kept["stepper"] = self.stepper.record()
        self.proposed.append(rate)
        # An update begins with the rate of the schedule, which is made from this field.
        algorithm.learning_rate = rate
        algorithm._setup_lr_schedule()

    def _measure_update(self) -> None:
        """What the last update did, told by the algorithm where it tells it."""
        if not self._seen:
            return
        algorithm: Any = self.model
        logged = algorithm.logger.name_to_value
        if "train/approx_kl" in logged:
            divergence, clipped = float(logged["train/approx_kl"]), float(logged["train/clip_fraction"])
        else:
            divergence, clipped = self._divergence(), 0.0
        used = float(algorithm.policy.optimizer.param_groups[0]["lr"])
        if used != self.proposed[-1]:
            warnings.warn(
                f"LearnedRate: the update was made with {used:g}, proposed was {self.proposed[-1]:g}.", stacklevel=2
            )
        self.measured |= {"approx_kl": divergence, "clip_fraction": clipped, "rate": used}
        self._seen = {}

    def _rows(self, start: int) -> tuple[Any, Any]:
        """Some observations and actions of the rollout, as tensors."""
        rows = slice(start, start + _ROWS)

        def flat(array: NDArray[Any]) -> NDArray[Any]:
            return array.reshape(-1, *array.shape[2:])[rows]

        seen = self._seen["observations"]
        observations = {name: flat(array) for name, array in seen.items()} if isinstance(seen, dict) else flat(seen)
        device = self.model.device
        return obs_as_tensor(observations, device), torch.as_tensor(flat(self._seen["actions"]), device=device)

    @property
    def _num_rows(self) -> int:
        return int(self._seen["log_probs"].size)

    @torch.no_grad()
    def _entropy(self) -> float:
        """Of the policy that has just acted, mean over the rollout."""
        total, policy = 0.0, self.model.policy
        for start in range(0, self._num_rows, _ROWS):
            entropy = policy.get_distribution(self._rows(start)[0]).entropy()  # type: ignore[operator]
            if entropy is None:  # there is no formula for it
                return -float(self._seen["log_probs"].mean())
            total += float(entropy.sum())
        return total / self._num_rows

    @torch.no_grad()
    def _divergence(self) -> float:
        """Mean of (ratio - 1) - log ratio over the rollout, of an algorithm that does not tell it."""
        total, policy, before = 0.0, self.model.policy, self._seen["log_probs"].ravel()
        for start in range(0, self._num_rows, _ROWS):
            observations, actions = self._rows(start)
            if self.model.action_space.__class__.__name__ == "Discrete":
                actions = actions.long().flatten()
            after = policy.evaluate_actions(observations, actions)[1].cpu().numpy()  # type: ignore[operator]
            log_ratio = after - before[start : start + _ROWS]
            total += float(np.sum(np.expm1(log_ratio) - log_ratio))
        return total / self._num_rows
