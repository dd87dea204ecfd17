"""Run independent calls in threads, in local processes, or on a Dask cluster, and prepare the cores and devices they use.

XLA's rounding of large sums depends on its number of threads, so it has one thread in every process, and several processes use
the cores. Processes take seconds to start, so a command first works in threads. No executor of `concurrent.futures`, loky or Dask
moves from threads to processes when work is long and also bounds the number of submitted calls.
"""

import math
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any, TypeVar

from metastep._core.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
Listener = Callable[[tuple[int, float]], None]
"""Receives the progress that calls report; several threads may call it at once."""

_SECONDS_BETWEEN_CHECKS = 1.0  # of the number of slots, which changes with the workers
_MOST_IN_THREADS = 4  # calls in flight before processes start; processes could not take over further ones

_limit: int | None = None
_share: ContextVar[int | None] = ContextVar("share", default=None)
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_worked = 0.0  # seconds that this process has spent in local pools


def use_cores(number: int | None) -> None:
    """Limit this process to a number of cores; None is all available cores."""
    global _limit
    _limit = None if number is None else min(count_threads(number), _available())


def count_threads(threads: int | None) -> int:
    """Return `threads` after a check; None is the number of cores that the caller may use."""
    if threads is None:
        return _share.get() or _limit or _available()
    if threads < 1:
        raise InputError(f"threads is {threads}, allowed is at least 1 (or None for all processors).")
    return threads


def _available() -> int:
    from joblib import cpu_count  # knows affinity and containers' limits

    return int(cpu_count())


def prepare_jax(device: str | None) -> None:
    """Choose the device and cache compilations on disk; `device` is "cpu", "gpu" or None for JAX's choice."""
    # XLA splits large sums among its threads, which changes the rounding: with one thread, all processes agree to the bit.
    os.environ["PJRT_NPROC"] = "1"
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if device is not None:
        jax.config.update("jax_platforms", "cpu" if device == "cpu" else "cuda,cpu")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        with suppress(RuntimeError):  # users without a home folder, as in many containers, have no cache
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metastep" / "jax"
            jax.config.update("jax_compilation_cache_dir", str(cache))
    # Small programs, too: every worker process needs them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        platform = jax.devices()[0].platform
    except Exception as error:  # some backends raise, others break one of JAX's assertions
        chosen = os.environ.get("JAX_PLATFORMS")
        where = f"--device: {device}" if device else f"JAX_PLATFORMS: {chosen}" if chosen else "--device: JAX's choice"
        reason = " ".join(f"{type(error).__name__} {error}".split())[:200].rstrip(".")
        raise InputError(f"{where} is not available here, try --device cpu without JAX_PLATFORMS: {reason}.") from None
    if device is not None and platform != device:  # without CUDA, JAX silently uses the second of the two platforms
        needs = ', a GPU needs pip install "jax[cuda12]"' if device == "gpu" else ""
        raise InputError(f"--device: {device} is not available here, JAX finds only {platform}{needs}.")


def map_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int | None) -> list[Result]:
    """Return the results in order; threads suffice, because XLA and Numba kernels release the GIL."""
    todo = list(items)
    number = min(count_threads(threads), len(todo))
    if number <= 1:
        return [function(item) for item in todo]
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(function, todo))


Pool = Any
"""An executor like `LocalPool`, with `slots`, `submit`, `open` and `is_local`, whether calls see the disk of this process."""
_clusters: list[Pool] = []


@contextmanager
def using(pool: Pool) -> Iterator[Pool]:
    """Run all calls in a pool, such as a cluster's, instead of on this machine."""
    _clusters.append(pool)
    try:
        yield pool
    finally:
        _clusters.remove(pool)


@contextmanager
def executor(number: int, listener: Listener) -> Iterator[Pool]:
    """Open the pool for calls of which this machine runs `number` at a time; `listener` receives their progress."""
    can_switch = number > 1 and os.environ.get("PJRT_NPROC") == "1"  # or other processes would round differently
    seconds = patience(count_threads(None)) - _worked if can_switch else math.inf
    pool = _clusters[-1] if _clusters else LocalPool(number, seconds)
    with pool.open(listener):
        yield pool


def completed(pool: Pool, next_call: Callable[[bool], tuple[Any, ...] | None]) -> Iterator[tuple[Any, Any]]:
    """Run calls and yield (tag, result) pairs as they finish; results may lead to further calls, exceptions are raised here.

    `next_call(are_all_busy)` returns the next (tag, function, *arguments), or None if none is ready.
    """
    running: dict[Future[Any], Any] = {}
    while True:
        slots = pool.slots()
        while len(running) < slots and (call := next_call(len(running) >= max(1, slots // 2))) is not None:
            tag, function, *arguments = call
            running[pool.submit(function, *arguments)] = tag
        if not running:
            return
        for future in wait(running, _SECONDS_BETWEEN_CHECKS, FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


def report(work: int, amount: float) -> None:
    """Report, from within a call, the amount of a piece of work done so far; local processes report only results."""
    if (listener := _listener.get()) is not None:
        listener((work, amount))


def call_with(listener: Listener | None, cores: int, function: Callable[..., Any], arguments: Iterable[Any]) -> Any:
    """Call a function that reports to a listener and may use this many cores, at least one."""
    context = copy_context()
    context.run(_listener.set, listener)
    context.run(_share.set, max(1, cores))
    return context.run(function, *arguments)


def patience(cores: int) -> float:
    """Return the seconds of work after which processes start; inf for never."""
    # If as much work remains as was done, processes save all but one core's share of it, more than the 3 s to start them.
    text = os.environ.get("METASTEP_PATIENCE", "")
    try:
        return float(text) if text else 3.0 / (1.0 - 1.0 / max(2, cores))
    except ValueError:
        raise InputError(f"METASTEP_PATIENCE: {text!r} must be a number of seconds, or inf.") from None


class LocalPool:
    """Run calls in threads of this process, and after some seconds, if not inf, in local processes."""

    is_local = True

    def __init__(self, number: int, seconds: float = math.inf) -> None:
        self._number, self._switch_at, self._cores = number, time.monotonic() + seconds, count_threads(None)
        self._threads = ThreadPoolExecutor(number)
        self._processes: Any = None
        self._listener: Listener = lambda progress: None

    def slots(self) -> int:
        """Return two per core, or few until processes take over."""
        is_waiting = time.monotonic() < self._switch_at < math.inf
        return min(self._number, _MOST_IN_THREADS) if is_waiting else 2 * self._number

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Schedule a call; after a call that cannot be pickled, warn and run all calls in this process."""
        if time.monotonic() >= self._switch_at:
            import cloudpickle
            from joblib.externals.loky import get_reusable_executor

            try:
                call = cloudpickle.dumps((function, arguments))
            except Exception as error:  # anything that a user's class may raise
                self._switch_at = math.inf
                warnings.warn(f"work stays in this process, it cannot be sent to another: {error}", stacklevel=2)
            else:
                # Loky's resource tracker reports semaphores that a stopped command left; it removes them anyway.
                os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
                # Processes of an earlier stage serve again, unless idle for ten minutes: fits between two simulations are faster.
                options = {"timeout": 600.0, "initializer": _prepare, "initargs": (os.getpid(),)}
                self._processes = self._processes or get_reusable_executor(self._cores, **options)
                return self._processes.submit(_call_in_process, call)
        cores, listener = self._cores // self._number, lambda progress: self._listener(progress)
        return self._threads.submit(call_with, listener, cores, function, arguments)

    @contextmanager
    def open(self, listener: Listener) -> Iterator[None]:
        """Use the pool, then end its threads; processes stay for later work, unless an exception is raised."""
        global _worked
        self._listener, start, is_patient = listener, time.monotonic(), True
        try:
            yield
        except BaseException as error:
            self._listener, is_patient = _cancel, isinstance(error, Exception)  # after Ctrl-C the user does not wait
            if self._processes is not None:
                self._processes.shutdown(wait=False, kill_workers=True)
            if isinstance(error, BrokenProcessPool):
                lost = "--cores: a worker process was killed, perhaps for lack of memory"
                raise InputError(f"{lost}; run the same command again to resume, perhaps with fewer.") from None
            raise
        finally:
            _worked += time.monotonic() - start
            self._threads.shutdown(wait=is_patient, cancel_futures=True)


def _cancel(progress: tuple[int, float]) -> None:
    raise CancelledError  # ends a call early


def _prepare(parent: int) -> None:
    """Set up a process before its first call."""
    from joblib.externals.loky import process_executor

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the parent ends its children
    threading.Thread(target=end_with_parent, daemon=True).start()
    # Loky restarts a process that has grown by 300 MB, in case it leaks; ours keep the programs that they compiled.
    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf
    use_cores(1)
    prepare_jax("cpu")


def _call_in_process(call: bytes) -> Any:
    function, arguments = pickle.loads(call)
    try:
        return function(*arguments)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # loky would break the pool over an exception that it cannot send
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise
