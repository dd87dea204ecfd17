"""`metastep check`: whether a folder holds what metastep wrote there, whole and of one origin, and nothing else."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.locks import LOCK, writer
from metastep._core.provenance import first_difference
from metastep.experiments.provenance import read_comparison, read_dataset, read_report, read_result, read_round_model
from metastep.experiments.run import Run, lock_folder
from metastep.experiments.stages import read_compared, read_fitted
from metastep.experiments.times import read_times, times_file
from metastep.mdp.dataset import Dataset, block_checksums

_Checks = dict[Path, Callable[[], object]]
# Folders that a process which is stopped may leave empty.
_OWN = {"data", "results", "figures", "extra", "runs", "rounds", "models"}


class Finding(NamedTuple):
    """A file, and what is wrong with it; nothing where it is as it was written."""

    path: Path
    problem: str = ""


def check_folder(path: Path, *, allow_imports: bool = False) -> list[Finding]:
    """Everything in the folder of a run or of a dataset, in the order of the names."""
    if (path / "config.json").exists():
        checks = _run(path, allow_imports)
    elif (path / "manifest.json").exists():
        checks = _data(path, lambda: Dataset.open(path, verify=False))
    else:
        raise InputError(f"check: {path} is not the folder of a run or of a dataset.")
    busy = busy_in(path)
    strays = [file for file in _files(path) if file not in checks and not (busy and _leftover(file))]
    findings = [_verified(file, check) for file, check in checks.items()]
    return sorted([*findings, *(Finding(file, _leftover(file) or "was not written by metastep.") for file in strays)])


def busy_in(path: Path) -> str:
    """Who writes in a folder now; what they have not finished is not damaged."""
    return writer(lock_folder(path)) if path.is_dir() else ""


def _files(folder: Path) -> Iterator[Path]:
    """Everything but folders that hold something, and those in which we had no time to write something."""
    for root, names, files in os.walk(folder):
        place = Path(root)
        yield from (place / name for name in files)
        yield from (place / name for name in names if (place / name).is_symlink())
        if not (names or files or place == folder or place.name in _OWN):
            yield place


def _verified(path: Path, check: Callable[[], object]) -> Finding:
    try:
        if path.is_symlink():
            raise InputError("is a link, a plain file is needed.")
        if not path.exists():
            raise InputError("is missing.")
        check()
    except InputError as error:
        return Finding(path, str(error))
    return Finding(path)


def _leftover(path: Path) -> str:
    """What of a process this is that was stopped, or has not ended yet; nothing where it is neither."""
    if storage.is_temporary(path.name) or path.name == LOCK:
        return "is a leftover of a process that was stopped; the next run removes it."
    if path.name.startswith("part-") and path.parent.name == "data":
        return "is a part of a block that is not complete; the command that collects goes on with it."
    return ""


def _run(path: Path, allow_imports: bool) -> _Checks:
    checks: _Checks = {path / "config.json": partial(Run.open, path)}
    try:
        folder = Run.open(path)
    except InputError:
        return dict.fromkeys(_files(path), _untold) | checks
    folder.importing(allow_imports)  # whose refusal says nothing of the files
    command, has_comparison = path / "command.txt", folder.comparison_file.exists()
    if command.exists():
        checks[command] = partial(_require_command, command)
    checks |= _times(path)
    if has_comparison or folder.report_file.exists():
        checks[folder.comparison_file] = partial(read_compared, folder)
    for method in folder.config.compare.names:
        if has_comparison or folder.result_file(method).exists():
            checks[folder.result_file(method)] = partial(read_result, folder, method)
    for extra in sorted((path / "extra").glob("*.safetensors")):
        checks[extra] = partial(read_comparison, folder, extra)
    followed = folder.models_needed if has_comparison or folder.report_file.exists() else ()
    for name in ("", *folder.config.models):
        own = folder.of_model(name)
        if name and own.path.exists():
            checks |= _run(own.path, allow_imports) | {own.path / "config.json": partial(_require_model, own)}
        if name in followed or (not name and (own.model_file.exists() or own.validation_file.exists())):
            checks |= {
                own.model_file: partial(read_fitted, own),
                own.validation_file: partial(read_comparison, own, own.validation_file),
            }
            checks |= _data(own.data_folder, partial(read_dataset, own, verify=False))
        elif own.data_folder.exists():
            checks |= _data(own.data_folder, partial(read_dataset, own, verify=False))
    for index in range(1, folder.config.collect.rounds):
        if folder.round_file(index).exists():
            checks[folder.round_file(index)] = partial(read_round_model, folder, index)
    if folder.report_file.exists() or (path / "report.json").exists():
        checks[path / "report.json"] = partial(read_report, folder)
        checks |= _listed(path, lambda: read_report(folder)["files"])
    return checks


def _require_model(own: Run) -> None:
    """The run of a model within a run must be what the configuration of the whole says of it."""
    if difference := first_difference(Run.open(own.path).config.to_dict(), own.config.to_dict()):
        key, before, now = difference
        raise InputError(f"File {own.path / 'config.json'} has {key} = {before}, but in this run it is {now}.")


def _require_command(path: Path) -> None:
    """What there is to see before a report holds the command, and with it the file's checksum."""
    text = storage.read_bytes(path)
    if not (text.startswith(b"metastep ") and text.find(b"\n") == len(text) - 1):
        raise InputError(f"File {path} was not written by metastep: it must hold one command, `metastep ...`.")


def _times(path: Path) -> _Checks:
    """How long stages took differs from run to run: it must be that, and may be anything."""
    return {times_file(path): partial(read_times, path)} if times_file(path).exists() else {}


def _untold() -> None:
    raise InputError("cannot be verified without a sound config.json.")


def _data(folder: Path, opened: Callable[[], object]) -> _Checks:
    """The manifest, and the blocks that it lists; while it lists none, those that are there."""
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


def _listed(folder: Path, read: Callable[[], dict[str, str]]) -> _Checks:
    """Files whose checksums another file lists."""

    def require(file: Path, checksum: str) -> None:
        if (found := storage.sha256_of(file)) != checksum:
            raise InputError(f"File {file} is damaged or was edited: its SHA-256 is {found}, expected is {checksum}.")

    try:
        return {folder / name: partial(require, folder / name, checksum) for name, checksum in read().items()}
    except InputError:
        return {}
