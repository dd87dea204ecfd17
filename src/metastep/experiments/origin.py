"""What the files of a run were made from: written down with each of them, and checked by whatever reads them.

A dataset records the settings that shaped it, a model its dataset and configuration; a comparison records the run, its own
place there, and the fingerprints of what it followed. A file of another run, or in the place of another file, is refused.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.provenance import first_difference
from metastep.evaluation import Comparison, load, save
from metastep.experiments.config import parse
from metastep.experiments.data import difference_in_data
from metastep.experiments.folder import RunFolder
from metastep.fqi import Model, load_model
from metastep.mdp.dataset import Dataset, block_checksums

_RESULT = "results/"
_AGAIN = "put back the file of this run, or remove it to have it made again"


def dataset_of(folder: RunFolder, *, verify: bool = True) -> Dataset:
    """The training data of a run, if its configuration asks for such data."""
    dataset = Dataset.open(folder.data, verify=verify)
    if difference := difference_in_data(dataset.config, folder.config, folder.tasks):
        key, before, now = difference
        raise InputError(
            f"Dataset {folder.data} was collected with {key} = {before}, but in this run it is {now}; put back the data of "
            "this run, or remove it to collect it again."
        )
    return dataset


def model_of(folder: RunFolder) -> Model:
    """The model of a run, if it was fitted with this configuration on this data."""
    if not folder.model.exists():
        raise InputError(f"Folder {folder.path} holds no model; run `metastep fit {folder.path}` first.")
    return _fitted_here(folder, folder.model, fingerprint(folder, "data"))


def round_model_of(folder: RunFolder, index: int, data: str | None = None) -> Model:
    """The model that a later round of collection follows, if it was fitted with this configuration on the rounds before it.

    `data` is what their blocks are known by; unless it is given, the manifest of complete data tells it.
    """
    if data is None:
        blocks = list(block_checksums(folder.data).values())
        data = storage.sha256_of_json(blocks[: index * len(blocks) // folder.config.collect.rounds]) if blocks else None
    return _fitted_here(folder, folder.round_model(index), data)


def _fitted_here(folder: RunFolder, path: Path, data: str | None) -> Model:
    model = load_model(path)
    recorded = model.record.configuration.get("experiment")
    try:
        theirs = parse(recorded).to_dict() if isinstance(recorded, dict) else {}
    except InputError as error:
        raise InputError(f"File {path} was fitted with a configuration that is not this run's: {error}") from None
    if difference := first_difference(theirs, folder.config.to_dict()):
        key, before, now = difference
        raise InputError(f"File {path} was fitted with {key} = {before}, but in this run it is {now}; {_AGAIN}.")
    _require(path, "data", model.record.training_data.fingerprint, data)
    return model


def keep(folder: RunFolder, path: Path, comparison: Comparison, uses: Sequence[str] = ()) -> Comparison:
    """Write a comparison of a run with what it was made from; returns it with that.

    `uses` are names of what it followed: "data", "model", or "results/NAME".
    """
    followed = {name: fingerprint(folder, name) or "" for name in uses}
    made_from = {"run": folder.identity, "file": _place(folder, path), **followed}
    comparison = dataclasses.replace(comparison, made_from=made_from)
    storage.create_folder(path.parent)
    save(path, comparison)
    return comparison


def kept(folder: RunFolder, path: Path) -> Comparison:
    """Read a comparison of a run, if it was made there, as what its place says, from what is there now."""
    comparison = load(path)
    made_from = comparison.made_from
    _require(path, "run", made_from.get("run"), folder.identity)
    if made_from.get("file") != _place(folder, path):
        raise InputError(
            f"File {path} was written as {made_from.get('file')!r:.100} and is not in its own place; {_AGAIN}."
        )
    for name, value in made_from.items():
        if name not in ("run", "file"):
            _require(path, name, value, fingerprint(folder, name))
    return comparison


def result_of(folder: RunFolder, method: str) -> Comparison:
    """One method on the test tasks, read from the folder."""
    path = folder.result(method)
    result = kept(folder, path)
    if result.names != (method,):
        raise InputError(
            f"File {path} holds the results of {', '.join(result.names)}, not those of {method}; {_AGAIN}."
        )
    return result


def seal_report(folder: RunFolder, files: Sequence[Path]) -> None:
    """Write down the checksums of a report's files and of the command in it, and which run and comparison they show."""
    command = folder.path / "command.txt"
    files = [*files, *([command] if command.exists() else [])]
    sums = {path.relative_to(folder.path).as_posix(): storage.sha256_of(path) for path in files}
    shows = {"run": folder.identity, "comparison": storage.sha256_of(folder.comparison)}
    content = storage.stamp("report") | {"made_from": shows, "files": sums}
    storage.write_json(folder.path / "report.json", storage.sealed(content))


def read_report(folder: RunFolder) -> dict[str, Any]:
    """What `seal_report` wrote, if the report shows what is there now."""
    path = folder.path / "report.json"
    record = storage.read_sealed(path, "report", f"run `metastep report {folder.path}` again")
    try:
        _require(path, "run", record["made_from"]["run"], folder.identity)
        if folder.comparison.exists():
            _require(path, "comparison", record["made_from"]["comparison"], storage.sha256_of(folder.comparison))
        record["files"] = {str(name): str(checksum) for name, checksum in record["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"File {path} is not a whole report: {type(error).__name__} {error}.") from error
    return record


def fingerprint(folder: RunFolder, name: str) -> str | None:
    """What something in a run is known by; None where it is not there."""
    if name.startswith("models/"):
        model, _, what = name.removeprefix("models/").partition("/")
        return fingerprint(folder.of_model(model), what)
    if name == "data":
        return Dataset.open(folder.data, verify=False).checksum if (folder.data / "manifest.json").exists() else None
    path = folder.model if name == "model" else folder.path / f"{name}.safetensors"
    if name != "model" and not name.startswith(_RESULT):
        raise InputError(f"Folder {folder.path}: nothing there is known as {name!r:.100}.")
    return storage.sha256_of(path) if path.exists() else None


def _require(path: Path, name: str, recorded: str | None, now: str | None) -> None:
    """Refuse what was made from something else than what is there; what is not there is no evidence."""
    if now is not None and recorded != now:
        raise InputError(
            f"File {path} was made from another {name} ({str(recorded)[:16]}) than the one here ({now[:16]}); {_AGAIN}."
        )


def _place(folder: RunFolder, path: Path) -> str:
    return path.relative_to(folder.path).with_suffix("").as_posix()
