"""What the stages share: a folder that is resumed, a limit on the time, and programs that are compiled ahead in threads."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metastep import ActorCriticMDP, InputError, Tracker, features
from metastep.experiments.searching import storage
from metastep.features.diagnostics import OF_LOOP
from metastep.mdp.blocks import Stream
from metastep.mdp.runs import BlockResult, BlockRun, run_plans
from metastep.rules.spaces import usual_values
from metastep.search import Network, Searched
from metastep.search.evolution import draw_tasks
from metastep.search.model import places
from metastep.search.network import BUDGET


class OutOfTime(Exception):
    """The time is up; all that is finished is on disk."""


class Clock:
    """A limit on the time, and how long a block of learners takes."""

    def __init__(self, minutes: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.now, self.reserve = now, 0  # blocks to keep time for
        self.end = np.inf if minutes is None else now() + 60.0 * minutes
        self._last, self._done = now(), deque[tuple[float, float]](maxlen=400)  # seconds, and how much was done in them

    def fits(self, seconds: float = 0.0) -> bool:
        """Return whether so many seconds are left, besides those for the reserve."""
        return self.now() + seconds + self.seconds(self.reserve) <= self.end

    def check(self, seconds: float = 0.0) -> None:
        """Raise `OutOfTime` if they are not."""
        if not self.fits(seconds):
            raise OutOfTime

    def advance(self, blocks: float) -> None:
        """Count blocks, or parts of one, that are done, and check the time."""
        now = self.now()
        self._done.append((now - self._last, blocks))
        self._last = now
        self.check()

    def seconds(self, blocks: float) -> float:
        """Return how long so many blocks take, as those of the last minutes did but for the slowest tenth, which compiled."""
        usual = sorted(self._done, key=lambda each: each[0] / each[1])[: -1 - len(self._done) // 10]
        took, done = np.sum(usual, axis=0) if usual else (0.0, 1.0)
        return blocks * float(took / done)


class Folder(NamedTuple):
    """Where results are kept; every file names the settings that it belongs to."""

    path: Path
    identity: str

    def read(self, name: str) -> Any:
        """Return what was written under a name; None where nothing was."""
        file = self.path / f"{name}.json"
        if not file.exists():
            return None
        found = storage.read_json(file)
        if not isinstance(found, dict) or found.get("identity") != self.identity:
            raise InputError(f"File {file} belongs to other settings; put back its own, or use another folder.")
        return found["content"]

    def write(self, name: str, content: Any) -> Any:
        """Write a JSON value under a name, and return it as it will be read."""
        file = self.path / f"{name}.json"
        storage.create_folder(file.parent)
        storage.write_json(file, {"identity": self.identity, "content": content})
        return self.read(name)


def open_folder(path: Path, settings: Any) -> Folder:
    """Return a folder for these settings, JSON; one that was begun with others is refused."""
    folder = Folder(path, storage.sha256_of_json(settings))
    if not (path / "settings.json").exists():
        # A process that was killed while it wrote the settings leaves a hidden file.
        if path.exists() and any(not each.name.startswith(".") for each in path.iterdir()):
            raise InputError(f"--out: {path} holds other files; use a new folder.")
        folder.write("settings", settings)
    folder.read("settings")  # refuses others
    return folder


class Work(NamedTuple):
    """A plan to work on, and where, until when and how progress is shown."""

    folder: Folder
    plan: Any
    seed: int
    clock: Clock
    tracker: Tracker

    def kept(self, name: str, compute: Callable[[], Any], of: Any = None) -> Any:
        """Return a JSON value that is kept under a name; it is computed where it is missing or belongs to something else."""
        known = self.folder.read(name)
        if known is None or known["of"] != of:
            known = self.folder.write(name, {"of": of, "value": compute()})
        return known["value"]

    def announce(self, name: str, blocks: float) -> None:
        """Say how long so many blocks will take."""
        if seconds := self.clock.seconds(blocks):
            print(f"{name}: about {seconds / 60.0:.1f} minutes left in all", flush=True)

    def run(self, name: str, plan: Any, blocks: float) -> Any:
        """Run a plan of so many blocks; stop when the time is up."""
        with self.tracker.stage(name, blocks, "blocks") as stage:

            def advance(amount: float) -> None:
                stage.advance(amount)
                self.clock.advance(amount)

            return run_plans([plan], advance)[0]

    def play(self, name: str, blocks: Sequence[BlockRun]) -> list[BlockResult]:
        """Run blocks of learners."""

        def plan() -> Any:
            return (yield blocks)

        return self.run(name, plan(), len(blocks))


# One at a time, since Python traces in one thread only: many at once would all be late. XLA compiles in many.
_TRACING = Lock()


class Ahead:
    """Compiles the programs of meta-MDPs in threads, in the order of their use, while others already run; not on a CPU."""

    def __init__(self, mdps: Iterable[ActorCriticMDP], threads: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(threads or os.cpu_count())
        self._mdps = [*mdps] if jax.default_backend() != "cpu" else []
        self._failed = list[ActorCriticMDP]()
        self.prepare()

    def prepare(self, *form: Network) -> None:
        """Compile the controllers of this form, and the features that they observe, for all of them."""
        for mdp in self._mdps:
            self._pool.submit(compile_programs, mdp, *form).add_done_callback(partial(self._report, mdp))

    def _report(self, mdp: ActorCriticMDP, done: Future[None]) -> None:
        """Print why a program was not compiled, once: a block that needs it tries again, and takes long."""
        if not done.cancelled() and done.exception() and mdp not in self._failed:
            self._failed.append(mdp)
            print(f"{mdp.env.name} was not compiled ahead: {done.exception()!s:.500}", flush=True)

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
        controller = for_all(mdp, network, np.zeros(network.num_weights, np.float32))
        jax.block_until_ready(controller.propose(controller.init(mdp, learners), learners))
        if {*network.features} - {BUDGET, *OF_LOOP}:  # for their ranges
            jax.block_until_ready(features.compute(mdp, places(mdp, network)[0], learners))
    else:
        jax.block_until_ready(mdp.advance(learners, own_values(mdp, mdp.block_size)))


def for_all(mdp: ActorCriticMDP, network: Network, weights: Any) -> Searched:
    """Return a controller with weights for every learner of a block, as a search has it, to be the same program."""
    return Searched(network, np.tile(weights, (mdp.block_size, 1)))


def own_values(mdp: ActorCriticMDP, num: int) -> jax.Array:
    """Return the hyperparameters of the loop itself, with a rate of 0, for so many learners: (num, coordinates)."""
    usual: dict[str, float] = usual_values(mdp.rule, mdp.space)  # type: ignore[arg-type]  # it is a box
    row = jnp.asarray([usual.get(name, 0.0) for name in mdp.space.names], jnp.float32)
    return jnp.broadcast_to(row, (num, len(row)))
