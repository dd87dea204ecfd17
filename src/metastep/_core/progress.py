"""Progress of long work: which stage, how fast, how long still."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Protocol, Self


class Stage(Protocol):
    """One stretch of work under way."""

    def advance(self, amount: float) -> None:
        """Report that `amount` more units are done."""


class Tracker(Protocol):
    """Where progress goes."""

    def stage(self, name: str, total: float, unit: str) -> AbstractContextManager[Stage]:
        """Open a stage of `total` units; the caller advances it."""


class Tally:
    """How far each of several works is, as any thread may tell; a stage is advanced by what is new.

    Args:
        advance: is told how much more is done.
        done: of each work, at the beginning.
    """

    def __init__(self, advance: Callable[[float], object], done: Mapping[int, float]) -> None:
        self._advance, self._done, self._counting = advance, dict(done), Lock()

    def __call__(self, news: tuple[int, float]) -> None:
        """Take in that a work is so far."""
        work, amount = news
        with self._counting:
            # Whoever takes over from a worker that was killed may be behind it.
            if amount > self._done.get(work, 0.0):
                self._advance(amount - self._done.get(work, 0.0))
                self._done[work] = amount


class Silent:
    """Shows nothing: the default of library functions."""

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Self]:
        yield self

    def advance(self, amount: float) -> None:
        return


class Named:
    """Tells a tracker of stages that belong to something, by its name.

    Args:
        tracker: that is told.
        name: of what they belong to.
    """

    def __init__(self, tracker: Tracker, name: str) -> None:
        self._tracker, self._name = tracker, name

    def stage(self, name: str, total: float, unit: str) -> AbstractContextManager[Stage]:
        return self._tracker.stage(f"{self._name} {name}", total, unit)


def human(number: float) -> str:
    """1234567 as 1.2 M."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.1f} {letter}"
    return f"{number:.0f} " if number >= 10.0 or number == int(number) else f"{number:.1f} "


def counted(number: float, unit: str) -> str:
    """1 block, 1.2 Msteps: units come in the plural."""
    return f"{human(number)}{_single(unit) if number == 1.0 else unit}"


def pace(done: float, seconds: float, unit: str) -> str:
    """How fast, as units a second, or as seconds a unit where they are slow."""
    if done <= 0.0 or seconds <= 0.0:
        return ""
    rate = done / seconds
    return f"{human(rate)}{unit}/s" if rate >= 0.5 else f"{seconds / done:.3g} s {_article(unit)} {_single(unit)}"


def _article(unit: str) -> str:
    return "an" if unit[0] in "aeiou" else "a"


def _single(unit: str) -> str:
    return unit.removesuffix("s")


class Terminal:
    """A live line in a terminal, one plain line a stage elsewhere (logs, pipes)."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)

    def note(self, text: str) -> None:
        """Print one line above whatever is live."""
        self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator["_Live | _Plain"]:
        """Open a stage; the rate counts from the first advance, since what precedes it is compilation."""
        if not self._console.is_terminal:
            plain = _Plain(self, name, total, unit)
            yield plain
            plain.close()
            return
        with _Live(self, name, total, unit) as live:
            yield live


class _Plain:
    def __init__(self, terminal: Terminal, name: str, total: float, unit: str) -> None:
        self._terminal, self._name, self._total, self._unit = terminal, name, total, unit
        self._done, self._start = 0.0, time.monotonic()
        self._last_line = self._start
        terminal.note(f"{name}: {counted(total, unit)}")

    def advance(self, amount: float) -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._last_line > 20.0 and self._done < self._total:
            self._last_line = now
            left = (now - self._start) / self._done * (self._total - self._done)
            self._terminal.note(f"{self._name}: {100 * self._done / self._total:.0f} %, {left:.0f} s left")

    def close(self) -> None:
        seconds = time.monotonic() - self._start
        # Of one thing, the duration is the pace.
        rate = "" if self._total == 1.0 else pace(self._done, seconds, self._unit)
        self._terminal.note(f"{self._name}: done in {seconds:.1f} s{f' ({rate})' if rate else ''}")


class _Live:
    def __init__(self, terminal: Terminal, name: str, total: float, unit: str) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

        self._unit, self._done, self._first = unit, 0.0, 0.0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=terminal._console,
        )
        self._task = self._progress.add_task(name, total=total, rate="compiling...")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, amount: float) -> None:
        now = time.monotonic()
        if self._first == 0.0:
            self._first, rate = now, ""
        else:
            self._done += amount
            rate = pace(self._done, now - self._first, self._unit)
        self._progress.update(self._task, advance=amount, rate=rate)
