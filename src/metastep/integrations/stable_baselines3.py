"""Callbacks for Stable-Baselines3's PPO and A2C: a model sets the learning rate, or all hyperparameters, of every update."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Discrete
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
from metastep.fqi.guard import DIVERGENCE, LOOP, Outside, own_steps
from metastep.pretrained import ModelSource, rate_model, require_settings

_ROWS = 4096  # observations in one call of the policy
_TARGET_KL = DIVERGENCE / 1.5  # an update of PPO stops above 1.5 times it
_STATE = "learned_rate"  # attribute of an algorithm that is saved and loaded with it
# What is saved, with its types; numbers may be infinite or NaN, as those of a loop are.
_SUMS: Any = create_model("", ended=(list[list[float]], []), paid=(list[float], []))
_Measured = Literal["approx_kl", "clip_fraction", "rate", "last_clip_fraction", "gradient_norm", "actor_gradient_norm"]
_MEASURED = dict[_Measured | Literal["gradient_steps"], float]
_KEPT: Any = create_model("", stepper=(dict[str, Any] | None, None), measured=(_MEASURED, {}), returns=(_SUMS, _SUMS()))
_A2C = ("stepsize", "gae_lambda", "entropy_weight", "critic_rate")
_SETTINGS = {"PPO": (*_A2C, "clip_range", "gradient_steps"), "A2C": _A2C}  # that can be chosen
_OF_THE_CRITIC = {"explained_variance", "values", "targets"}  # diagnostics
_CRITIC = ("mlp_extractor.value_net.", "value_net.", "vf_features_extractor.")  # parameters that are only the critic's
_RUNNING = "_metastep_update"  # attribute of a policy, which is not saved


class Returns:
    """Returns of each environment: of the last `each` episodes or, before the first has ended, of the running one."""

    def __init__(self, envs: VecEnv, each: int, state: Any, begins: NDArray[np.bool_]) -> None:
        num, self.each = envs.num_envs, each  # the state of another number of environments is ignored
        ended, paid = state.ended, state.paid
        self.ended = [list(returns[-each:]) for returns in (ended if len(ended) == num else [[]] * num)]
        self.paid: list[float] = np.where(begins, 0.0, paid if len(paid) == num else 0.0).tolist()
        # A monitor knows better than `dones` when an episode ends: a lost life need not end it.
        self._is_monitored = [own or is_vecenv_wrapped(envs, VecMonitor) for own in envs.env_is_wrapped(Monitor)]

    def add(self, rewards: NDArray[Any], dones: NDArray[Any], infos: Sequence[Mapping[str, Any]]) -> bool:
        """Add a step of every environment; return whether an episode without a monitor ended."""
        is_unknown = False
        for index, (reward, done, info) in enumerate(zip(rewards.tolist(), dones.tolist(), infos, strict=True)):
            self.paid[index] += reward
            self._is_monitored[index] |= "episode" in info
            if "episode" in info or (done and not self._is_monitored[index]):
                total = info.get("episode", {}).get("r", self.paid[index])
                self.ended[index] = [*self.ended[index], float(total)][-self.each :]
                self.paid[index] = 0.0
                is_unknown |= "episode" not in info
        return is_unknown

    def __call__(self) -> list[float]:
        """Return what simulated learners see (`metastep.rules.actor_critic.sampler`)."""
        return [value for ended, paid in zip(self.ended, self.paid, strict=True) for value in (ended or [paid])]


class _Update:
    """An update while it runs; the policy holds it, so that one that was interrupted is ended later."""

    def __init__(self, algorithm: Any, needs: Sequence[str]) -> None:
        self.algorithm, self.policy, self.needs, self.steps = algorithm, algorithm.policy, needs, 0
        self.most, self.critic_rate, self.was_stopped = math.inf, 1.0, False
        self._undo = ExitStack()
        self._shares: list[float] = []  # of clipped ratios, for each minibatch of the epoch
        self._squares = [0.0, 0.0]  # sums over the gradients of actor and critic
        self._lengths = np.zeros(2)  # sums over the gradient steps, of whole gradients and of the actor's
        self._critic = {id(each) for name, each in self.policy.named_parameters() if name.startswith(_CRITIC)}
        self._groups: Any = None  # of the user, during a step
        self.set(self.policy, _RUNNING, self)
        optimizer = self.policy.optimizer
        hooks = [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]
        if {"gradient_norm", "actor_gradient_norm"} & set(needs):  # before they are cut, unlike those of a step
            every = (each for each in self.policy.parameters() if each.requires_grad)
            hooks += [each.register_post_accumulate_grad_hook(self._add) for each in every]
        for hook in hooks:
            self._undo.callback(hook.remove)
        if isinstance(algorithm, PPO):
            self._get, self._evaluate = algorithm.rollout_buffer.get, self.policy.evaluate_actions
            self.set(algorithm.rollout_buffer, "get", self._minibatches)
            if "last_clip_fraction" in needs:
                self.set(self.policy, "evaluate_actions", self._compared)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until the update ends."""
        is_own = name in vars(owner)
        self._undo.callback(*((setattr, owner, name, vars(owner)[name]) if is_own else (delattr, owner, name)))
        setattr(owner, name, value)

    def end(self) -> None:
        """Leave the algorithm as it was."""
        self._after()
        self._undo.close()

    def measured(self) -> dict[str, float]:
        """Return what the model needs beyond what algorithms log."""
        found: dict[str, Any] = {"gradient_steps": self.steps, "last_clip_fraction": np.mean(self._shares or [0.0])}
        found |= zip(("gradient_norm", "actor_gradient_norm"), self._lengths / max(1, self.steps), strict=True)
        return {name: float(value) for name, value in found.items() if name in self.needs}

    @torch.no_grad()
    def stopped_at(self) -> float:
        """Return the divergence of the minibatch that stopped the update, 0 where none did: no step was made with it."""
        if not self.was_stopped:
            return 0.0
        last, is_discrete = self._minibatch, isinstance(self.algorithm.action_space, Discrete)
        actions = last.actions.long().flatten() if is_discrete else last.actions
        log_ratio = self._evaluate(last.observations, actions)[1] - last.old_log_prob
        return float((log_ratio.exp() - 1.0 - log_ratio).mean())

    def _minibatches(self, batch_size: int | None = None) -> Iterator[Any]:
        self._shares = []
        for minibatch in self._get(batch_size):
            if self.steps >= self.most:
                return
            self._minibatch = minibatch
            try:
                yield minibatch
            except GeneratorExit:
                self.was_stopped = True
                raise

    def _compared(self, *given: Any) -> Any:
        """Evaluate actions, and count the ratios that are clipped."""
        found, progress = self._evaluate(*given), self.algorithm._current_progress_remaining
        ratio = torch.exp(found[1].detach() - self._minibatch.old_log_prob)
        self._shares.append(float(((ratio - 1.0).abs() > self.algorithm.clip_range(progress)).float().mean()))
        return found

    def _add(self, parameter: Any) -> None:
        self._squares[id(parameter) in self._critic] += parameter.grad.square().sum()

    def _before(self, optimizer: Any, *_: Any) -> None:
        self.steps += 1
        actor, critic = map(float, self._squares)
        self._lengths += math.sqrt(actor + critic), math.sqrt(actor)
        self._squares = [0.0, 0.0]
        self._groups = optimizer.param_groups
        if self.critic_rate != 1.0:  # two groups during the step only: checkpoints have as many as before
            optimizer.param_groups = []
            for group, is_critic in product(self._groups, (False, True)):
                own = [each for each in group["params"] if (id(each) in self._critic) == is_critic]
                rate = group["lr"] * (self.critic_rate if is_critic else 1.0)
                optimizer.param_groups.append(group | {"params": own, "lr": rate})

    def _after(self, *_: Any) -> None:
        if self._groups is not None:
            self.policy.optimizer.param_groups, self._groups = self._groups, None


class LearnedRate(BaseCallback):
    """Measure the diagnostics of every rollout, and set all that a model chooses for the update after it.

    Between updates the algorithm has the user's own settings.

    | name | set to it |
    |---|---|
    | `stepsize` | `learning_rate` |
    | `gradient_steps` | `n_epochs`, rounded up; the last epoch ends with the minibatch that makes the number exact |
    | `clip_range` | `clip_range` |
    | `gae_lambda` | the buffer's; returns and advantages are computed again with it |
    | `entropy_weight` | `ent_coef` |
    | `critic_rate` | over the actor's rate, for parameters that are only the critic's; a shared trunk has the actor's |

    Besides the stepper's, a guard stops an update of PPO where the divergence of a minibatch is too large for any model
    (`target_kl`, unless the algorithm has its own): a few gradient steps can destroy a policy before the next proposal.

    Where lambda is chosen, diagnostics of the critic's targets are those of the lambda that the model's learners had, or of
    the algorithm's. The state is saved and loaded with the algorithm: to continue, give a new callback to the loaded algorithm,
    with `reset_num_timesteps=False`.

    Args:
        model: a model, or the name of one that comes with the library, a file or the folder of a run.
        log, outside: as of `metastep.Stepper`; the fallback are the algorithm's own schedules and settings.
        verbose: as in other callbacks.
    """

    def __init__(self, model: ModelSource, log: AnyLog = None, verbose: int = 0, outside: Outside = "fallback") -> None:
        super().__init__(verbose)
        self.rates, self._log, self._outside = rate_model(model), as_log(log), outside
        self.rates.stepper(1, outside, loop={"gradient_steps": 1})  # raises now if something is wrong
        self.stepper: Stepper  # from the start of the training on
        self.measured: dict[str, float] = {}  # of the last update
        self.proposed: list[float] = []  # learning rates
        self.values: dict[str, float] = {}  # of the last proposal, by name
        self._returns: Returns
        self._kept: dict[str, Any]  # saved with the algorithm
        self._has_warned = False
        self._seen: dict[str, Any] = {}  # arrays of the last rollout
        self._update: _Update  # the current one

    def _init_callback(self) -> None:
        algorithm: Any = self.model
        if not isinstance(algorithm, PPO | A2C):
            raise InputError(f"LearnedRate: {type(algorithm).__name__} is not supported, allowed are PPO, A2C.")
        kind = "PPO" if isinstance(algorithm, PPO) else "A2C"
        require_settings(self.rates, f"LearnedRate with {kind}", _SETTINGS[kind])
        if (interrupted := getattr(algorithm.policy, _RUNNING, None)) is not None:
            interrupted.end()

    def _own(self) -> dict[str, Any]:
        """Return what the algorithm would do without a model, by the names of hyperparameters and of `guard.LOOP`."""
        algorithm: Any = self.model
        progress, found = 1.0 - algorithm.num_timesteps / algorithm._total_timesteps, dict[str, Any](critic_rate=1.0)
        found |= {"stepsize": algorithm.lr_schedule(progress), "gae_lambda": algorithm.gae_lambda}
        found |= {"entropy_weight": algorithm.ent_coef, "num_envs": algorithm.n_envs, "discount": algorithm.gamma}
        found |= {"algorithm": "a2c", "batch_steps": algorithm.n_steps * algorithm.n_envs}
        found["actions"] = {"Box": "continuous"}.get(name := type(algorithm.action_space).__name__, name.lower())
        if hasattr(algorithm, "n_epochs"):
            found |= {"algorithm": "ppo", "epochs": algorithm.n_epochs, "minibatch_size": algorithm.batch_size}
            found |= {"gradient_steps": own_steps(found), "clip_range": algorithm.clip_range(progress)}
        return found

    def _on_training_start(self) -> None:
        algorithm: Any = self.model
        total = max(1, math.ceil(self.locals["total_timesteps"] / (algorithm.n_steps * algorithm.n_envs)))
        is_new = not algorithm.num_timesteps
        state = from_json(TypeAdapter(_KEPT), {} if is_new else getattr(algorithm, _STATE, {}), f"checkpoint: {_STATE}")
        # As many episodes as the model's learners had environments, in equal shares.
        each = -(-int(self.rates.record.setting.get("num_envs") or algorithm.n_envs) // algorithm.n_envs)
        self._returns = Returns(algorithm.env, each, state.returns, algorithm._last_episode_starts)
        known, names = self._own() | {"num_updates": total}, self.rates.record.hyperparameters
        how: Any = {"record": state.stepper, "loop": {name: known[name] for name in LOOP if known.get(name)}}
        how["fallback"] = lambda _: {name: own for name, own in self._own().items() if name in names}
        self.stepper = self.rates.stepper(None if state.stepper else total, self._outside, log=self._log, **how)
        self.stepper.num_updates = total  # those made and those to come
        if state.stepper is None and not is_new:
            text = "the algorithm has been trained, but has no record of a stepper, which starts with an empty memory"
            warnings.warn(f"LearnedRate: {text}.", stacklevel=2)
        self.measured = dict(state.measured)
        self._has_warned, self._seen = False, {}
        # The algorithm's own from now on: the callback may serve another one later. The lists change with every step.
        returns = {"ended": self._returns.ended, "paid": self._returns.paid}
        self._kept = {"stepper": self.stepper.record(), "measured": self.measured, "returns": returns}
        setattr(algorithm, _STATE, self._kept)

    def _on_step(self) -> bool:
        scaled: Any = self.model.get_vec_normalize_env()
        rewards = self.locals["rewards"] if scaled is None else scaled.get_original_reward()
        is_unknown = self._returns.add(rewards, self.locals["dones"], self.locals["infos"])
        if is_unknown and not self._has_warned:
            self._has_warned = True
            text = "an episode ended without info['episode'], so its return is the sum of the rewards that the algorithm got"
            warnings.warn(f"LearnedRate: {text}; wrap the environments in Monitor or VecMonitor.", stacklevel=2)
        return True

    def _on_rollout_end(self) -> None:
        algorithm: Any = self.model
        buffer, usual = algorithm.rollout_buffer, self.rates.record.setting["rule"].get("gae_lambda")
        needs = set(self.stepper.needs)
        if isinstance(usual, float) and "gae_lambda" in self.rates.record.hyperparameters and _OF_THE_CRITIC & needs:
            self._compute_returns(usual)
        # The buffer takes new arrays when it is emptied: these stay as they are.
        self._seen = {name: getattr(buffer, name) for name in ("observations", "actions", "log_probs")}
        diagnostics: dict[str, Any] = {"returns": self._returns(), **self.measured}
        if "entropy" in needs:
            diagnostics["entropy"] = self._entropy()
        if _OF_THE_CRITIC & needs:
            diagnostics |= {"values": buffer.values.ravel(), "targets": buffer.returns.ravel()}
        if "parameters" in self.stepper.needs:
            diagnostics["parameters"] = torch.cat([each.detach().flatten() for each in algorithm.policy.parameters()])
        self.values = values = self.stepper(diagnostics).values
        # An algorithm may be saved at any time, and has no hook for it.
        self._kept["stepper"] = self.stepper.record()
        self.proposed.append(values["stepsize"])
        self._update = update = _Update(algorithm, self.stepper.needs)
        update.critic_rate = values.get("critic_rate", 1.0)
        update.set(algorithm, "learning_rate", values["stepsize"])
        update.set(algorithm, "lr_schedule", FloatSchedule(values["stepsize"]))
        is_followed = self.stepper.is_guarded and "fallback" not in self.stepper.guard.names
        if is_followed and isinstance(algorithm, PPO) and algorithm.target_kl is None:
            update.set(algorithm, "target_kl", _TARGET_KL)
        if "clip_range" in values:
            update.set(algorithm, "clip_range", FloatSchedule(values["clip_range"]))
        if "entropy_weight" in values:
            update.set(algorithm, "ent_coef", values["entropy_weight"])
        if "gradient_steps" in values:
            update.most = values["gradient_steps"]
            each = -(-algorithm.n_steps * algorithm.n_envs // algorithm.batch_size)
            update.set(algorithm, "n_epochs", math.ceil(update.most / each))
        if "gae_lambda" in values:
            self._compute_returns(values["gae_lambda"])

    def _compute_returns(self, gae_lambda: float) -> None:
        buffer: Any = self.model.rollout_buffer  # type: ignore[attr-defined]
        before, buffer.gae_lambda = buffer.gae_lambda, gae_lambda
        buffer.compute_returns_and_advantage(last_values=self.locals["values"], dones=self.locals["dones"])
        buffer.gae_lambda = before

    def _on_rollout_start(self) -> None:
        """Measure the last update, with the algorithm's own numbers where it logs them."""
        if not self._seen:
            return
        algorithm: Any = self.model
        logged = algorithm.logger.name_to_value
        divergence = float(logged["train/approx_kl"]) if "train/approx_kl" in logged else self._divergence()
        if getattr(algorithm, "target_kl", None) == _TARGET_KL:
            # What is logged is a mean over minibatches, most of which came before the one that stopped the update.
            divergence = max(divergence, self._update.stopped_at())
        clipped = float(logged.get("train/clip_fraction", 0.0))
        used = float(algorithm.policy.optimizer.param_groups[0]["lr"])
        if used != (rate := self.proposed[-1]):
            warnings.warn(f"LearnedRate: the update used the rate {used:g}, proposed was {rate:g}.", stacklevel=2)
        self.measured |= {"approx_kl": divergence, "clip_fraction": clipped, "rate": used, **self._update.measured()}
        self._update.end()
        self._seen = {}

    _on_training_end = _on_rollout_start

    def _rows(self) -> Iterator[tuple[Any, Any, NDArray[Any]]]:
        """Yield observations and actions of the rollout as tensors, and log probabilities, some rows at a time."""
        seen, device, num = self._seen["observations"], self.model.device, self._seen["log_probs"].size
        for start in range(0, num, _ROWS):

            def some(array: NDArray[Any], start: int = start) -> NDArray[Any]:
                return array.reshape(-1, *array.shape[2:])[start : start + _ROWS]

            observations = {name: some(array) for name, array in seen.items()} if isinstance(seen, dict) else some(seen)
            actions = torch.as_tensor(some(self._seen["actions"]), device=device)
            yield obs_as_tensor(observations, device), actions, some(self._seen["log_probs"])

    @torch.no_grad()
    def _entropy(self) -> float:
        """Return the mean entropy over the rollout of the policy that has just acted."""
        total = 0.0
        for observations, _, _ in self._rows():
            entropy = self.model.policy.get_distribution(observations).entropy()
            if entropy is None:  # there is no formula for it
                return -float(self._seen["log_probs"].mean())
            total += float(entropy.sum())
        return total / self._seen["log_probs"].size

    @torch.no_grad()
    def _divergence(self) -> float:
        """Return the mean of (ratio - 1) - log ratio over the rollout, for an algorithm that does not log it."""
        total = 0.0
        for observations, actions, before in self._rows():
            actions = actions.long().flatten() if isinstance(self.model.action_space, Discrete) else actions
            after = self.model.policy.evaluate_actions(observations, actions)[1].cpu().numpy()
            total += float(np.sum(np.expm1(after - before) - (after - before)))
        return total / self._seen["log_probs"].size


LearnedUpdate = LearnedRate
"""The same, by the name for models that choose more than the rate."""
