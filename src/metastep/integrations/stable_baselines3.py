"""A callback for Stable-Baselines3's PPO and A2C: a fitted model sets the learning rate (and clip range) of every update."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, create_model
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import FloatSchedule, obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, is_vecenv_wrapped

from metastep._core.errors import InputError
from metastep._core.logs import AnyLog, as_log
from metastep._core.settings import from_json
from metastep.fqi import Stepper
from metastep.fqi.stepper import Outside
from metastep.integrations.rates import ModelSource, rate_model, require_settings, warn_of_differences

_ROWS = 4096  # observations in one call of the policy
_STATE = "learned_rate"  # attribute of an algorithm that is saved and loaded with it
# What is saved, with its types; numbers may be infinite or NaN, as those of a loop are.
_RETURNS: Any = create_model("", ended=(list[list[float]], []), paid=(list[float], []))
_MEASURED = dict[Literal["approx_kl", "clip_fraction", "rate"], float]
_KEPT: Any = create_model(
    "", stepper=(dict[str, Any] | None, None), measured=(_MEASURED, {}), returns=(_RETURNS, _RETURNS())
)
_SETTINGS = {"PPO": ("stepsize", "clip_range"), "A2C": ("stepsize",)}  # hyperparameters to set


class Returns:
    """Returns of each environment: of the last `each` episodes or, before the first has ended, of the running one."""

    def __init__(self, envs: VecEnv, each: int, state: Mapping[str, Any], begins: NDArray[np.bool_]) -> None:
        num, self.each = envs.num_envs, each  # the state of another number of environments is ignored
        ended, paid = state.get("ended", []), state.get("paid", [])
        self.ended = [list(returns[-each:]) for returns in (ended if len(ended) == num else [[]] * num)]
        self.paid: list[float] = np.where(begins, 0.0, paid if len(paid) == num else 0.0).tolist()
        # A monitor knows better than `dones` when an episode ends: a lost life need not end it.
        self._is_monitored = np.array(envs.env_is_wrapped(Monitor)) | is_vecenv_wrapped(envs, VecMonitor)

    def add(self, rewards: NDArray[Any], dones: NDArray[Any], infos: Sequence[Mapping[str, Any]]) -> bool:
        """Add a step of every environment; return whether an episode without a monitor ended."""
        self._is_monitored |= ["episode" in info for info in infos]
        for index, (reward, done, info) in enumerate(zip(rewards, dones, infos, strict=True)):
            self.paid[index] += float(reward)
            if "episode" in info or (done and not self._is_monitored[index]):
                total = info.get("episode", {}).get("r", self.paid[index])
                self.ended[index] = [*self.ended[index], float(total)][-self.each :]
                self.paid[index] = 0.0
        return bool(np.any(dones & ~self._is_monitored))

    def __call__(self) -> list[float]:
        """Return what simulated learners see (`metastep.rules.actor_critic.sampler`)."""
        return [value for ended, paid in zip(self.ended, self.paid, strict=True) for value in (ended or [paid])]

    def state(self) -> dict[str, Any]:
        """Return all that must be saved: the lists themselves, which change with every step."""
        return {"ended": self.ended, "paid": self.paid}


class LearnedRate(BaseCallback):
    """Measure the diagnostics of every rollout, and set the learning rate of the update after it.

    The state is saved and loaded with the algorithm: to continue, give a new callback to the loaded algorithm, with
    `reset_num_timesteps=False`.

    Args:
        model: a model, or the name of one that comes with the library, a file or the folder of a run.
        log: called for every update (`metastep._core.logs`); a path is a CSV file.
        verbose: as in other callbacks.
        outside: warn once of numbers outside the range of the training data, or refuse each.
    """

    def __init__(self, model: ModelSource, log: AnyLog = None, verbose: int = 0, *, outside: Outside = "warn") -> None:
        super().__init__(verbose)
        self.rates, self._log, self._outside = rate_model(model), as_log(log), outside
        self.rates.stepper(1, outside)  # raises now if something is wrong
        self.stepper: Stepper  # from the start of the training on
        self.measured: dict[str, float] = {}  # of the last update
        self.proposed: list[float] = []  # learning rates
        self._returns: Returns
        self._kept: dict[str, Any]  # saved with the algorithm
        self._has_warned = False
        self._seen: dict[str, Any] = {}  # arrays of the last rollout

    def _init_callback(self) -> None:
        algorithm: Any = self.model
        if not isinstance(algorithm, PPO | A2C):
            raise InputError(f"LearnedRate: {type(algorithm).__name__} is not supported, allowed are PPO, A2C.")
        kind = "PPO" if isinstance(algorithm, PPO) else "A2C"
        require_settings(self.rates, f"LearnedRate with {kind}", _SETTINGS[kind])
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
        is_new = not algorithm.num_timesteps
        state = (
            _KEPT()
            if is_new
            else from_json(TypeAdapter(_KEPT), getattr(algorithm, _STATE, {}), f"checkpoint: {_STATE}")
        )
        # As many episodes as the model's learners had environments, in equal shares.
        wanted = int(self.rates.record.setting.get("num_envs") or algorithm.n_envs)
        each = -(-wanted // algorithm.n_envs)
        self._returns = Returns(algorithm.env, each, vars(state.returns), algorithm._last_episode_starts)
        if state.stepper is not None:
            self.stepper = self.rates.stepper(None, self._outside, state.stepper, self._log)
            self.stepper.num_updates = total  # those made and those to come
        else:
            self.stepper = self.rates.stepper(total, self._outside, log=self._log)
            if not is_new:
                text = (
                    "LearnedRate: the algorithm has been trained, but has no record of a stepper, which starts with an"
                )
                warnings.warn(f"{text} empty memory.", stacklevel=2)
        self.measured = dict(state.measured)
        self._has_warned, self._seen = False, {}
        # The algorithm's own from now on: the callback may serve another one later.
        self._kept = {"stepper": self.stepper.record(), "measured": self.measured, "returns": self._returns.state()}
        setattr(algorithm, _STATE, self._kept)

    def _on_step(self) -> bool:
        scaled: Any = self.model.get_vec_normalize_env()
        rewards = self.locals["rewards"] if scaled is None else scaled.get_original_reward()
        is_unknown = self._returns.add(rewards, self.locals["dones"], self.locals["infos"])
        if is_unknown and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "LearnedRate: an episode ended without info['episode'], so its return is the sum of the rewards that the "
                "algorithm got; wrap the environments in Monitor or VecMonitor.",
                stacklevel=2,
            )
        return True

    def _on_rollout_end(self) -> None:
        algorithm: Any = self.model
        buffer = algorithm.rollout_buffer
        # The buffer takes new arrays when it is emptied: these stay as they are.
        self._seen = {name: getattr(buffer, name) for name in ("observations", "actions", "log_probs")}
        diagnostics = {
            "returns": self._returns(),
            "entropy": self._entropy(),
            "values": buffer.values.ravel(),
            "targets": buffer.returns.ravel(),
            **self.measured,
        }
        if self.stepper.needs_parameters:
            diagnostics["parameters"] = torch.cat([each.detach().flatten() for each in algorithm.policy.parameters()])
        values = self.stepper(diagnostics).values
        # An algorithm may be saved at any time, and has no hook for it.
        self._kept["stepper"] = self.stepper.record()
        self.proposed.append(values["stepsize"])
        # An update begins with the rate of the schedule, which is made from this field.
        algorithm.learning_rate = values["stepsize"]
        algorithm._setup_lr_schedule()
        if "clip_range" in values:
            algorithm.clip_range = FloatSchedule(values["clip_range"])

    def _on_rollout_start(self) -> None:
        """Measure the last update, with the algorithm's own numbers where it logs them."""
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
            text = f"LearnedRate: the update used the rate {used:g}, proposed was {self.proposed[-1]:g}."
            warnings.warn(text, stacklevel=2)
        self.measured |= {"approx_kl": divergence, "clip_fraction": clipped, "rate": used}
        self._seen = {}

    _on_training_end = _on_rollout_start

    def _rows(self, start: int) -> tuple[Any, Any]:
        """Return some observations and actions of the rollout as tensors."""

        def flat(array: NDArray[Any]) -> NDArray[Any]:
            return array.reshape(-1, *array.shape[2:])[start : start + _ROWS]

        seen, device = self._seen["observations"], self.model.device
        observations = {name: flat(array) for name, array in seen.items()} if isinstance(seen, dict) else flat(seen)
        return obs_as_tensor(observations, device), torch.as_tensor(flat(self._seen["actions"]), device=device)

    @torch.no_grad()
    def _entropy(self) -> float:
        """Return the mean entropy over the rollout of the policy that has just acted."""
        log_probs, total = self._seen["log_probs"], 0.0
        for start in range(0, log_probs.size, _ROWS):
            entropy = self.model.policy.get_distribution(self._rows(start)[0]).entropy()
            if entropy is None:  # there is no formula for it
                return -float(log_probs.mean())
            total += float(entropy.sum())
        return total / log_probs.size

    @torch.no_grad()
    def _divergence(self) -> float:
        """Return the mean of (ratio - 1) - log ratio over the rollout, for an algorithm that does not log it."""
        total, policy, before = 0.0, self.model.policy, self._seen["log_probs"].ravel()
        for start in range(0, before.size, _ROWS):
            observations, actions = self._rows(start)
            if self.model.action_space.__class__.__name__ == "Discrete":
                actions = actions.long().flatten()
            after = policy.evaluate_actions(observations, actions)[1].cpu().numpy()
            log_ratio = after - before[start : start + _ROWS]
            total += float(np.sum(np.expm1(log_ratio) - log_ratio))
        return total / before.size
