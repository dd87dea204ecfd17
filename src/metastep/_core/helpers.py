"""Processes that help this one with long work, one for each core.

XLA's pool has one thread in each of them, so that no sum depends on their number; programs of one process then wait for each
other, and cores are kept busy by several. A process takes seconds to start, which pays only where work takes longer: this one
begins alone, and what it compiles is found on disk by those who come to help.
"""

import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from copy import copy
from typing import Any

from joblib.externals.loky import get_reusable_executor, process_executor

from metastep._core.crew import Crew, Tell, Threads, make_packed, packed, who_is_employed
from metastep._core.device import prepare_child
from metastep._core.errors import InputError
from metastep._core.threads import count_threads, has_one_for_sums

_PATIENCE = "METASTEP_PATIENCE"
_SECONDS_TO_START = 3.0  # of a process, with what it imports and loads
_MOST_ALONE = 4  # calls under way: more would wait for each other, and be missing when others come to help
_SECONDS_TO_STAY = 600.0  # without work: fits in between take minutes
_spent = 0.0


@contextmanager
def at_work(here: int) -> Iterator[Crew]:
    """The crew that is employed, or so many threads of this process, helped by processes where work takes long."""
    crew = who_is_employed()
    if crew is not None:
        yield crew
        return
    with Threads(here) as threads:
        if here == 1 or not has_one_for_sums():
            yield threads
            return
        with _helped(threads) as crew:
            yield crew


@contextmanager
def _helped(threads: Threads) -> Iterator["Helped"]:
    """Threads of this process, and after a while processes that make the calls in their place."""
    global _spent
    start = time.monotonic()
    crew = Helped(threads, start - _spent + patience(count_threads(None)))
    try:
        yield crew
    except BrokenProcessPool:
        crew.dismiss()
        raise InputError(
            "--cores: a process that helped was ended from outside, perhaps for lack of memory; what is done is kept, and the "
            "same command resumes, with fewer cores if you like."
        ) from None
    except BaseException:
        crew.dismiss()  # nobody asks what comes of their calls
        raise
    finally:
        _spent += time.monotonic() - start


def patience(cores: int) -> float:
    """Seconds of work after which a process is helped, with whatever is left and comes later; inf: never.

    Nobody knows how much is left. If it is as much as was done, help saves all but a core's share of it, and pays once that is
    what a start takes.
    """
    said = os.environ.get(_PATIENCE, "")
    try:
        return float(said) if said else _SECONDS_TO_START / (1.0 - 1.0 / max(2, cores))
    except ValueError:
        raise InputError(f"{_PATIENCE}: {said!r} must be a number of seconds, or inf for no help.") from None


class Helped:
    """Whoever makes calls: this process at first, others once it has worked for long enough.

    Args:
        threads: of this process.
        until: when it has, by the monotonic clock.
    """

    writes_here = True

    def __init__(self, threads: Threads, until: float) -> None:
        self._threads, self._until = threads, until
        self._executor: Any = None

    def slots(self, here: int) -> int:
        """Two for every core, so that none waits for this process; a few while it waits for help."""
        return min(here, _MOST_ALONE) if self._is_alone() and self._until < math.inf else self._threads.slots(here)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Have a call made."""
        if self._is_alone() or (asked := self._packed(function, arguments)) is None:
            return self._threads.submit(function, *arguments)
        if self._executor is None:
            self._executor = _processes()
        future: Future[Any] = self._executor.submit(_call, asked)
        return future

    def _packed(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes | None:
        """A call as it travels; None where it cannot, and then this process stays alone."""
        try:
            return packed(function, arguments)
        except Exception as error:  # whatever the parts of a user raise
            self._until = math.inf
            warnings.warn(f"no other process helps, because the work cannot be sent to one: {error}", stacklevel=2)
            return None

    def _is_alone(self) -> bool:
        return time.monotonic() < self._until

    @contextmanager
    def telling(self, listener: Tell) -> Iterator[Tell]:
        """As threads tell; processes say nothing before a call is through."""
        with self._threads.telling(listener) as tell:
            yield _Tell(tell)

    def dismiss(self) -> None:
        """End the processes, at once."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, kill_workers=True)


def _processes() -> Any:
    """As many as there are cores; those that an earlier stage had."""
    before = os.environ.get("PYTHONWARNINGS", "")
    # Loky has a process of its own that clears up after a command that was stopped, and would say so.
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, "ignore:resource_tracker")))
    try:
        return get_reusable_executor(
            count_threads(None), timeout=_SECONDS_TO_STAY, initializer=_prepare, initargs=(os.getpid(),)
        )
    finally:
        os.environ["PYTHONWARNINGS"] = before


def _call(asked: bytes) -> Any:
    """What a process does with a call; what the call raises is raised where it was asked for."""
    try:
        return make_packed(asked)
    except Exception as error:
        try:
            copy(error)  # in the way that it travels
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise


class _Tell:
    """Is silent in another process."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def __call__(self, news: Any) -> None:
        self._tell(news)

    def __reduce__(self) -> Any:
        return _silent, ()


def _silent() -> Tell:
    return lambda _: None


def _prepare(parent: int) -> None:
    """What a process does before its first call."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent sees to its helpers
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # Loky ends a process that has grown by 300 MB, as if it leaked; ours keep the programs that they compiled.
    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf
    prepare_child("cpu", 1)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
