"""The folder of a run: its configuration, and where each stage leaves its result."""

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from metastep._core import storage
from metastep._core.errors import InputError, shown
from metastep._core.locks import writing
from metastep._core.outside import claim, is_stamped
from metastep._core.provenance import first_difference
from metastep._core.registry import require_modules
from metastep.experiments.config import parse, variant
from metastep.experiments.schema import Experiment


@dataclass(frozen=True, eq=False)
class RunFolder:
    """A folder that belongs to one configuration; every stage writes whole files, so a stopped run resumes.

    Args:
        path: of the folder.
        config: the experiment.
        tasks: the contexts to train on in place of the task distribution, (tasks, coordinates).
    """

    path: Path
    config: Experiment
    tasks: NDArray[np.float32] | None = None

    @classmethod
    def create(
        cls, path: Path, config: Experiment, tasks: NDArray[np.float32] | None = None, *, command: str = ""
    ) -> Self:
        """Create the folder, or take up one of the same configuration; the command is kept for the report."""
        wanted = _record(config, tasks)
        file = claim(path, "config.json")
        # Of several processes that start at the same time one writes; all compare with what is there then.
        storage.write_atomically(file, storage.canonical_json(storage.sealed(wanted)), overwrite=False)
        # Parsed, a configuration has every setting: one that came later does not make an old folder another's.
        found = _read(file)
        there = {name: found[name] for name in wanted} | {"experiment": _parsed(file, found).to_dict()}
        if difference := first_difference(there, wanted):
            key, before, now = difference
            raise InputError(
                f"Folder {path} was started with {key.removeprefix('experiment.')} = {before}, which is now {now}; "
                "resume with the same setting or use another folder."
            )
        if command:
            storage.write_atomically(path / "command.txt", f"{command}\n".encode(), overwrite=False)
        return cls(path, config, tasks)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a folder that an earlier command created."""
        file = path / "config.json"
        if not file.exists():
            raise InputError(f"Folder {path} holds no config.json; `metastep collect` or `metastep run` creates one.")
        record = _read(file)
        return cls(path, _parsed(file, record), _tasks(file, record["tasks"]))

    def importing(self, allow_imports: bool) -> Self:
        """Have the modules that the configuration names imported, or refuse; returns the folder."""
        require_modules(self.config.part_names(), f"File {self.path / 'config.json'}", allow_imports=allow_imports)
        return self

    def check_tasks(self) -> Self:
        """Refuse listed tasks that are not among the environment's; returns the folder."""
        from metastep.experiments.build import build_env

        if self.tasks is not None:
            build_env(self.config).context_space.validate(self.tasks, f"File {self.path / 'config.json'}, tasks")
        return self

    @property
    def identity(self) -> str:
        """What everything that is made in this folder is marked with: the checksum of its configuration and tasks."""
        return str(_read(self.path / "config.json")["checksum"])

    def writing(self, work: str) -> AbstractContextManager[None]:
        """Keep other writers out."""
        return writing(place_of_writing(self.path), work)

    def recorded(self) -> dict[str, Any]:
        """The configuration as the folder holds it, without settings that came after it."""
        experiment: dict[str, Any] = _read(self.path / "config.json")["experiment"]
        return experiment

    def command(self) -> str:
        """What was typed to create the folder, as far as it is known."""
        try:
            return storage.read_bytes(self.path / "command.txt").decode("utf-8").strip()
        except (InputError, UnicodeDecodeError):
            return ""

    def of_model(self, name: str) -> "RunFolder":
        """Where a further model of the experiment is learned: a run of its own within this one. It may not be there yet."""
        return RunFolder(self.path / "models" / name, variant(self.config, name), self.tasks) if name else self

    def round_model(self, index: int) -> Path:
        """The model that a later round of collection follows."""
        return self.path / "rounds" / f"{index}.safetensors"

    @property
    def data(self) -> Path:
        """The training data."""
        return self.path / "data"

    @property
    def model(self) -> Path:
        """The fitted and selected model."""
        return self.path / "model.safetensors"

    @property
    def validation(self) -> Path:
        """Every iteration on the validation tasks."""
        return self.path / "validation.safetensors"

    @property
    def comparison(self) -> Path:
        """Every method on the test tasks."""
        return self.path / "comparison.safetensors"

    @property
    def report(self) -> Path:
        """The page."""
        return self.path / "report.html"

    def result(self, method: str) -> Path:
        """One method on the test tasks, with its grid search."""
        return self.path / "results" / f"{method}.safetensors"


def place_of_writing(path: Path) -> Path:
    """The folder whose lock a writer of a run, or of its data, holds."""
    place = path.resolve()
    if place.name == "data" and is_stamped(place.parent / "config.json"):
        place = place.parent
    if place.parent.name == "models" and is_stamped(place.parent.parent / "config.json"):
        return place.parent.parent
    return place


_KIND, _REMEDY = "run", "start it again in another folder"


def _record(config: Experiment, tasks: NDArray[np.float32] | None) -> dict[str, Any]:
    return storage.stamp(_KIND) | {
        "experiment": config.to_dict(),
        "tasks": None if tasks is None else np.asarray(tasks).tolist(),
    }


def _read(file: Path) -> dict[str, Any]:
    record = storage.read_sealed(file, _KIND, _REMEDY)
    keys = {*storage.stamp(_KIND), "experiment", "tasks", "checksum"}
    if set(record) != keys or not isinstance(record["experiment"], dict):
        raise InputError(f"File {file} was not written by metastep: it must hold the keys experiment and tasks.")
    return record


def _parsed(file: Path, record: dict[str, Any]) -> Experiment:
    try:
        return parse(record["experiment"])
    except InputError as error:
        raise InputError(f"File {file}: {error}") from None


def _tasks(file: Path, listed: Any) -> NDArray[np.float32] | None:
    """The recorded tasks as an array; anybody may have edited the file."""
    if listed is None:
        return None
    rows = listed if isinstance(listed, list) and all(isinstance(row, list) for row in listed) else []
    numbers = all(type(number) in (int, float) for row in rows for number in row)
    if numbers and len({len(row) for row in rows}) == 1 and rows[0]:
        # A whole number may be too long for a float, a float too large for one of 32 bits.
        with suppress(OverflowError), np.errstate(over="ignore"):
            tasks = np.asarray(rows, np.float32)
            if np.isfinite(tasks).all():
                return tasks
    raise InputError(
        f"File {file}: tasks = {shown(listed)} must be null or a list of tasks, each a list of equally many finite numbers."
    )
