"""The processors that this process may use, and work shared between threads.

XLA's programs and the Numba kernels release the interpreter's lock, so plain threads are enough. No threading layer of Numba's
own is involved: it would tie the number of threads to the process, and not every layer survives a fork or two callers at
once.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from metastep._core.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

_given: int | None = None
_has_one_for_sums = False
_part: ContextVar[Callable[[], int] | None] = ContextVar("part", default=None)


def use_cores(number: int | None) -> None:
    """Take at most so many processors in this process from now on; None takes all that the system offers."""
    global _given
    _given = None if number is None else min(count_threads(number), _offered())


def one_for_sums() -> None:
    """Have XLA's pool of this process one thread, before JAX opens a device.

    XLA shares large sums among the threads of its pool, so that their rounding depends on how many these are. One is always
    there, and processes that have one each agree to the bit.
    """
    global _has_one_for_sums
    os.environ["PJRT_NPROC"] = "1"
    _has_one_for_sums = True


def has_one_for_sums() -> bool:
    """Whether other processes, which have one thread for sums each, would compute what this one does."""
    return _has_one_for_sums


@contextmanager
def part_of_cores(part: Callable[[], int]) -> Iterator[None]:
    """Whatever this thread calls meanwhile takes as many processors as `part` says at that moment, at least one."""
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)


def count_threads(threads: int | None) -> int:
    """The number of threads asked for, or of processors that the caller may use when None."""
    if threads is None:
        part = _part.get()
        return (_given or _offered()) if part is None else max(1, part())
    if threads < 1:
        raise InputError(f"threads is {threads}, allowed is at least 1 (or None for all processors).")
    return threads


def _offered() -> int:
    """Processors that this process may run on, within the limit of a container where there is one."""
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(number, int(quota) // int(period)))
    except (OSError, ValueError):  # another system, or "max": no limit
        return number


def map_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int | None) -> list[Result]:
    """Results in the order of the items, whatever the number of threads."""
    todo = list(items)
    workers = min(count_threads(threads), len(todo))
    if workers <= 1:
        return [function(item) for item in todo]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, todo))
