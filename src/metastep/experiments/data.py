"""The training data of a run: which settings shape it, and how a run takes over the data of another."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.provenance import first_difference
from metastep.experiments.config import parse
from metastep.experiments.folder import RunFolder
from metastep.experiments.schema import Experiment
from metastep.mdp.dataset import Dataset

_SECTIONS = ("seed", "env", "policy", "initial", "rollout", "meta", "collect")
_OF_META = ("num_updates", "rule", "stepsize_low", "stepsize_high", "stepsize_scale", "ranges")
_ADDED = ("tasks", "collected_with")  # what a dataset records besides the experiment


def data_settings(config: Experiment) -> dict[str, Any]:
    """The settings that decide the training data; fitting, selection and comparison may differ on the same data."""
    settings = config.to_dict()
    shaping: tuple[str, ...] = _SECTIONS
    if config.collect.rounds > 1:  # later rounds follow a model
        settings["compare"] = {"num_updates": settings["compare"]["num_updates"]}
        shaping += ("fqi", "selection", "compare")
    else:
        settings["meta"] = {name: settings["meta"][name] for name in _OF_META}
        for name in ("exploration", "near"):
            del settings["collect"][name]
    # The blocks of a comparison do not concern the data, unless the data have none of their own.
    block_size = settings["rollout"]["block_size"]
    if config.collect.rounds == 1:  # the blocks of validation select what later rounds follow
        del settings["rollout"]["block_size"]
    settings["collect"]["block_size"] = settings["collect"]["block_size"] or block_size
    return {name: settings[name] for name in shaping}


def recorded_with(folder: RunFolder) -> dict[str, Any]:
    """What goes on record with a folder's data: its configuration, or the one that the data there was collected with.

    A configuration that asks for other data is not passed on: the dataset's own check then says what differs.
    """
    own = folder.recorded() | {"tasks": _listed(folder.tasks)}
    if not (folder.data / "manifest.json").exists():
        return own
    there = storage.read_json(folder.data / "manifest.json")
    recorded = there.get("config") if isinstance(there, dict) else None
    if not isinstance(recorded, dict) or difference_in_data(recorded, folder.config, folder.tasks):
        return own
    return {name: value for name, value in recorded.items() if name != "collected_with"}


def find_data(source: Path, config: Experiment, tasks: NDArray[np.float32] | None) -> Dataset:
    """The complete dataset of another run, or in a folder of its own, if this configuration would collect the same."""
    folder = source / "data" if (source / "data" / "manifest.json").exists() else source
    if not (folder / "manifest.json").exists():
        raise InputError(f"--data: {source} holds no training data; name a run folder or its subfolder data.")
    dataset = Dataset.open(folder)
    if difference := difference_in_data(dataset.config, config, tasks):
        key, before, now = difference
        raise InputError(f"--data: {source} was collected with {key} = {before}, which is now {now}; collect anew.")
    return dataset


def take_over(dataset: Dataset, folder: RunFolder) -> None:
    """Copy a dataset into a run folder that has none; the manifest last, since it says that the rest is there."""
    if (folder.data / "manifest.json").exists():
        return
    storage.create_folder(folder.data)
    blocks = sorted(dataset.folder.glob("block-*.safetensors"))
    for path in (*blocks, dataset.folder / "manifest.json"):
        storage.write_atomically(folder.data / path.name, storage.read_bytes(path))


def _listed(tasks: NDArray[np.float32] | None) -> list[Any] | None:
    return None if tasks is None else tasks.tolist()


def difference_in_data(
    recorded: dict[str, Any], config: Experiment, tasks: NDArray[np.float32] | None
) -> tuple[str, str, str] | None:
    """The first setting that shapes data and differs: its name, as it was recorded and as it is now."""
    try:
        theirs = parse({name: value for name, value in recorded.items() if name not in _ADDED})
    except InputError as error:
        return "configuration", f"one that this version cannot read ({error})", "another"
    before = data_settings(theirs) | {"tasks": recorded.get("tasks")}
    return first_difference(before, data_settings(config) | {"tasks": _listed(tasks)})
