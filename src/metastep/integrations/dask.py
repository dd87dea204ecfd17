"""Run calls on the workers of a Dask cluster: a local one that is started here, or one that runs already.

    with workers(4):
        metastep.run("cartpole", "runs/cartpole")

Every block of learners is a task. Dask gives the task of a worker that dies to another one, with the same result to the bit, if
their versions and device are the same. Tasks are pickled on their way within the cluster, files never are: everyone who reaches
a scheduler or worker can run code there. So the workers of a run speak TLS, with a certificate that only its processes hold.
"""

import importlib.util
import logging
import os
import pickle
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import cloudpickle
import cryptography  # noqa: F401, which temporary certificates need
import dask
import jax
from distributed import Client, Nanny, Scheduler, Security, SpecCluster, Worker, get_worker
from distributed.client import ClosedClientError
from distributed.comm.addressing import get_address_host
from distributed.comm.core import CommClosedError
from distributed.core import Status
from distributed.scheduler import KilledWorker

from metastep._core.errors import InputError
from metastep._core.parallel import Listener, Pool, call_with, count_threads, prepare_jax, use_cores, using
from metastep._core.provenance import environment_record, first_difference
from metastep._core.storage import read_bytes, warn

# Defaults for a cluster that is started here. A task whose workers are killed is given up only after many of them.
dask.config.update_defaults({"distributed": {"scheduler": {"allowed-failures": 30, "worker-ttl": "60s"}}})

# Options of a scheduler or worker that only this machine can reach, and with `security` only who holds its certificate.
LOOPBACK: dict[str, Any] = {"host": "127.0.0.1", "protocol": "tls://", "dashboard": False}

# One sentence says what a user needs to know; the client's logger has a level of its own.
for _name in ("distributed", "distributed.client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_File = str | Path | None


class PrivateScheduler(Scheduler):
    """The scheduler of a run. It serves no pages to browsers: Dask would serve them to all users of the machine."""

    def start_http_server(self, *arguments: Any, **options: Any) -> None:
        """Start none."""


class PrivateWorker(Worker):
    """A worker of a run, without pages either."""

    start_http_server = PrivateScheduler.start_http_server


@cache
def _environment() -> dict[str, str]:
    return environment_record(packages=[name for name in ("mujoco", "gymnasium") if importlib.util.find_spec(name)])


@cache
def _prepare(device: str, cores: int | None) -> None:
    """Set up a worker before its first task."""
    use_cores(cores)
    prepare_jax(device)


def _call(
    expected: dict[str, str], device: str, cores: int | None, threads_on: dict[str, int], topic: str, call: bytes
) -> Any:
    """Run a task on a worker, which shares the cores of its machine with the other workers there."""
    worker = get_worker()
    _prepare(device, cores)
    if difference := first_difference(expected, _environment()):
        key, ours, theirs = difference
        other = f"the worker {worker.address} has {key} = {theirs}, this process has {ours}"
        raise InputError(f"--scheduler: {other}; unlike workers would give different results.")
    share = count_threads(None) // threads_on.get(get_address_host(worker.address), worker.state.nthreads)
    return call_with(lambda progress: worker.log_event(topic, progress), share, *pickle.loads(call))


class DaskPool:
    """The workers of a cluster, with this process's device; `keep`, called once a second, starts workers that are missing."""

    is_local = False

    def __init__(self, client: Client, cores: int | None = None, keep: Callable[[], object] = lambda: None) -> None:
        self._client, self._executor, self._keep = client, client.get_executor(pure=False), keep
        self._call, self._topic = partial(_call, _environment(), jax.default_backend(), cores), "metastep"
        self._threads_on, self._counted = Counter[str](), 0.0

    def slots(self) -> int:
        """Return two per thread of the workers that are there now."""
        if time.monotonic() - self._counted > 1.0:
            self._keep()
            self._threads_on, self._counted = Counter(), time.monotonic()
            for address, threads in self._ask(self._client.nthreads).items():
                self._threads_on[get_address_host(address)] += threads
        return 2 * max(1, sum(self._threads_on.values()))

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Schedule a call."""
        try:
            call = cloudpickle.dumps((function, arguments))  # as bytes, since Dask would search arguments for tasks
        except Exception as error:  # whatever a user's own class raises
            raise InputError(f"--workers, --scheduler: the work cannot be sent to a worker: {error}.") from None
        with warnings.catch_warnings():
            # The model goes with every task: what the scheduler holds is not lost with a worker.
            warnings.filterwarnings("ignore", message="Sending large graph")
            return self._ask(self._executor.submit, self._call, self._threads_on, self._topic, call)

    @contextmanager
    def open(self, listener: Listener) -> Iterator[None]:
        """Send progress from the workers to a listener, by way of the scheduler."""
        self._topic = f"metastep-{uuid4()}"  # late reports of earlier work go nowhere
        self._ask(self._client.subscribe_topic, self._topic, lambda event: listener(event[1]))
        try:
            yield
        finally:
            with suppress(CommClosedError):
                self._ask(self._client.unsubscribe_topic, self._topic)

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the client; a scheduler that is gone is a CommClosedError, however Dask notices it."""
        with suppress(OSError, ClosedClientError):
            if self._client.status == "running":
                return function(*arguments)
        raise CommClosedError


@contextmanager
def workers(number: int) -> Iterator[Pool]:
    """Run all calls in `number` processes on this machine, which share its cores or GPUs and end with this process."""
    gpus = len(jax.devices()) if jax.default_backend() != "cpu" else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    private: dict[str, Any] = {**LOOPBACK, "security": Security.temporary()}
    options = [
        {**private, "worker_class": PrivateWorker, "nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL}
        | ({"env": {"CUDA_VISIBLE_DEVICES": visible.split(",")[index % gpus]}} if gpus else {})
        for index in range(number)
    ]
    scheduler = {"cls": PrivateScheduler, "options": {**private, "port": 0}}
    with (
        # Dask imports from its scratch folder, which would be one of a known name that others may have made.
        TemporaryDirectory(prefix="metastep-") as scratch,
        dask.config.set({"temporary-directory": scratch}),
        SpecCluster(workers={}, scheduler=scheduler, security=private["security"]) as cluster,
        Client(cluster) as client,
    ):
        cluster.worker_spec.update({index: {"cls": Nanny, "options": each} for index, each in enumerate(options)})
        failures = 0

        def keep() -> None:
            """Start what is missing: a nanny replaces its worker, but gives up if that dies while it starts."""
            nonlocal failures
            ended = (Status.closed, Status.failed)
            for name in [name for name, nanny in cluster.workers.items() if nanny.status in ended]:
                del cluster.workers[name]
                failures += 1
            failures = 0 if client.nthreads() else failures
            if failures >= 3:  # while no other worker is there: the next ones would die, too
                remedy = 'a script that starts workers must do so below `if __name__ == "__main__":`'
                lost = f"{failures} processes ended before they could work; {remedy}"
                raise InputError(f"--workers: {lost}, and the modules it imports must be installed.")
            cluster.scale(number)

        keep()
        with _running(DaskPool(client, count_threads(None), keep), f"--workers: the cluster of {number}") as pool:
            yield pool


@contextmanager
def cluster_at(address: str, tls_ca: _File = None, tls_cert: _File = None, tls_key: _File = None) -> Iterator[Pool]:
    """Run all calls on the workers of the scheduler at an address.

    One at `tls://...` needs PEM files, by default those of Dask's configuration: its authority, and our certificate and key.
    """
    given = {"--tls-ca": tls_ca, "--tls-cert": tls_cert, "--tls-key": tls_key}
    is_secure = address.startswith("tls://")
    if any(given.values()) and not is_secure:
        raise InputError(f"--scheduler: {address!r:.200} must begin with tls:// where --tls-ca or others are given.")
    if not is_secure:
        danger = "everyone who reaches it can run code there, on its workers and here"
        warn(f"--scheduler: {address} is open, so {danger}; prefer tls://")
    try:
        client = Client(address, security=_security(given) if is_secure else None)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise InputError(f"--scheduler: {address!r:.200} does not answer: {reason}.") from None
    with client, _running(DaskPool(client), f"--scheduler: {address}") as pool:
        yield pool


def _security(given: dict[str, _File]) -> Security:
    """Return certificates for the role of a client."""
    files = {option: file for option, file in given.items() if file is not None}
    if files and (missing := [option for option in given if option not in files]):
        raise InputError(f"{missing[0]}: is missing; {', '.join(given)} must be given together.")
    for option, file in files.items():
        if b"-----BEGIN " not in (content := read_bytes(file)):
            raise InputError(f"{option}: {file} must be a PEM file.")
        if b"ENCRYPTED" in content:
            raise InputError(f"{option}: {file} is encrypted; Dask needs a key without a password.")
    names = zip(("tls_ca_file", "tls_client_cert", "tls_client_key"), map(str, files.values()), strict=False)
    security = Security(require_encryption=True, **dict(names))
    try:
        context = security.get_connection_args("client")["ssl_context"]
    except OSError as error:
        raise InputError(f"{', '.join(given)}: they do not belong together: {error.strerror or error}.") from None
    if context is None:
        raise InputError(f"--scheduler: tls:// needs {', '.join(given)}.")
    return security


@contextmanager
def _running(pool: DaskPool, name: str) -> Iterator[Pool]:
    try:
        with using(pool):
            yield pool
    except (CancelledError, CommClosedError, TimeoutError):
        resume = "finished work is kept, and the same command resumes"
        raise InputError(f"{name} does not answer any more; {resume}.") from None
    except KilledWorker:
        raise InputError(f"{name} lost one worker after the other at the same task; check its memory.") from None
    except ImportError as error:
        raise InputError(f"{name} has a worker on which a module is missing: {error}.") from None
