"""What the files of a run were made from: recorded with each of them, and checked when they are read.

A dataset records the settings that shaped it, a model its dataset and configuration; a comparison records the run, its own
place there, and the fingerprints of what it followed. A file of another run, or in the place of another file, is refused.
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
    """Return the folder whose lock a writer of a run, of a model within it or of its data holds."""
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
    """Return a recorded configuration; one that this version cannot read is refused as `place`, with what is wrong."""
    try:
        return parse(recorded)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def listed_tasks(file: Path, listed: Any) -> NDArray[np.float32] | None:
    """Return the training tasks listed in a config.json, which may have been edited."""
    with suppress(ValueError):  # of which pydantic's errors are a kind, as are those of rows of different lengths
        tasks = None if listed is None else np.array(_TABLE.validate_python(listed), np.float32)
        if tasks is None or (tasks.ndim == 2 and tasks.size):
            return tasks
    must = "must be null or a list of tasks, each a list of equally many finite numbers"
    raise InputError(f"File {file}: tasks = {shown(listed)} {must}.")


def require_same(recorded: Any, wanted: Any, place: str, now: str, remedy: str) -> None:
    """Refuse a recorded setting that is not the wanted one: `place` has it, `now` it is the other, and the remedy."""
    if found := first_difference(recorded, wanted):
        raise InputError(f"{place} {found[0].removeprefix('experiment.')} = {found[1]}, {now} {found[2]}; {remedy}.")


def data_settings(config: Experiment) -> dict[str, Any]:
    """Return the settings that decide the training data; fitting, selection and comparison may differ on the same data."""
    settings, shaping = config.to_dict(), ["seed", "env", "policy", "initial", "rollout", "meta", "collect"]
    # The blocks of a comparison do not concern the data, unless the data have no block size of their own.
    settings["collect"]["block_size"] = config.collect.block_size or config.rollout.block_size
    if config.collect.rounds > 1:  # later rounds follow a model, which was selected in blocks of a comparison
        settings["compare"] = {"num_updates": settings["compare"]["num_updates"]}
        shaping += ["fqi", "selection", "compare"]
    else:
        settings["meta"] = {name: settings["meta"][name] for name in _OF_META}
        del settings["rollout"]["block_size"], settings["collect"]["exploration"], settings["collect"]["near"]
    return {name: settings[name] for name in shaping}


def require_data(recorded: dict[str, Any], run: Run, place: str, now: str, remedy: str) -> None:
    """Refuse data that were collected with other settings than those of a run."""
    added = ("tasks", "collected_with")  # what a dataset records besides the experiment
    experiment = {name: value for name, value in recorded.items() if name not in added}
    theirs = parsed(f"{place} a configuration that this version cannot read; {remedy}", experiment)
    wanted = data_settings(run.config) | {"tasks": None if run.tasks is None else run.tasks.tolist()}
    require_same(data_settings(theirs) | {"tasks": recorded.get("tasks")}, wanted, place, now, remedy)


def recorded_with_data(run: Run) -> dict[str, Any]:
    """Return what a dataset records: the configuration of the run that began to collect it, or else of this run."""
    with suppress(InputError, KeyError, TypeError, AttributeError):  # there is none, of another run, or damaged
        recorded = storage.read_json(run.data_folder / "manifest.json")["config"]
        require_data(recorded, run, "", "", "")
        return {name: value for name, value in recorded.items() if name != "collected_with"}
    return {**run.record["experiment"], "tasks": run.record["tasks"]}


def find_data(source: Path, run: Run) -> Dataset:
    """Open the complete dataset of another run, or in a folder of its own, if this run would collect the same."""
    folder = source / "data" if (source / "data" / "manifest.json").exists() else source
    if not (folder / "manifest.json").exists():
        raise InputError(f"--data: {source} holds no training data; name a run folder or its subfolder data.")
    dataset = Dataset.open(folder)
    require_data(dataset.config, run, f"--data: {source} was collected with", "which is now", "collect new data")
    return dataset


def copy_data(dataset: Dataset, run: Run) -> None:
    """Copy a dataset into a run that has none; the manifest last, since it says that the rest is there."""
    if (run.data_folder / "manifest.json").exists():
        return
    storage.create_folder(run.data_folder)
    for path in (*sorted(dataset.folder.glob("block-*.safetensors")), dataset.folder / "manifest.json"):
        storage.write_atomically(run.data_folder / path.name, storage.read_bytes(path))


def read_dataset(run: Run, *, verify: bool = True) -> Dataset:
    """Open the training data of a run, if its configuration asks for such data."""
    dataset = Dataset.open(run.data_folder, verify=verify)
    place = f"Dataset {run.data_folder} was collected with"
    require_data(dataset.config, run, place, _HERE, "put back the data of this run, or remove it to collect it again")
    return dataset


def read_model(run: Run) -> Model | SearchedModel:
    """Load the model of a run, if it was learned with this configuration, on this data where it has some."""
    if not run.model_file.exists():
        verb = "search" if run.config.learner == "search" else "fit"
        raise InputError(f"Folder {run.path} holds no model; run `metastep {verb} {run.path}` first.")
    return learned_here(run, run.model_file, fingerprint(run, "data"))


def read_round_model(run: Run, index: int, data: str | None = None) -> Model:
    """Load the model of a later round, if it was fitted with this configuration on earlier rounds, of fingerprint `data`."""
    if data is None:  # as in the manifest of complete data
        blocks = list(block_checksums(run.data_folder).values())
        data = storage.sha256_of_json(blocks[: index * len(blocks) // run.config.collect.rounds]) if blocks else None
    return learned_here(run, run.round_file(index), data)


def learned_here(run: Run, path: Path, data: str | None = None) -> Any:
    """Load a model, if it was learned with the configuration of this run, on this data where it has some."""
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
    followed = {name: fingerprint(run, name) or "" for name in uses}
    comparison = dataclasses.replace(comparison, made_from={"run": run.identity, "file": _place(run, path), **followed})
    storage.create_folder(path.parent)
    save(path, comparison)
    return comparison


def read_comparison(run: Run, path: Path) -> Comparison:
    """Read a comparison of a run, if it was made there, as what its place says, from what is there now."""
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
    """Read one method on the test tasks."""
    result = read_comparison(run, path := run.result_file(method))
    if result.names != (method,):
        held = ", ".join(result.names)
        raise InputError(f"File {path} holds the results of {held}, not those of {method}; {_AGAIN}.")
    return result


def seal_report(run: Run, files: Sequence[Path]) -> None:
    """Record the checksums of a report's files and of the command in it, and which run and comparison they show."""
    known = [path for path in (*files, run.path / "command.txt") if path.exists()]
    sums = {path.relative_to(run.path).as_posix(): storage.sha256_of(path) for path in known}
    shows = {"run": run.identity, "comparison": storage.sha256_of(run.comparison_file)}
    content = storage.stamp("report") | {"made_from": shows, "files": sums}
    storage.write_json(run.path / "report.json", storage.with_checksum(content))


def read_report(run: Run) -> dict[str, Any]:
    """Read what `seal_report` wrote, if the report shows what is there now."""
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
    """Return the checksum of a part of a run; None where it does not exist."""
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
    """Refuse what was made from something else than what is there; what is missing proves nothing."""
    if now is not None and recorded != now:
        made, here = f"another {name} ({str(recorded)[:16]})", f"the one here ({now[:16]})"
        raise InputError(f"File {path} was made from {made} than {here}; {_AGAIN}.")


def _place(run: Run, path: Path) -> str:
    return path.relative_to(run.path).with_suffix("").as_posix()
