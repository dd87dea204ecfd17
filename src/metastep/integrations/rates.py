"""What the layers for other frameworks share: a model that proposes one number, the rate."""

import os
from typing import Any

from metastep.errors import InputError
from metastep.fqi import Model
from metastep.pretrained import load


def rate_model(source: str | os.PathLike[str] | Model) -> Model:
    """A model, or that of a name, a file or the folder of a run; refused where it chooses more than a rate."""
    model = source if isinstance(source, Model) else load(source)
    if model.record.directions:
        raise InputError(
            f"model: it chooses among {', '.join(model.record.directions)} as well, allowed here is one that proposes the "
            "rate only; call its stepper in a loop of your own."
        )
    return model


def differences(model: Model, own: dict[str, Any]) -> str:
    """How a loop differs from those that a model was fitted on, as far as both are known; empty where it does not."""
    setting = model.record.setting
    rule = dict(setting.get("rule") or {})
    known = {
        "algorithm": rule.get("name"),
        "steps of a batch": (setting.get("num_envs") or 0) * (setting.get("num_steps") or 0) or None,
        "epochs": rule.get("epochs"),
        "minibatch": rule.get("minibatch_size"),
        "discount": setting.get("discount"),
    }
    unlike = [
        f"{name} {own[name]} (there {value})"
        for name, value in known.items()
        if value is not None and own.get(name) is not None and own[name] != value
    ]
    return ", ".join(unlike)
