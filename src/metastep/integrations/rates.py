"""Parts that the integrations share: which models they accept, and a warning when a loop differs from the model's own."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from metastep._core.errors import InputError
from metastep.fqi.base import AnyModel
from metastep.pretrained import load

ModelSource = str | os.PathLike[str] | AnyModel
"""A model, or the name of one that comes with the library, a file or the folder of a run."""
_RULES = ("ppo", "a2c")  # whose step is a learning rate


def rate_model(source: ModelSource) -> AnyModel:
    """Return or load a model; refuse one whose step is not a learning rate."""
    model = source if isinstance(source, AnyModel) else load(source)
    if (rule := model.record.rule_name) not in _RULES:
        allowed = f"allowed are {', '.join(_RULES)}"
        raise InputError(f"model: it was fitted for the rule {rule!r}, whose step is not a learning rate; {allowed}.")
    return model


def require_settings(model: AnyModel, loop: str, settings: Sequence[str] = ("stepsize",), instead: str = "") -> None:
    """Refuse a model that chooses a hyperparameter for which a loop has no setting; `instead` says what to do."""
    if missing := [name for name in model.record.hyperparameters if name not in settings]:
        others = f"{', '.join(missing)} as well, for which there is no setting here"
        raise InputError(f"{loop}: the model chooses {others}; {instead or 'call its stepper in a loop of your own'}.")


def warn_of_differences(model: AnyModel, loop: str, own: Mapping[str, Any]) -> None:
    """Warn where a loop differs from those that a model was fitted on, as far as both are known."""
    setting = model.record.setting
    rule, batch = setting["rule"], (setting.get("num_envs") or 0) * (setting.get("num_steps") or 0)
    epochs, minibatch = rule.get("epochs"), rule.get("minibatch_size")
    known = {
        "algorithm": rule.get("name"),
        "steps of a batch": batch,
        "epochs": epochs,
        "minibatch": minibatch,
        "gradient steps of an update": epochs * batch // minibatch if epochs and minibatch else None,
        "discount": setting.get("discount"),
    }
    both = [(name, own[name], value) for name, value in known.items() if value and own.get(name) is not None]
    if unlike := [f"{name} {mine} (there {theirs})" for name, mine, theirs in both if mine != theirs]:
        text = f"{loop}: the model was fitted on other loops, this one has {', '.join(unlike)}."
        warnings.warn(text, stacklevel=3)


def batch_size(diagnostics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps of a batch, if the diagnostics (`as_diagnostics`) show them."""
    sizes = [int(diagnostics[name].size) for name in ("values", "targets") if name in diagnostics]
    return {"steps of a batch": sizes[0]} if sizes else {}
