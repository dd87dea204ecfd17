"""The folder of a run: its configuration, and where each stage leaves its result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from metastep import storage
from metastep.errors import InputError
from metastep.experiments.config import parse
from metastep.experiments.schema import Experiment
from metastep.meta.dataset import first_difference


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
    def create(cls, path: Path, config: Experiment, tasks: NDArray[np.float32] | None = None) -> Self:
        """Create the folder, or take up one of the same configuration."""
        wanted = _record(config, tasks)
        file = path / "config.json"
        if path.exists() and not path.is_dir():
            raise InputError(f"--out: {path} is a file, a folder is needed.")
        storage.create_folder(path)
        storage.remove_leftovers(path)
        # Of several processes that start at the same time one writes; all compare with what is there then.
        storage.write_atomically(file, storage.canonical_json(wanted), overwrite=False)
        if difference := first_difference(storage.read_json(file), wanted):
            key, before, now = difference
            raise InputError(
                f"Folder {path} was started with {key.removeprefix('experiment.')} = {before}, which is now {now}; "
                "resume with the same setting or use another folder."
            )
        return cls(path, config, tasks)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a folder that an earlier command created."""
        file = path / "config.json"
        if not file.exists():
            raise InputError(f"Folder {path} holds no config.json; `metastep collect` or `metastep run` creates one.")
        record = storage.read_json(file)
        if (
            not isinstance(record, dict)
            or set(record) != {"experiment", "tasks"}
            or not isinstance(record["experiment"], dict)
        ):
            raise InputError(f"File {file} was not written by metastep: it must hold the keys experiment and tasks.")
        tasks = None if record["tasks"] is None else np.asarray(record["tasks"], np.float32)
        return cls(path, parse(record["experiment"]), tasks)

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

    def result(self, method: str) -> Path:
        """One method on the test tasks, with its grid search."""
        return self.path / "results" / f"{method}.safetensors"


def _record(config: Experiment, tasks: NDArray[np.float32] | None) -> dict[str, Any]:
    return {"experiment": config.to_dict(), "tasks": None if tasks is None else np.asarray(tasks).tolist()}
