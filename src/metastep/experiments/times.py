"""What a run took: seconds of each stage, kept in its folder.

They differ from run to run, so nothing that is compared to the byte shows them, and nothing seals them.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Silent, Stage, Tracker
from metastep.experiments.folder import RunFolder

_KIND = "times"


def times_file(folder: Path) -> Path:
    """Where the times of a folder are."""
    return folder / "times.json"


class Timed:
    """A tracker that keeps how long each stage took, without the stages within it; those of a stopped run are added.

    Args:
        folder: where the times are kept.
        tracker: is told about the stages, too.
    """

    def __init__(self, folder: Path, tracker: Tracker | None) -> None:
        self._folder, self._tracker, self._told = folder, tracker or Silent(), 0.0

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Stage]:
        """Open a stage."""
        since, told = time.monotonic(), self._told
        try:
            with self._tracker.stage(name, total, unit) as stage:
                yield stage
        finally:
            seconds = time.monotonic() - since - (self._told - told)
            self._told += seconds
            add_time(self._folder, name, seconds)


def add_time(folder: Path, name: str, seconds: float) -> None:
    """Add to what something took; times that cannot be read are begun anew."""
    try:
        known = read_times(folder)
    except InputError:
        known = {}
    known[name] = round(known.get(name, 0.0) + seconds, 3)
    storage.write_json(times_file(folder), storage.stamp(_KIND) | {"seconds": known})


def read_times(folder: Path) -> dict[str, float]:
    """Seconds by what took them, nothing where nobody wrote them down."""
    file = times_file(folder)
    if not file.exists():
        return {}
    found = storage.read_json(file)
    storage.require_stamp(found, _KIND, file, "remove it")
    seconds = found.get("seconds")
    if not isinstance(seconds, dict) or not all(type(value) in (int, float) for value in seconds.values()):
        raise InputError(f"File {file} was not written by metastep: it must hold seconds by stage; remove it.")
    return {name: float(value) for name, value in seconds.items()}


def times_of(folder: RunFolder) -> dict[str, float]:
    """Seconds by stage of a run and of the models within it."""
    found = read_times(folder.path)
    for model in folder.config.models:
        found |= {f"{model} {name}": value for name, value in read_times(folder.of_model(model).path).items()}
    return found


def in_words(seconds: dict[str, float]) -> str:
    """One line: each with its time, and all together where there are several."""
    parts = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    return f"{parts}; {sum(seconds.values()):.1f} s in all" if len(seconds) > 1 else parts
