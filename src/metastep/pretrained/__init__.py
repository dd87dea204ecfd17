"""Models that come with the library: a file and a card each, in this folder."""

import os
from importlib import resources
from pathlib import Path

from metastep._core.errors import not_registered
from metastep.fqi import Model
from metastep.search import SearchedModel, load_model

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
