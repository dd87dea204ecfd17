"""`metastep check`: verify that a folder holds what metastep wrote there, whole and of one run, and nothing else."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.locks import LOCK, writer
from metastep._core.provenance import first_difference
from metastep.experiments.provenance import read_comparison, read_dataset, read_report, read_result, read_round_model
from metastep.experiments.run import Run, lock_folder
from metastep.experiments.stages import read_compared, read_fitted, read_times
from metastep.mdp.dataset import Dataset, block_checksums

_Checks = dict[Path, Callable[[], object]]
# Folders that a stopped process may leave empty.
_OWN = {"data", "results", "figures", "extra", "runs", "rounds", "models"}


class Finding(NamedTuple):
    """A file and its problem; "" where it is as it was written."""

    path: Path
    problem: str = ""


def check_folder(path: Path, *, allow_imports: bool = False) -> list[Finding]:
    """Verify everything in the folder of a run or of a dataset; findings are in the order of the names."""
    if (path / "config.json").exists():
        checks = _run(path, allow_imports)
    elif (path / "manifest.json").exists():
        checks = _data(path, lambda: Dataset.open(path, verify=False))
    else:
        raise InputError(f"check: {path} is not the folder of a run or of a dataset.")
    findings, busy = [_verified(file, check) for file, check in checks.items()], busy_in(path)
    for file in _files(path):
        if file not in checks and not (busy and _leftover(file)):
            findings.append(Finding(file, _leftover(file) or "was not written by metastep."))
    return sorted(findings)


def busy_in(path: Path) -> str:
    """Return which process writes in a folder now; what it has not finished is not damaged."""
    return writer(lock_folder(path)) if path.is_dir() else ""


def _files(folder: Path) -> list[Path]:
    """Return all files and links, and empty folders other than those that a stopped process may leave."""
    found = []
    for root, names, files in os.walk(folder):
        place = Path(root)
        found += [place / name for name in (*files, *(name for name in names if (place / name).is_symlink()))]
        if not (names or files or place == folder or place.name in _OWN):
            found.append(place)
    return found


def _verified(path: Path, check: Callable[[], object]) -> Finding:
    if path.is_symlink():
        return Finding(path, "is a link, a plain file is needed.")
    if not path.exists():
        return Finding(path, "is missing.")
    try:
        check()
    except InputError as error:
        return Finding(path, str(error))
    return Finding(path)


def _leftover(path: Path) -> str:
    """Return what a stopped or running process left here; "" where it is something else."""
    if storage.is_temporary(path.name) or path.name == LOCK:
        return "is a leftover of a process that was stopped; the next run removes it."
    if path.name.startswith("part-") and path.parent.name == "data":
        return "is a part of a block that is not complete; the command that collects continues with it."
    return ""


def _run(path: Path, allow_imports: bool) -> _Checks:
    checks: _Checks = {path / "config.json": partial(Run.open, path)}
    try:
        run = Run.open(path)
    except InputError:
        return dict.fromkeys(_files(path), _refuse_without_config) | checks
    run.importing(allow_imports)  # whose refusal says nothing of the files
    is_compared, is_reported = run.comparison_file.exists(), run.report_file.exists()
    optional: _Checks = {
        path / "command.txt": partial(_require_command, path / "command.txt"),
        path / "times.json": partial(read_times, path),
        **{run.round_file(i): partial(read_round_model, run, i) for i in range(1, run.config.collect.rounds)},
        **{file: partial(read_comparison, run, file) for file in sorted((path / "extra").glob("*.safetensors"))},
    }
    results: _Checks = {run.result_file(name): partial(read_result, run, name) for name in run.config.compare.names}
    checks |= {file: check for file, check in (optional | results).items() if file.exists()}
    if is_compared or is_reported:
        checks[run.comparison_file] = partial(read_compared, run)
    checks |= results if is_compared else {}
    followed = run.models_needed if is_compared or is_reported else ()
    for name in ("", *run.config.models):
        own = run.of_model(name)
        if name and own.path.exists():
            checks |= _run(own.path, allow_imports) | {own.path / "config.json": partial(_require_model, own)}
        is_fitted = name in followed or (not name and (own.model_file.exists() or own.validation_file.exists()))
        if is_fitted:
            checks[own.model_file] = partial(read_fitted, own)
            checks[own.validation_file] = partial(read_comparison, own, own.validation_file)
        if is_fitted or own.data_folder.exists():
            checks |= _data(own.data_folder, partial(read_dataset, own, verify=False))
    if is_reported or (path / "report.json").exists():
        checks[path / "report.json"] = partial(read_report, run)
        try:
            listed = read_report(run)["files"]
        except InputError:
            listed = {}
        checks |= {path / name: partial(_require_checksum, path / name, checksum) for name, checksum in listed.items()}
    return checks


def _data(folder: Path, opened: Callable[[], object]) -> _Checks:
    """Return checks of the manifest and the blocks that it lists; while it lists none, of those that are there."""
    checks: _Checks = {folder / "manifest.json": opened}
    try:
        sums: dict[Path, str | None] = dict(block_checksums(folder))
    except InputError:
        return checks
    if not sums:
        sums = dict.fromkeys(folder.glob("block-*.safetensors"))
        if busy_in(folder):
            checks = {folder / "manifest.json": partial(block_checksums, folder)}
    return checks | {block: partial(storage.read_tensors, block, checksum) for block, checksum in sums.items()}


def _require_model(own: Run) -> None:
    """Refuse the run of a model within a run whose configuration is not what the whole says."""
    if difference := first_difference(Run.open(own.path).config.to_dict(), own.config.to_dict()):
        key, before, now = difference
        raise InputError(f"File {own.path / 'config.json'} has {key} = {before}, but in this run it is {now}.")


def _require_command(path: Path) -> None:
    """Refuse what is not one command; only a report holds the file's checksum."""
    text = storage.read_bytes(path)
    if not (text.startswith(b"metastep ") and text.find(b"\n") == len(text) - 1):
        raise InputError(f"File {path} was not written by metastep: it must hold one command, `metastep ...`.")


def _require_checksum(file: Path, checksum: str) -> None:
    if (found := storage.sha256_of(file)) != checksum:
        raise InputError(f"File {file} is damaged or was edited: its SHA-256 is {found}, expected is {checksum}.")


def _refuse_without_config() -> None:
    raise InputError("cannot be verified without a sound config.json.")
