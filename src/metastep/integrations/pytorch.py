"""A learning-rate scheduler of PyTorch whose rates a fitted model proposes, for any optimizer."""

import os
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from metastep.fqi import Model
from metastep.integrations.rates import rate_model
from metastep.logs import Log, as_log


class LearnedLR(LRScheduler):
    """Sets the rate of an update from what is told of the last one and of the current batch.

    Call `step(**diagnostics)` after the batch and before the optimizer's steps of an update; see
    `metastep.diagnostics.DIAGNOSTICS`. The parameters need not be told: they are the optimizer's. Parameter groups keep the
    ratios of the rates that they began with; the first one gets the rate that is proposed.

    Args:
        optimizer: any of PyTorch's.
        model: a model, or the name of one that comes with the library, a file or the folder of a run.
        num_updates: updates to come; None takes as many as the learners that the model was fitted on.
        log: is told of every update (`metastep.logs`); a path is a CSV file.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: str | os.PathLike[str] | Model,
        num_updates: int | None = None,
        log: Log | str | os.PathLike[str] | None = None,
    ) -> None:
        # Not the base class's: it would step at once, before there is anything to tell.
        self.optimizer = optimizer
        self._log = as_log(log)
        self.stepper = rate_model(model).stepper(num_updates, log=self._log)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.base_lrs, self._last_lr = [*rates], [*rates]
        self._ratios = [rate / rates[0] if rates[0] else 1.0 for rate in rates]

    def step(self, **diagnostics: Any) -> None:  # type: ignore[override]
        """Propose the rate of the update that comes now, and set it."""
        # What the optimizer says is true, also where somebody else has changed it; a first rate means nothing.
        diagnostics = {"rate": self.optimizer.param_groups[0]["lr"]} | diagnostics
        if self.stepper.needs_parameters:
            every = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
            flat = torch.cat([parameter.detach().flatten() for parameter in every])
            diagnostics = {"parameters": flat} | diagnostics
        rate = self.stepper(diagnostics).stepsize
        for group, ratio in zip(self.optimizer.param_groups, self._ratios, strict=True):
            if isinstance(group["lr"], torch.Tensor):  # of a compiled optimizer, which keeps looking at this one
                group["lr"].fill_(rate * ratio)
            else:
                group["lr"] = rate * ratio
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered, as JSON holds it; the rate itself is in the optimizer's."""
        return {"stepper": self.stepper.record(), "ratios": self._ratios}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.stepper = self.stepper.model.stepper(record=state_dict["stepper"], log=self._log)
        self._ratios = list(state_dict["ratios"])
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]
