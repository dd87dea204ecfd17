"""Parts that the integrations share: which models they accept."""

import os
from collections.abc import Sequence

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
