"""Who does the work: this process and those that help it, or a crew that somebody employs for a while, such as a cluster's.

Work is cut into calls that do not depend on one another (blocks of learners), so what comes of it does not depend on who makes
which call, nor on how many are under way at a time.
"""

import heapq
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from threading import Lock
from typing import Any, Protocol

import cloudpickle

from metastep._core.threads import count_threads, part_of_cores

Tell = Callable[[Any], None]

_SECONDS_BETWEEN_LOOKS = 1.0  # at the slots of a crew: others may join it while calls are under way


class Crew(Protocol):
    """Whoever makes calls; function, arguments and results travel to and fro where others than this process do."""

    @property
    def writes_here(self) -> bool:
        """Whether calls are made on this machine, so that they can write where this process writes."""

    def slots(self, here: int) -> int:
        """How many calls to have under way, where one process of this kind makes `here` of them side by side: two for each."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Have a call made."""

    def telling(self, listener: Tell) -> AbstractContextManager[Tell]:
        """A function that calls may use to tell the listener how far they are; it may be called by several threads at once."""


def packed(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """A call as it travels from one process of a crew to another; no file holds one."""
    asked: bytes = cloudpickle.dumps((function, arguments))
    return asked


def make_packed(asked: bytes) -> Any:
    """Make such a call, and give what comes of it."""
    function, arguments = cloudpickle.loads(asked)
    return function(*arguments)


_employed: list[Crew] = []


@contextmanager
def employed(crew: Crew) -> Iterator[Crew]:
    """Have all work done by a crew meanwhile."""
    _employed.append(crew)
    try:
        yield crew
    finally:
        _employed.remove(crew)


def who_is_employed() -> Crew | None:
    """The crew that does all work now; None where this process sees to it."""
    return _employed[-1] if _employed else None


class Threads:
    """Threads of this process.

    The processors are divided among the calls under way: where fewer are left than there are threads, each may use more of
    them, for forests and the like.
    """

    writes_here = True

    def __init__(self, number: int) -> None:
        self._pool, self._cores, self._under_way = ThreadPoolExecutor(number), count_threads(None), 0
        self._counting, self._is_leaving = Lock(), False

    def __enter__(self) -> "Threads":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_leaving = kind is not None
        # An impatient user does not wait for simulations; whatever they write is whole, or not there.
        self._pool.shutdown(wait=kind is None or issubclass(kind, Exception), cancel_futures=True)

    def slots(self, here: int) -> int:
        return 2 * here  # nobody waits for the caller to see to what came of the last call

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        return self._pool.submit(self._call, function, arguments)

    @contextmanager
    def telling(self, listener: Tell) -> Iterator[Tell]:
        def tell(news: Any) -> None:
            if self._is_leaving:
                raise CancelledError  # nobody asks what came of it
            listener(news)

        yield tell

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self._count(1)
        try:
            with part_of_cores(lambda: self._cores // self._under_way):
                return function(*arguments)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._counting:
            self._under_way += change


class Queue:
    """Calls that wait for a crew, and those under way: never more than it has slots, the first in order first."""

    def __init__(self, crew: Crew, here: int) -> None:
        self._crew, self._here, self._arrivals = crew, here, count()
        self._waiting: list[tuple[int, int, Any, Callable[..., Any], tuple[Any, ...]]] = []
        self._under_way: dict[Future[Any], Any] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting or self._under_way)

    @property
    def is_busy(self) -> bool:
        """Whether everybody who makes calls has one, so that there is time to wait for more of them."""
        return bool(self._waiting) or len(self._under_way) >= max(1, self._crew.slots(self._here) // 2)

    def add(self, order: int, tag: Any, function: Callable[..., Any], *arguments: Any) -> None:
        """Have a call made once its turn comes; of the same order, the first that was added comes first."""
        heapq.heappush(self._waiting, (order, next(self._arrivals), tag, function, arguments))

    def take(self) -> Iterator[tuple[Any, Any]]:
        """Wait until calls are through: their tags with what came of them; what one of them raised is raised here."""
        done: set[Future[Any]] = set()
        while self and not done:
            slots = self._crew.slots(self._here)
            while self._waiting and len(self._under_way) < slots:
                _, _, tag, function, arguments = heapq.heappop(self._waiting)
                self._under_way[self._crew.submit(function, *arguments)] = tag
            patience = _SECONDS_BETWEEN_LOOKS if self._waiting else None
            done = wait(self._under_way, patience, FIRST_COMPLETED).done
        for future in done:
            yield self._under_way.pop(future), future.result()
