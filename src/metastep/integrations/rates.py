"""What the layers for other frameworks share: a model that proposes one number, the rate."""

import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from metastep._core.errors import InputError
from metastep.fqi import Model
from metastep.pretrained import load

_RULES = ("ppo", "a2c")
"""Update rules whose step is a learning rate."""


def rate_model(source: str | os.PathLike[str] | Model) -> Model:
    """A model, or that of a name, a file or the folder of a run; refused where it proposes something else than a rate."""
    model = source if isinstance(source, Model) else load(source)
    if model.record.directions:
        raise InputError(
            f"model: it chooses among {', '.join(model.record.directions)} as well, allowed here is one that proposes the "
            "rate only; call its stepper in a loop of your own."
        )
    rule = (model.record.setting.get("rule") or {}).get("name")
    if rule not in _RULES:
        raise InputError(
            f"model: it was fitted for the rule {rule!r}, whose step is not a learning rate; allowed are {', '.join(_RULES)}."
        )
    return model


def warn_of_differences(model: Model, loop: str, own: Mapping[str, Any], stacklevel: int = 2) -> None:
    """Say how a loop differs from those that a model was fitted on, as far as both are known."""
    setting = model.record.setting
    rule = setting["rule"]
    batch = (setting.get("num_envs") or 0) * (setting.get("num_steps") or 0) or None
    epochs, minibatch = rule.get("epochs"), rule.get("minibatch_size")
    known = {
        "algorithm": rule.get("name"),
        "steps of a batch": batch,
        "epochs": epochs,
        "minibatch": minibatch,
        "gradient steps of an update": epochs * batch // minibatch if epochs and batch and minibatch else None,
        "discount": setting.get("discount"),
    }
    unlike = [
        f"{name} {own[name]} (there {value})"
        for name, value in known.items()
        if value is not None and own.get(name) is not None and own[name] != value
    ]
    if unlike:
        sentence = f"{loop}: the model was fitted on other loops, this one has {', '.join(unlike)}."
        warnings.warn(sentence, stacklevel=stacklevel + 1)


def seen_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """What the diagnostics of a loop say about it: how many steps its batches have."""
    sizes = [int(np.prod(np.shape(told[name]))) for name in ("values", "targets") if name in told]
    return {"steps of a batch": sizes[0]} if sizes else {}
