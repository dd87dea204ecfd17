"""Models that come with the library: a file and a card each, in this folder; and which models the integrations accept."""

import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from metastep._core.errors import InputError, not_registered
from metastep.fqi import Model
from metastep.fqi.base import AnyModel
from metastep.search import SearchedModel, load_model

ModelSource = str | os.PathLike[str] | AnyModel
"""A model, or the name of one that comes with the library, a file or the folder of a run."""
_RULES = ("ppo", "a2c")  # whose step is a learning rate

_MODEL, _CARD = ".safetensors", ".md"


def folder() -> Path:
    """Return the folder of the models."""
    return Path(str(resources.files("metastep.pretrained")))


def names() -> tuple[str, ...]:
    """Return the names of the models that come with the library."""
    return tuple(sorted(file.name.removesuffix(_MODEL) for file in folder().glob(f"*{_MODEL}")))


def card(name: str) -> str:
    """Return the card of a model: its training data and results."""
    if name not in names():
        raise not_registered("model", name, names(), "does not come with the library")
    return (folder() / f"{name}{_CARD}").read_text("utf-8")


def load(source: str | os.PathLike[str]) -> Model | SearchedModel:
    """Load a model that comes with the library by its name, or that of a file or the folder of a run."""
    if isinstance(source, str) and source in names():
        return load_model(folder() / f"{source}{_MODEL}")
    path = Path(source)
    if path.exists() or path.suffix or len(path.parts) > 1:
        return load_model(path)
    raise not_registered("model", str(source), names(), "is neither a file nor a model that comes with the library")


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
