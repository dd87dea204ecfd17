"""Show the progress of long work: a bar by rich in a terminal, and lines of text in logs and pipes, where rich draws no bar."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Any, NamedTuple, Protocol


class Stage(NamedTuple):
    """A stage of work in progress."""

    advance: Callable[[float], None]  # adds this many units to those done


class Tracker(Protocol):
    """Shows the progress of stages."""

    def stage(self, name: str, total: float, unit: str) -> AbstractContextManager[Stage]:
        """Open a stage of `total` units; the caller advances it."""


class Tally:
    """Advance a stage by reports (piece of work, its amount done so far) from any thread; `done` holds the first amounts."""

    def __init__(self, advance: Callable[[float], object], done: Mapping[int, float]) -> None:
        self._advance, self._done, self._lock = advance, dict(done), Lock()

    def __call__(self, progress: tuple[int, float]) -> None:
        work, amount = progress
        with self._lock:
            # A worker that repeats the work of a killed one first reports amounts that are already counted.
            if amount > self._done.get(work, 0.0):
                self._advance(amount - self._done.get(work, 0.0))
                self._done[work] = amount


class Silent:
    """Show nothing; the default of library functions."""

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Stage]:
        yield Stage(lambda amount: None)


class Prefixed:
    """Prefix the names of stages, for example with the model they belong to."""

    def __init__(self, tracker: Tracker, name: str) -> None:
        self._tracker, self._name = tracker, name

    def stage(self, name: str, total: float, unit: str) -> AbstractContextManager[Stage]:
        return self._tracker.stage(f"{self._name} {name}", total, unit)


class Terminal:
    """Show a progress bar in a terminal; elsewhere print a line at the start and end of a stage, and about every 20 seconds."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Stage]:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

        texts = ("{task.description}", "{task.percentage:>3.0f} %", "{task.fields[rate]}")
        title, percentage, rate = (TextColumn(text, markup=False) for text in texts)
        columns = SpinnerColumn(), title, BarColumn(), percentage, rate, TimeRemainingColumn()
        # The rate is measured from the first advance on: before that, programs may be compiled.
        timing: Any = {"get_time": time.monotonic, "speed_estimate_period": math.inf}
        bar = Progress(*columns, console=self._console, **timing)
        number = bar.add_task(name, total=total, rate="starting...")
        (task,) = bar.tasks
        start = last_line = time.monotonic()

        def advance(amount: float) -> None:
            nonlocal last_line
            bar.update(number, advance=amount, rate=format_rate(task.speed or 0.0, 1.0, unit))
            is_due = time.monotonic() - last_line > 20.0  # seconds
            if not self._console.is_terminal and is_due and task.time_remaining:
                last_line = time.monotonic()
                self.note(f"{name}: {task.percentage:.0f} %, {task.time_remaining:.0f} s left")

        if self._console.is_terminal:
            with bar:
                yield Stage(advance)
            return
        self.note(f"{name}: {format_si(total)}{unit.removesuffix('s') if total == 1.0 else unit}")
        yield Stage(advance)
        seconds = time.monotonic() - start
        speed = format_rate(task.completed, seconds, unit) if total != 1.0 else ""
        self.note(f"{name}: done in {seconds:.1f} s{f' ({speed})' if speed else ''}")


def format_si(number: float) -> str:
    """Return a number with an SI prefix, 1234567 as "1.2 M"; a unit may follow."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.1f} {letter}"
    return f"{number:.0f} " if number >= 10.0 or number == int(number) else f"{number:.1f} "


def format_rate(done: float, seconds: float, unit: str) -> str:
    """Return the speed as units per second or, below one unit in two seconds, as seconds per unit."""
    if done <= 0.0 or seconds <= 0.0:
        return ""
    is_slow = done < 0.5 * seconds
    return f"{seconds / done:.3g} s per {unit.removesuffix('s')}" if is_slow else f"{format_si(done / seconds)}{unit}/s"
