"""A callback for Stable-Baselines3's PPO and A2C: a fitted model proposes the learning rate of every update."""

import math
import os
import warnings
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor

from metastep.errors import InputError
from metastep.fqi import Model, Stepper
from metastep.integrations.rates import differences, rate_model
from metastep.logs import Log, as_log

_ROWS = 4096
"""Observations that the policy looks at together."""

_STATE = "learned_rate"
"""The attribute of an algorithm that holds what must be saved with it."""


class LearnedRate(BaseCallback):
    """Measures what the model looks at after every rollout, and sets the rate that the update after it is made with.

    What is remembered is saved and loaded with the algorithm: give a new callback to the one that was loaded, and
    `reset_num_timesteps=False`, and it goes on.

    Args:
        model: a model, or the name of one that comes with the library, a file or the folder of a run.
        log: is told of every update (`metastep.logs`); a path is a CSV file.
        verbose: as in other callbacks.
    """

    def __init__(
        self, model: str | os.PathLike[str] | Model, log: Log | str | os.PathLike[str] | None = None, verbose: int = 0
    ) -> None:
        super().__init__(verbose)
        self.rates, self._log = rate_model(model), as_log(log)
        self.stepper: Stepper = self.rates.stepper()
        self.measured: dict[str, float] = {}  # of the last update
        self.proposed: list[float] = []
        self._episodes: list[deque[float]] = []
        self._seen: dict[str, Any] = {}

    def _init_callback(self) -> None:
        algorithm: Any = self.model
        if not isinstance(algorithm, PPO | A2C):
            raise InputError(
                f"LearnedRate: {type(algorithm).__name__} is not an algorithm it knows, allowed are PPO, A2C."
            )
        state = getattr(algorithm, _STATE, None) if algorithm.num_timesteps else None
        # As many episodes as the model's learners had environments, in equal shares.
        wanted = int(self.rates.record.setting.get("num_envs") or algorithm.n_envs)
        each = -(-wanted // algorithm.n_envs)
        kept = state["episodes"] if state and len(state["episodes"]) == algorithm.n_envs else [[]] * algorithm.n_envs
        self._episodes = [deque(returns, each) for returns in kept]
        self.stepper = self.rates.stepper(record=state["stepper"] if state else None, log=self._log)
        self.measured = dict(state["measured"]) if state else {}
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
        if unlike := differences(self.rates, own):
            warnings.warn(f"LearnedRate: the model was fitted on other loops, this one has {unlike}.", stacklevel=2)

    def _on_training_start(self) -> None:
        algorithm: Any = self.model
        batch = algorithm.n_steps * algorithm.n_envs
        self.stepper.num_updates = max(1, math.ceil(self.locals["total_timesteps"] / batch))

    def _on_step(self) -> bool:
        for returns, info in zip(self._episodes, self.locals["infos"], strict=True):
            if "episode" in info:
                returns.append(float(info["episode"]["r"]))
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
            "returns": self._returns(buffer.rewards),
            "entropy": self._entropy(),
            "values": buffer.values.ravel(),
            "targets": buffer.returns.ravel(),
            "parameters": torch.cat([parameter.detach().flatten() for parameter in algorithm.policy.parameters()]),
            **self.measured,
        }
        known = {name: value for name, value in told.items() if name != "parameters" or self.stepper.needs_parameters}
        rate = self.stepper(known).stepsize
        self.proposed.append(rate)
        # An update begins with the rate of the schedule, which is made from this field.
        algorithm.learning_rate = rate
        algorithm._setup_lr_schedule()
        self._save()

    def _returns(self, rewards: NDArray[np.float32]) -> list[float]:
        """Of the last finished episodes; before any has, what those that are running were paid."""
        found = [value for returns in self._episodes for value in returns]
        return found or [float(value) for value in rewards.sum(axis=0)]

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
        self.measured = {"approx_kl": divergence, "clip_fraction": clipped, "rate": used}
        self._seen = {}
        self._save()

    def _save(self) -> None:
        """Leave all that is remembered with the algorithm, as JSON holds it."""
        episodes = [list(returns) for returns in self._episodes]
        setattr(self.model, _STATE, {"stepper": self.stepper.record(), "measured": self.measured, "episodes": episodes})

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
