"""Worker processes of a Dask scheduler on this machine: one that dies, or does not answer any more, is replaced.

Where they die while starting and no other is there, the next ones would, too: then it is told why nothing can be done.
"""

import asyncio
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import jax
from distributed import Scheduler, Worker

from metastep._core.device import prepare_child
from metastep._core.threads import count_threads

LOOPBACK: dict[str, Any] = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""Options of a scheduler or a worker that is reached from this machine only."""

_PAUSE = 0.2  # seconds between two looks at the processes
_SECONDS_TO_START = 120.0  # after which a process that has not found the scheduler counts as hanging
_SECONDS_TO_END = 5.0
_MOST_DEATHS = 3  # in a row, of workers that the scheduler has not seen, while it has no other


class _Process(NamedTuple):
    process: BaseProcess
    name: str  # of the worker
    since: float


class Processes:
    """So many workers, each with its part of the cores, and with a GPU where there are some.

    Args:
        number: of workers.
        scheduler: whose they are; it runs in this process.
        give_up: is told, by a thread, why no worker can be had.
    """

    def __init__(self, number: int, scheduler: Scheduler, give_up: Callable[[str], object]) -> None:
        self._scheduler, self._give_up, self._device = scheduler, give_up, jax.default_backend()
        self._gpus = 0 if self._device == "cpu" else len(jax.devices())
        self._cores = max(1, count_threads(None) // number)
        self._closing, self._started = threading.Event(), 0
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._seen: set[str] = set()
        self._deaths = 0
        self._processes = [self._start(index) for index in range(number)]

    def __enter__(self) -> "Processes":
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._watcher.join()
        for one in self._processes:
            one.process.terminate()
        for one in self._processes:
            one.process.join(_SECONDS_TO_END)
            one.process.kill()

    def _start(self, index: int) -> _Process:
        name = f"metastep-{index}-{self._started}"
        self._started += 1
        variables = {"CUDA_VISIBLE_DEVICES": _gpu(index % self._gpus)} if self._gpus else {}
        arguments = (self._scheduler.address, name, self._cores, self._device, variables)
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments, daemon=True)
        process.start()
        return _Process(process, name, time.monotonic())

    def _watch(self) -> None:
        while not self._closing.wait(_PAUSE):
            there = {str(worker.name) for worker in list(self._scheduler.workers.values())}
            if there:
                self._deaths = 0
            self._seen |= there
            for index, (process, name, since) in enumerate(self._processes):
                # The scheduler forgets a worker that gives no sign of life.
                is_forgotten = name in self._seen and name not in there
                if is_forgotten or (name not in there and time.monotonic() - since > _SECONDS_TO_START):
                    process.kill()
                if not process.is_alive() or is_forgotten:
                    self._deaths += not there and name not in self._seen
                    if self._deaths >= _MOST_DEATHS:
                        self._give_up(_why(process.exitcode))
                        return
                    self._processes[index] = self._start(index)


def _why(code: int | None) -> str:
    return (
        f"--workers: {_MOST_DEATHS} processes ended with code {code} before they could work; a script that starts workers must "
        'do so below `if __name__ == "__main__":`, and whatever it imports must be there.'
    )


def silence() -> None:
    """Have Dask say nothing: what a user has to know is told in a sentence."""
    for name in ("distributed", "distributed.client"):  # the second has a level of its own
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _gpu(index: int) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",")[index] if visible else str(index)


def _serve(address: str, name: str, cores: int, device: str, variables: dict[str, str]) -> None:
    """What a worker process does until its parent dies or stops it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    silence()
    os.environ.update(variables)
    prepare_child(device, cores)
    asyncio.run(_work(address, name))
    os._exit(0)  # threads that still compile or simulate would crash in the interpreter's tidying up


async def _work(address: str, name: str) -> None:
    async with Worker(address, name=name, nthreads=1, memory_limit=0, **LOOPBACK) as worker:
        await worker.finished()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
