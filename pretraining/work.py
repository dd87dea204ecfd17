"""What the stages share: a folder that is resumed, a limit on the time, and programs that are compiled ahead in threads."""

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metastep import ActorCriticMDP, InputError
from metastep.mdp import Tasks
from metastep.mdp.blocks import Stream
from metastep.rules.spaces import usual_values
from metastep.search import Network, Searched


class OutOfTime(Exception):
    """The time is up; all that is finished is on disk."""


class Clock:
    """A limit on the time: `check` raises `OutOfTime` where it is over, `lap` also where another lap would not fit."""

    def __init__(self, minutes: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._end = now, float("inf") if minutes is None else now() + 60.0 * minutes
        self._last = now()

    def check(self, ahead: float = 0.0) -> None:
        """Raise if so many seconds more would be too many."""
        if self._now() + ahead > self._end:
            raise OutOfTime

    def start(self) -> None:
        """Begin the first of several pieces of work that take about as long."""
        self._last = self._now()

    def lap(self) -> None:
        """End one of them; another follows."""
        took, self._last = self._now() - self._last, self._now()
        self.check(took)


class Folder(NamedTuple):
    """Where results are kept, each written to a temporary name, synced and renamed.

    Every file names the settings that it belongs to.
    """

    path: Path
    identity: str

    def read(self, name: str) -> Any:
        """Return what was written under a name; None where nothing was."""
        file = self.path / f"{name}.json"
        if not file.exists():
            return None
        try:
            found = json.loads(file.read_text("utf-8"))
            if found["identity"] == self.identity:
                return found["content"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"File {file} is damaged; remove it to compute it again.") from None
        raise InputError(f"File {file} belongs to other settings; put back its own, or use another folder.")

    def write(self, name: str, content: Any) -> Any:
        """Write a JSON value under a name, and return it as it will be read."""
        text = json.dumps({"identity": self.identity, "content": content}, sort_keys=True, allow_nan=False)
        write_bytes(self.path / f"{name}.json", text.encode())
        return json.loads(text)["content"]


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, file)


def open_folder(path: Path, settings: Any) -> Folder:
    """Return a folder for these settings, JSON; one that was begun with others is refused."""
    identity = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    folder, file = Folder(path, identity), path / "settings.json"
    if not file.exists():
        # A process that was killed while it wrote the settings leaves a hidden file.
        if path.exists() and any(not each.name.startswith(".") for each in path.iterdir()):
            raise InputError(f"--out: {path} holds other files; use a new folder.")
        folder.write("settings", settings)
    folder.read("settings")  # refuses others
    return folder


# One at a time, since Python traces in one thread only: many at once would all be late. XLA compiles in many.
_TRACING = Lock()


class Ahead:
    """Compiles the programs of meta-MDPs in threads, in the order of their use, while others already run.

    On a CPU blocks run in threads and processes of their own, which compile what they need.
    """

    def __init__(self, mdps: Iterable[ActorCriticMDP], threads: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(threads or os.cpu_count())
        self._mdps = [*mdps] if jax.default_backend() != "cpu" else []
        for mdp in self._mdps:
            self._pool.submit(compile_programs, mdp)

    def prepare(self, network: Network) -> None:
        """Compile the controllers of this form for all of them."""
        for mdp in self._mdps:
            self._pool.submit(compile_programs, mdp, network)

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def compile_programs(mdp: ActorCriticMDP, network: Network | None = None) -> None:
    """Compile what a block runs, by one update, or its controllers; what is being compiled elsewhere is waited for."""
    tasks = draw_tasks(mdp, 0, Stream.TRAIN, 0)
    with _TRACING:
        mdp.lowered(tasks)
    learners = mdp.begin(tasks)
    if network is not None:
        controller = Searched(network, np.zeros((mdp.block_size, network.num_weights), np.float32))
        jax.block_until_ready(controller.propose(controller.init(mdp, learners), learners))
    else:
        jax.block_until_ready(mdp.advance(learners, own_values(mdp, mdp.block_size)))


def draw_tasks(mdp: ActorCriticMDP, seed: int, stream: Stream, block: int) -> Tasks:
    """Draw the tasks and first policies of one twin for all twins of a block, as a search does."""
    twins = mdp.sampler.twins
    one = dataclasses.replace(mdp, block_size=mdp.block_size // twins).tasks(seed, stream, block)
    return one._replace(context=jnp.tile(one.context, (twins, 1)), theta=jnp.tile(one.theta, (twins, 1)))


def own_values(mdp: ActorCriticMDP, num: int) -> jax.Array:
    """Return the hyperparameters of the loop itself, with a rate of 0, for so many learners: (num, coordinates)."""
    usual: dict[str, float] = usual_values(mdp.rule, mdp.space)  # type: ignore[arg-type]  # it is a box
    row = jnp.asarray([usual.get(name, 0.0) for name in mdp.space.names], jnp.float32)
    return jnp.broadcast_to(row, (num, len(row)))


def in_order(names: Iterable[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the wanted names in the order of a table; unknown ones are refused."""
    known = [*names]
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"families: {unknown[0]!r} is not in the table; allowed are {', '.join(known)}.")
    return tuple(name for name in known if name in wanted)
