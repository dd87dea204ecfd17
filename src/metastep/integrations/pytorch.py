"""A learning-rate scheduler of PyTorch whose rates a fitted model proposes, for any optimizer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from metastep._core.errors import InputError, shown
from metastep._core.logs import AnyLog, as_log
from metastep.fqi.guard import Fallback, Outside, Values
from metastep.fqi.stepper import require_bool
from metastep.pretrained import ModelSource, rate_model, require_settings

_LARGEST = 1e4  # ratio of a group's rate to that of the first


class LearnedLR(LRScheduler):
    """Set the rate of an update from diagnostics of the last update and of the current batch.

    Call `step(**diagnostics)` after the batch and before the optimizer's steps of an update; `features.diagnostics.DIAGNOSTICS`
    lists them. `parameters` are the optimizer's, whose groups keep the ratios of their rates; the first gets the proposed one.

    Args:
        optimizer: any of PyTorch's.
        model: a model, or the name of one that comes with the library, a file or the folder of a run.
        num_updates, log, outside, minibatches, loop: as of `metastep.Stepper`.
        fallback: likewise; by default the first rate of the optimizer and the values of `reads`.
        reads: your own values, by name, of the other hyperparameters of the model, which the loop takes from `values` after each
            `step`. A parameter group whose `name` is "critic" gets `critic_rate` times its rate without that.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: ModelSource,
        num_updates: int | None = None,
        log: AnyLog = None,
        *,
        outside: Outside = "fallback",
        minibatches: int | None = None,
        fallback: Fallback = None,
        loop: Values | None = None,
        reads: Values | None = None,
    ) -> None:
        # Without the base class's `__init__`, which would step at once, before there are diagnostics.
        self.optimizer, self._log, self._given, fitted = optimizer, as_log(log), num_updates, rate_model(model)
        has_critic = any(group.get("name") == "critic" for group in optimizer.param_groups)
        if not isinstance(known := {} if reads is None else reads, Mapping):
            raise InputError(f"reads is {shown(reads)}, allowed are your own values by name.")
        settings = ("stepsize", *known, *(["critic_rate"] if has_critic else []))
        remedy = "give your own values of what it takes from `values` in `reads`"
        require_settings(fitted, "LearnedLR", settings, remedy)
        self.values: dict[str, float] = {}  # of the last proposal, by name
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", float(group["lr"]))
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        own = {"stepsize": self.base_lrs[0], "critic_rate": 1.0, **known}
        fallback = {name: own[name] for name in fitted.record.hyperparameters} if fallback is None else fallback
        self.stepper = fitted.stepper(num_updates, outside, None, self._log, minibatches, fallback, loop)
        self._last_lr = self.get_lr()
        self._ratios = [rate / self.base_lrs[0] if self.base_lrs[0] else 1.0 for rate in self.base_lrs]
        if not all(0.0 <= ratio <= _LARGEST for ratio in self._ratios):
            allowed = f"up to {_LARGEST:g} times that of the first"
            raise InputError(f"optimizer: the rates of its groups are {shown(self.base_lrs)}, allowed is {allowed}.")
        self.last_epoch, self._step_count, self._optimizer_steps = -1, 0, 0

        def count(*_: Any) -> None:
            self._optimizer_steps += 1

        optimizer.register_step_post_hook(count)

    def step(self, *, begins: bool = True, **diagnostics: Any) -> None:
        """Propose and set the rate of the next update; if none begins, the rate stays (see `Stepper.__call__`)."""
        require_bool(begins)
        if not begins:
            self.stepper(diagnostics, begins=False)
            return
        if self._step_count == 1 and self._optimizer_steps:
            self.stepper.compare({"gradient_steps": self._optimizer_steps})
        self._optimizer_steps = 0
        # The rate of the optimizer counts, even if other code has changed it.
        diagnostics = {"rate": self.optimizer.param_groups[0]["lr"]} | diagnostics
        if "parameters" in self.stepper.needs:
            every = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
            diagnostics = {"parameters": torch.cat([parameter.detach().flatten() for parameter in every])} | diagnostics
        self.values = self.stepper(diagnostics).values
        for group, ratio in zip(self.optimizer.param_groups, self._ratios, strict=True):
            critic = self.values.get("critic_rate", 1.0) if group.get("name") == "critic" else 1.0
            rate = self.values["stepsize"] * critic * ratio
            if isinstance(group["lr"], torch.Tensor):  # a compiled optimizer keeps reading this tensor
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._now()

    def _now(self) -> None:
        """Update the public fields of schedulers: rates, and updates from 0, as the base class counts them."""
        updates = int(self.stepper.memory.updates)
        self._last_lr, self.last_epoch, self._step_count = self.get_lr(), updates - 1, updates

    def get_lr(self) -> list[float | torch.Tensor]:
        """Return the current rates: only `step` knows the next ones."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON holds it; the rates themselves are in the optimizer's."""
        return {"stepper": self.stepper.record()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        if not isinstance(state_dict, Mapping) or state_dict.get("stepper") is None:
            raise InputError(f"state_dict is {shown(state_dict)}, allowed is the result of `state_dict`.")
        before, record = self.stepper, state_dict["stepper"]
        own = before.minibatches, before.fallback, before.loop
        self.stepper = before.model.stepper(self._given, before.outside, record, self._log, *own)
        self._now()
