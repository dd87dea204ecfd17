"""Provenance: every file of a run records what it was made from, and this is checked when the file is read.

A dataset records the settings that affect it, a model its dataset and configuration; a comparison records the run, its own path
there, and the fingerprints of the models and results it used. A file of another run, or under another name, is an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter

from metastep._core import storage
from metastep._core.errors import InputError, shown
from metastep._core.provenance import first_difference
from metastep._core.settings import Float
from metastep.evaluation import Comparison, load, save
from metastep.experiments.config import parse
from metastep.experiments.schema import Experiment
from metastep.fqi import Model
from metastep.mdp.dataset import Dataset, block_checksums
from metastep.search import SearchedModel, load_model

if TYPE_CHECKING:
    from metastep.experiments.run import Run

_HERE = "but in this run it is"
_AGAIN = "put back the file of this run, or remove it to compute it again"
_TABLE = TypeAdapter(list[list[Float]], config=ConfigDict(strict=True, allow_inf_nan=False))
_OF_META = ("num_updates", "rule", "stepsize_low", "stepsize_high", "stepsize_scale", "ranges", "choices")


def lock_folder(path: Path) -> Path:
    """Return the folder whose lock protects a path: that of the whole run for its data and for the models within it."""
    place = path.resolve()
    for inside, run in ((place.name == "data", place.parent), (place.parent.name == "models", place.parent.parent)):
        if inside and (run / "config.json").exists():
            return lock_folder(run)
    return place


def read_config(file: Path) -> dict[str, Any]:
    """Read the config.json of a run."""
    record = storage.read_checked_json(file, "run", "start it again in another folder")
    keys = {*storage.stamp("run"), "experiment", "tasks", "checksum"}
    if set(record) != keys or not isinstance(record["experiment"], dict):
        raise InputError(f"File {file} was not written by metastep: it must hold the keys experiment and tasks.")
    return record


def parsed(place: str, recorded: Any) -> Experiment:
    """Parse a recorded configuration; errors begin with `place`."""
    try:
        return parse(recorded)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def listed_tasks(file: Path, listed: Any) -> NDArray[np.float32] | None:
    """Return the training tasks listed in a config.json; the file may have been edited."""
    with suppress(ValueError):  # pydantic's errors, and NumPy's for rows of different lengths
        tasks = None if listed is None else np.array(_TABLE.validate_python(listed), np.float32)
        if tasks is None or (tasks.ndim == 2 and tasks.size):
            return tasks
    must = "must be null or a list of tasks, each a list of equally many finite numbers"
    raise InputError(f"File {file}: tasks = {shown(listed)} {must}.")


def require_same(recorded: Any, wanted: Any, place: str, now: str, remedy: str) -> None:
    """Raise an error at the first setting that differs: "{place} NAME = RECORDED, {now} WANTED; {remedy}."."""
    if difference := first_difference(recorded, wanted):
        name, old, new = difference
        raise InputError(f"{place} {name.removeprefix('experiment.')} = {old}, {now} {new}; {remedy}.")


def data_settings(config: Experiment) -> dict[str, Any]:
    """Return the settings that the training data depend on, unlike most of those of fitting, selection and comparison."""
    settings, relevant = config.to_dict(), ["seed", "env", "policy", "initial", "rollout", "meta", "collect"]
    # The block size of a comparison matters only if data collection has none of its own.
    settings["collect"]["block_size"] = config.collect.block_size or config.rollout.block_size
    if config.collect.rounds > 1:  # later rounds follow a model, which was selected in blocks of a comparison
        settings["compare"] = {"num_updates": settings["compare"]["num_updates"]}
        relevant += ["fqi", "selection", "compare"]
    else:
        settings["meta"] = {name: settings["meta"][name] for name in _OF_META}
        del settings["rollout"]["block_size"], settings["collect"]["exploration"], settings["collect"]["near"]
    return {name: settings[name] for name in relevant}


def require_data(recorded: dict[str, Any], run: Run, place: str, now: str, remedy: str) -> None:
    """Raise an error if data were collected with other settings than those of a run; texts are those of `require_same`."""
    added = ("tasks", "collected_with")  # what a dataset records besides the experiment
    experiment = {name: value for name, value in recorded.items() if name not in added}
    theirs = parsed(f"{place} a configuration that this version cannot read; {remedy}", experiment)
    wanted = data_settings(run.config) | {"tasks": None if run.tasks is None else run.tasks.tolist()}
    require_same(data_settings(theirs) | {"tasks": recorded.get("tasks")}, wanted, place, now, remedy)


def recorded_with_data(run: Run) -> dict[str, Any]:
    """Return the configuration that a dataset records: that of the run that started collecting it, by default this run."""
    with suppress(InputError, KeyError, TypeError, AttributeError):  # missing, damaged, or of another run
        recorded = storage.read_json(run.data_folder / "manifest.json")["config"]
        require_data(recorded, run, "", "", "")
        return {name: value for name, value in recorded.items() if name != "collected_with"}
    return {**run.record["experiment"], "tasks": run.record["tasks"]}


def find_data(source: Path, run: Run) -> Dataset:
    """Open the complete dataset of another run, or of a folder; it must be what this run would collect."""
    folder = source / "data" if (source / "data" / "manifest.json").exists() else source
    if not (folder / "manifest.json").exists():
        raise InputError(f"--data: {source} holds no training data; name a run folder or its subfolder data.")
    dataset = Dataset.open(folder)
    require_data(dataset.config, run, f"--data: {source} was collected with", "which is now", "collect new data")
    return dataset


def copy_data(dataset: Dataset, run: Run) -> None:
    """Copy a dataset into a run that has none; the manifest last, because it marks the data as complete."""
    if (run.data_folder / "manifest.json").exists():
        return
    storage.create_folder(run.data_folder)
    for path in (*sorted(dataset.folder.glob("block-*.safetensors")), dataset.folder / "manifest.json"):
        storage.write_atomically(run.data_folder / path.name, storage.read_bytes(path))


def read_dataset(run: Run, *, verify: bool = True) -> Dataset:
    """Open the training data of a run; they must have been collected with its configuration."""
    dataset = Dataset.open(run.data_folder, verify=verify)
    place = f"Dataset {run.data_folder} was collected with"
    require_data(dataset.config, run, place, _HERE, "put back the data of this run, or remove it to collect it again")
    return dataset


def read_model(run: Run) -> Model | SearchedModel:
    """Load the model of a run; it must have been learned with this configuration and, if fitted, on this data."""
    if not run.model_file.exists():
        verb = "search" if run.config.learner == "search" else "fit"
        raise InputError(f"Folder {run.path} holds no model; run `metastep {verb} {run.path}` first.")
    return learned_here(run, run.model_file, fingerprint(run, "data"))


def read_round_model(run: Run, index: int, data: str | None = None) -> Model:
    """Load the model of a later round; it must have been fitted with this configuration on the data of fingerprint `data`."""
    if data is None:  # as in the manifest of complete data
        blocks = list(block_checksums(run.data_folder).values())
        data = storage.sha256_of_json(blocks[: index * len(blocks) // run.config.collect.rounds]) if blocks else None
    return learned_here(run, run.round_file(index), data)


def learned_here(run: Run, path: Path, data: str | None = None) -> Any:
    """Load a model; it must have been learned with the configuration of this run and, if fitted, on this data."""
    model = load_model(path)
    recorded, place = model.record.configuration.get("experiment"), f"File {path} was fitted with"
    theirs: dict[str, Any] = {}
    if isinstance(recorded, dict):
        theirs = parsed(f"{place} a configuration that is not this run's", recorded).to_dict()
    require_same(theirs, run.config.to_dict(), place, _HERE, _AGAIN)
    if isinstance(model, Model):
        _require(path, "data", model.record.training_data.fingerprint, data)
    return model


def write_comparison(run: Run, path: Path, comparison: Comparison, uses: Sequence[str] = ()) -> Comparison:
    """Write a comparison with what it was made from: `uses` are "data", "model", "models/NAME/model" or "results/NAME"."""
    used = {name: fingerprint(run, name) or "" for name in uses}
    comparison = dataclasses.replace(comparison, made_from={"run": run.identity, "file": _place(run, path), **used})
    storage.create_folder(path.parent)
    save(path, comparison)
    return comparison


def read_comparison(run: Run, path: Path) -> Comparison:
    """Read a comparison of a run; it must have been written there under this name, from files that are still the same."""
    comparison = load(path)
    made_from = comparison.made_from
    _require(path, "run", made_from.get("run"), run.identity)
    if (place := made_from.get("file")) != _place(run, path):
        raise InputError(f"File {path} was written as {place!r:.100} and is not in its own place; {_AGAIN}.")
    for name, value in made_from.items():
        if name not in ("run", "file"):
            _require(path, name, value, fingerprint(run, name))
    return comparison


def read_result(run: Run, method: str) -> Comparison:
    """Read the results of one method on the test tasks."""
    result = read_comparison(run, path := run.result_file(method))
    if result.names != (method,):
        held = ", ".join(result.names)
        raise InputError(f"File {path} holds the results of {held}, not those of {method}; {_AGAIN}.")
    return result


def seal_report(run: Run, files: Sequence[Path]) -> None:
    """Write report.json: the checksums of the report's files, of the command, and of the run and comparison that it shows."""
    existing = [path for path in (*files, run.path / "command.txt") if path.exists()]
    sums = {path.relative_to(run.path).as_posix(): storage.sha256_of(path) for path in existing}
    shows = {"run": run.identity, "comparison": storage.sha256_of(run.comparison_file)}
    content = storage.stamp("report") | {"made_from": shows, "files": sums}
    storage.write_json(run.path / "report.json", storage.with_checksum(content))


def read_report(run: Run) -> dict[str, Any]:
    """Read what `seal_report` wrote; the report must show the current comparison."""
    path = run.path / "report.json"
    record = storage.read_checked_json(path, "report", f"run `metastep report {run.path}` again")
    try:
        _require(path, "run", record["made_from"]["run"], run.identity)
        if run.comparison_file.exists():
            _require(path, "comparison", record["made_from"]["comparison"], storage.sha256_of(run.comparison_file))
        record["files"] = {str(name): str(checksum) for name, checksum in record["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"File {path} is not a whole report: {type(error).__name__} {error}.") from error
    return record


def fingerprint(run: Run, name: str) -> str | None:
    """Return the checksum of a part of a run; None if it does not exist."""
    if name.startswith("models/"):
        model, _, what = name.removeprefix("models/").partition("/")
        return fingerprint(run.of_model(model), what)
    if name == "data":
        exists = (run.data_folder / "manifest.json").exists()
        return Dataset.open(run.data_folder, verify=False).checksum if exists else None
    if name != "model" and not name.startswith(("results/", "levels/")):
        raise InputError(f"Folder {run.path}: nothing there is known as {name!r:.100}.")
    path = run.model_file if name == "model" else run.path / f"{name}.safetensors"
    return storage.sha256_of(path) if path.exists() else None


def _require(path: Path, name: str, recorded: str | None, now: str | None) -> None:
    """Raise an error if a file was made from something else than what exists now; None is not compared."""
    if now is not None and recorded != now:
        made, here = f"another {name} ({str(recorded)[:16]})", f"the one here ({now[:16]})"
        raise InputError(f"File {path} was made from {made} than {here}; {_AGAIN}.")


def _place(run: Run, path: Path) -> str:
    return path.relative_to(run.path).with_suffix("").as_posix()
