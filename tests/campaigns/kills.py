"""SIGKILLs over all stages of a command: at random moments, and in the middle of random calls that change the disk.

An undisturbed command shows how long its stages take, how often each of them changes the disk, and leaves a copy of the folder at
the beginning of each. Then one to six stages are drawn; a copy of the folder at the first of them is worked on and killed there,
resumed and killed in the next, and at last resumed to its end, where it must hold the same bytes as the undisturbed one.
"""

import errno
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

from metastep import cli
from metastep._core import progress
from metastep._core.errors import InputError
from metastep._core.storage import sha256_of
from metastep.experiments import learn, publishing, reporting
from metastep.experiments.checking import check_folder
from metastep.experiments.run import Run
from metastep.experiments.run import run as run_experiment
from metastep.fqi.model import load_model, recorded_model
from metastep.mdp import collection
from paper import runner
from tests.campaigns import SETTINGS, Tally, digests, main, restore
from tests.disk import watch
from tests.processes import CHILDREN, Done, Running
from tests.search.test_stage import TINY

FAULTS = {"full disk": errno.ENOSPC, "read-only": errno.EROFS}  # of all calls after the first that has it


class Work(NamedTuple):
    """A command that is killed. Everything is called with the folder that it writes; inputs lie beside that."""

    command: Callable[[Path], list[str]]
    problems: Callable[[Path], object] = lambda folder: None  # found when it has ended
    inputs: Callable[[Path], object] = lambda folder: None  # makes what it reads, and what lies in the folder before
    state: Callable[[Path], str] = lambda folder: ""  # after a kill; a state in capitals is a failure
    refuses_twice: bool = False  # whether it refuses to run when it has ended, and then leaves leftovers as they are


class Child:
    """Run the command in a process, report when a stage begins, and die at one of the calls of one stage that change the disk."""

    def __init__(self, work: str, parent: Connection, aimed: str, at: int, mode: str) -> None:
        self.work, self.parent, self.aimed, self.at, self.mode = work, parent, aimed, at, mode
        self.stage, self.calls, self.fault = "start", 0, ""

    def begin(self, name: str) -> None:
        self.parent.send((name, self.calls))
        self.parent.recv()
        self.stage, self.calls = name, 0

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self.calls += 1
        here = self.stage == self.aimed and self.calls == self.at
        if here and self.mode in FAULTS:
            self.fault = self.mode
        if self.fault == "read-only" or (self.fault and name in ("create", "write", "mkdir", "link")):
            raise OSError(FAULTS[self.fault], os.strerror(FAULTS[self.fault]))
        if self.fault:
            return call(*arguments)
        if here and self.mode == "within" and name == "write":
            call(arguments[0][: len(arguments[0]) // 2])
        elif here and self.mode == "after":
            call(*arguments)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)

    def announce(self, place: Any, attribute: str, name: Callable[..., str]) -> None:
        """Have a function report a stage that begins with it; `name` takes its arguments, "" is none."""
        function = getattr(place, attribute)

        def begun(*arguments: Any, **options: Any) -> Any:
            if stage := name(*arguments):
                self.begin(stage)
            return function(*arguments, **options)

        setattr(place, attribute, begun)

    def run(self, folder: Path) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
        watch(self.around)
        learn._SECONDS_BETWEEN_CHECKPOINTS = 0.0  # a checkpoint after every update
        self.announce(progress.Terminal, "stage", lambda _, name, *rest: name)
        self.announce(reporting, "write_report", lambda _: "report")
        self.announce(learn, "_write_results", lambda *_: "results")
        self.announce(publishing.storage, "write_new", lambda path, *rest: "pair" if path.suffix == ".md" else "")
        if self.work == "rounds":
            rounds = {"uniform": "first-round", "exploring": "later-round"}
            self.announce(collection, "_collect_blocks", lambda _, controller, *rest: rounds[controller.name])
        sys.argv = ["metastep", *WORKS[self.work].command(folder)]
        try:
            if self.work == "reproduce":
                runner.reproduce(["fig2"], folder, "tiny", 3, progress.Terminal(), environments=["nav2d"])
            else:
                cli.main()
        finally:
            self.begin("end")


class Stage(NamedTuple):
    """A stage of the undisturbed run."""

    name: str
    seconds: float
    calls: int
    folder: Path

    @property
    def kind(self) -> str:  # without a run, model or method
        return self.name.removeprefix("nav2d: ").removeprefix("update ").partition(" ")[0]


def words(folder: Path, verb: str = "run", *more: str) -> list[str]:
    overrides = [word for setting in (*SETTINGS, *more) for word in ("--set", setting)]
    return [verb, "nav2d", "--out", str(folder), "--device", "cpu", *overrides]


def checked(folder: Path, check: Callable[[Path], Any] = check_folder) -> list[Any]:
    return [finding for finding in check(folder) if finding.problem]


def trained(folder: Path) -> Run:
    """Return a run beside the folder, made on first use."""
    out = folder.with_name("input")
    return Run.open(out) if out.exists() else run_experiment("nav2d", out, overrides=SETTINGS)


def using(verb: str, *more: str) -> Callable[[Path], list[str]]:
    """Return the command that takes the run beside the folder and writes to it."""
    return lambda folder: [verb, str(folder.with_name("input")), "--out", str(folder), "--device", "cpu", *more]


def pair(folder: Path) -> str:
    """Return the state of a model and its card."""
    model, card = folder / "m.safetensors", folder / "m.md"
    if not model.exists():
        return "CARD ALONE" if card.exists() else "nothing"
    try:
        load_model(model)
    except InputError as error:
        return "refused" if "does not belong to the card" in str(error) else f"DAMAGED {error}"
    if not card.exists():
        return "model alone"
    return "pair" if recorded_model(card) == sha256_of(model) else "PAIR THAT DOES NOT BELONG TOGETHER"


def searched(folder: Path) -> list[str]:
    return ["search", str(folder.with_name("tiny.toml")), "--scale", "full", "--out", str(folder), "--device", "cpu"]


def write_search(folder: Path) -> None:
    folder.with_name("tiny.toml").write_text(TINY.replace(", methods = []", ""))


_ROUNDS = "collect.rounds=3", "collect.num_meta_episodes=16"
WORKS = {
    "run": Work(words, checked),
    "rounds": Work(lambda folder: words(folder, "collect", *_ROUNDS), checked),
    "search": Work(searched, checked, write_search),
    "learn": Work(using("learn", "--updates", "5"), inputs=trained),
    "publish": Work(using("publish", "--name", "m"), inputs=trained, state=pair, refuses_twice=True),
    "replace": Work(  # a pair of a smaller model
        using("publish", "--name", "m", "--force"),
        inputs=lambda folder: publishing.publish(trained(folder), "m", folder, trees=1),
        state=pair,
    ),
    "reproduce": Work(lambda _: [], lambda folder: checked(folder, runner.check_reproduction)),
}


def run(
    work: str,
    folder: Path,
    began: Callable[[str, int, BaseProcess], object] = lambda *_: None,
    aimed: tuple[str, int, str] = ("", 0, ""),
) -> tuple[Done, str]:
    """Run to the end, or to a kill; return what came out and the stage that was under way.

    `began` receives the stage that begins and the number of calls of the one before; the process waits until it returns.
    """
    ours, theirs = CHILDREN.Pipe()
    running = Running(Child(work, theirs, *aimed).run, folder)
    theirs.close()
    stage = "start"
    with ours, suppress(EOFError, ConnectionError):
        began(stage, 0, running.process)
        while True:
            stage, calls = ours.recv()
            began(stage, calls, running.process)
            ours.send(None)
    return running.wait(), stage


class Rehearsed:
    """A command that ran undisturbed: its stages and what it left. If `warm` it ran before, since the first time compiles."""

    def __init__(self, which: str, sandbox: Path, *, warm: bool = True) -> None:
        self.which, self.work, self.tally = which, WORKS[which], Tally()
        self.folder, copies = sandbox / "work", sandbox / "copies"  # always the same, since reports name it
        self.stages = list[Stage]()
        self.work.inputs(self.folder)
        restore(self.folder, copies / "0")
        if warm:
            run(which, self.folder)
            restore(copies / "0", self.folder)
        since = 0.0

        def began(name: str, calls: int, _: object) -> None:
            nonlocal since
            if self.stages:
                self.stages[-1] = self.stages[-1]._replace(seconds=time.monotonic() - since, calls=calls)
                restore(self.folder, copies / str(len(self.stages)))
            self.stages.append(Stage(name, 0.0, 0, copies / str(len(self.stages))))
            since = time.monotonic()

        done, last = run(which, self.folder, began)
        assert (done.returncode, last) == (0, "end"), done.stderr
        self.stages.pop()
        self.reference = digests(self.folder)

    def is_complete(self) -> bool:
        return self.work.refuses_twice and digests(self.folder, hidden=False) == self.reference

    def finish(self, history: object) -> None:
        """Run to the end, and compare with what an undisturbed command left."""
        expected = 2 if self.is_complete() else 0
        code = run(self.which, self.folder)[0].returncode
        found, wanted = digests(self.folder, hidden=not expected), self.reference
        if code != expected or found != wanted:
            names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
            self.tally.failures.append(f"{history}: code {code}, other bytes in {names}")
        if problems := self.work.problems(self.folder):
            self.tally.failures.append(f"{history}: check finds {problems}")


def kill(work: str, folder: Path, stage: Stage, generator: random.Random) -> tuple[Done, str]:
    """Run and kill in a stage, if it comes to that."""
    if stage.calls and generator.random() < 0.5:
        mode = generator.choice(["before", "within", "after"])
        return run(work, folder, aimed=(stage.name, generator.randint(1, stage.calls), mode))
    timers: list[Timer] = []

    def began(name: str, _: int, process: BaseProcess) -> None:
        if name == stage.name:
            timers.append(Timer(generator.uniform(0.0, stage.seconds), process.kill))
            timers[0].start()

    try:
        return run(work, folder, began)
    finally:
        for timer in timers:
            timer.cancel()


def campaign(which: str, number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, rehearsed = random.Random(seed), Rehearsed(which, sandbox, warm=number > 1)
    stages, folder, tally = rehearsed.stages, rehearsed.folder, rehearsed.tally
    kinds, states, compared = sorted({stage.kind for stage in stages}), Counter[str](), 0
    while tally.counts.total() < number:
        drawn = [generator.choice(kinds) for _ in range(min(generator.randint(1, 6), number - tally.counts.total()))]
        aims = sorted(generator.choice([i for i, stage in enumerate(stages) if stage.kind == kind]) for kind in drawn)
        restore(stages[aims[0]].folder, folder)
        history = [f"from {stages[aims[0]].name}"]
        for aim in aims:
            done, name = kill(which, folder, stages[aim], generator)
            code, state = done.returncode, rehearsed.work.state(folder)
            states[state] += 1
            history.append(f"{code} in {name} {state}")
            if code == -signal.SIGKILL:
                tally.add(next((stage.kind for stage in stages if stage.name == name), name))
            elif code and not rehearsed.is_complete():
                tally.failures.append(f"{history}: stopped")
            if state != state.lower():
                tally.failures.append(f"{history}: half a publication")
        rehearsed.finish(history)
        compared += 1
    return tally.found(kills=tally.counts.total(), states=dict(states), compared=compared)


if __name__ == "__main__":
    main(campaign)
