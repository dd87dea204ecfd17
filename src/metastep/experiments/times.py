"""The time of each stage, kept in the run's folder.

Times differ from run to run, so no file that is compared byte by byte shows them, and no checksum covers them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Silent, Stage, Tracker

if TYPE_CHECKING:
    from metastep.experiments.run import Run


class Timed:
    """A tracker that adds up the seconds of each stage in a folder, without the stages within it.

    Args:
        folder: where the times are kept.
        tracker: receives the stages, too.
    """

    def __init__(self, folder: Path, tracker: Tracker | None) -> None:
        self._folder, self._tracker, self._inner = folder, tracker or Silent(), 0.0

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Stage]:
        """Open a stage."""
        since, inner = time.monotonic(), self._inner
        try:
            with self._tracker.stage(name, total, unit) as stage:
                yield stage
        finally:
            seconds = time.monotonic() - since - (self._inner - inner)
            self._inner += seconds
            add_time(self._folder, name, seconds)


def add_time(folder: Path, name: str, seconds: float) -> None:
    """Add to the time of a stage; times that cannot be read are replaced."""
    try:
        known = read_times(folder)
    except InputError:
        known = {}
    known[name] = round(known.get(name, 0.0) + seconds, 3)
    storage.write_json(folder / "times.json", storage.stamp("times") | {"seconds": known})


def read_times(folder: Path) -> dict[str, float]:
    """Return seconds by stage, nothing where none were recorded."""
    file = folder / "times.json"
    if not file.exists():
        return {}
    found = storage.read_json(file)
    storage.require_stamp(found, "times", file, "remove it")
    seconds = found.get("seconds")
    if not isinstance(seconds, dict) or not all(type(value) in (int, float) for value in seconds.values()):
        raise InputError(f"File {file} was not written by metastep: it must hold seconds by stage; remove it.")
    return {name: float(value) for name, value in seconds.items()}


def times_of(run: Run) -> dict[str, float]:
    """Return seconds by stage, of a run and of the models within it."""
    found = read_times(run.path)
    for model in run.config.models:
        found |= {f"{model} {name}": value for name, value in read_times(run.of_model(model).path).items()}
    return found


def in_words(seconds: dict[str, float]) -> str:
    """Return one line: each stage with its time, and the sum where there are several."""
    parts = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    return f"{parts}; {sum(seconds.values()):.1f} s in all" if len(seconds) > 1 else parts
