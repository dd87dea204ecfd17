"""Work shared between threads: the Numba kernels release the interpreter's lock, so plain threads are enough.

No threading layer of Numba's own is involved: it would tie the number of threads to the process, and not every layer
survives a fork or two callers at once.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from metastep.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")


def count_threads(threads: int | None) -> int:
    """The number of threads asked for, or of processors this process may use when None."""
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads < 1:
        raise InputError(f"threads is {threads}, allowed is at least 1 (or None for all processors).")
    return threads


def map_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int | None) -> list[Result]:
    """Results in the order of the items, whatever the number of threads."""
    todo = list(items)
    workers = min(count_threads(threads), len(todo))
    if workers <= 1:
        return [function(item) for item in todo]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, todo))
