"""Work done by the workers of a Dask cluster: one that is started here, or one that runs already.

    with workers(4):
        metastep.run("cartpole", "runs/cartpole")

Every block of learners is a task. A task whose worker dies is given to another one, and what comes of it is the same to the bit;
so workers must be alike: their versions and their device must be those of this process. Tasks travel as pickles within the
cluster; no file is one.
"""

import importlib.util
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from uuid import uuid4

import dask
import jax
from distributed import Client, Scheduler, SpecCluster, get_worker
from distributed.client import ClosedClientError
from distributed.comm.addressing import get_address_host
from distributed.comm.core import CommClosedError
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.scheduler import KilledWorker

from metastep._core.crew import Crew, Tell, employed, make_packed, packed
from metastep._core.device import prepare_jax
from metastep._core.errors import InputError
from metastep._core.provenance import device_name, environment_record, first_difference
from metastep._core.threads import count_threads, part_of_cores
from metastep.integrations.processes import LOOPBACK, Processes, silence

# For a cluster that is started here, unless the user says otherwise; one that runs has its own. Kills from outside are not a
# task's fault, but one whose workers die each time is given up at last.
dask.config.update_defaults({"distributed": {"scheduler": {"allowed-failures": 30, "worker-ttl": "60s"}}})
_SIMULATORS = tuple(name for name in ("mujoco", "gymnasium") if importlib.util.find_spec(name))


class _Prepared(WorkerPlugin):
    """Has a worker simulate on the device of the process that asks."""

    name = "metastep"

    def __init__(self, device: str) -> None:
        self._device = device

    def setup(self, worker: Any) -> None:
        prepare_jax(self._device)


@cache
def _environment() -> dict[str, str]:
    return environment_record(device_name(), _SIMULATORS)


def _call(expected: dict[str, str], threads_on: Mapping[str, int], asked: bytes) -> Any:
    """What a worker does with a task; it shares the cores of its machine with the other threads that take tasks there."""
    worker = get_worker()
    if difference := first_difference(expected, _environment()):
        key, ours, theirs = difference
        raise InputError(
            f"--scheduler: the worker {worker.address} has {key} = {theirs}, this process has {ours}; results of unlike "
            "workers would differ."
        )
    part = count_threads(None) // threads_on.get(get_address_host(worker.address), worker.state.nthreads)
    with part_of_cores(lambda: part):
        return make_packed(asked)


class _RemoteTell:
    """Tells the process that asked, by way of the scheduler."""

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def __call__(self, news: Any) -> None:
        get_worker().log_event(self.topic, news)


class DaskCrew:
    """The workers of a cluster, as whoever makes calls.

    Args:
        client: connected to its scheduler.
        have_parts: whether every worker knows which part of its machine's cores it may use.
    """

    writes_here = False

    def __init__(self, client: Client, *, have_parts: bool = False) -> None:
        self._client, self._executor, self._have_parts = client, client.get_executor(pure=False), have_parts
        self._environment, self._slots, self._counted = _environment(), 2, 0.0
        self._threads_on: Mapping[str, int] = {}
        self.why_not = ""

    def give_up(self, reason: str) -> None:
        """Have whoever waits for calls, and whoever asks for more, told why there is nobody to make them."""
        self.why_not = reason
        self._executor.shutdown(wait=False)

    def slots(self, here: int) -> int:
        """Two for every thread of every worker there is now, so that none waits for this process."""
        if time.monotonic() - self._counted > 1.0:
            self._counted = time.monotonic()
            with self._answering():
                threads = self._client.nthreads()
            self._slots = 2 * max(1, sum(threads.values()))
            if not self._have_parts:
                on_hosts = Counter[str]()
                for address, number in threads.items():
                    on_hosts[get_address_host(address)] += number
                self._threads_on = dict(on_hosts)
        return self._slots

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        # As bytes: Dask would look for tasks in whatever it can look into.
        asked = packed(function, arguments)
        with warnings.catch_warnings():
            # The model goes with every task: what the scheduler holds is not lost with a worker.
            warnings.filterwarnings("ignore", message="Sending large graph")
            try:
                with self._answering():
                    future: Future[Any] = self._executor.submit(_call, self._environment, self._threads_on, asked)
            except RuntimeError:  # it was shut down in the meantime
                if not self.why_not:
                    raise
        if self.why_not:
            raise InputError(self.why_not)
        return future

    @contextmanager
    def telling(self, listener: Tell) -> Iterator[Tell]:
        topic = f"metastep-{uuid4()}"
        with self._answering():
            self._client.subscribe_topic(topic, lambda event: listener(event[1]))
        try:
            yield _RemoteTell(topic)
        finally:
            with suppress(CommClosedError), self._answering():
                self._client.unsubscribe_topic(topic)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """A scheduler that is gone is one kind of error, whatever Dask makes of it and whenever it is noticed."""
        try:
            if self._client.status != "running":
                raise ClosedClientError
            yield
        except (OSError, ClosedClientError):
            raise (InputError(self.why_not) if self.why_not else CommClosedError()) from None


@contextmanager
def workers(number: int) -> Iterator[Crew]:
    """Have all work done by so many processes on this machine meanwhile; they share its cores, and its GPUs one by one.

    The scheduler is part of this process: what kills it ends the workers, too.
    """
    silence()
    scheduler = {"cls": Scheduler, "options": {**LOOPBACK, "port": 0}}
    with (
        SpecCluster(workers={}, scheduler=scheduler) as cluster,
        Client(cluster) as client,
        _working(client, f"--workers: the cluster of {number}", have_parts=True) as crew,
        Processes(number, cluster.scheduler, crew.give_up),
    ):
        yield crew


@contextmanager
def cluster_at(address: str) -> Iterator[Crew]:
    """Have all work done by the workers of a scheduler that runs at an address meanwhile."""
    silence()
    try:
        client = Client(address)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise InputError(f"--scheduler: {address!r:.200} does not answer: {reason}.") from None
    with client, _working(client, f"--scheduler: {address}") as crew:
        client.register_plugin(_Prepared(jax.default_backend()))
        yield crew


@contextmanager
def _working(client: Client, where: str, *, have_parts: bool = False) -> Iterator[DaskCrew]:
    crew = DaskCrew(client, have_parts=have_parts)
    try:
        with employed(crew):
            yield crew
    except (CancelledError, CommClosedError, TimeoutError):
        lost = f"{where} does not answer any more; what is done is kept, and the same command resumes."
        raise InputError(crew.why_not or lost) from None
    except KilledWorker:
        raise InputError(f"{where} lost one worker after the other at the same work; look at its memory.") from None
    except ImportError as error:
        raise InputError(f"{where} has a worker that lacks something: {error}.") from None
