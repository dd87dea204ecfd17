"""SIGKILLs over all stages of a command: at random moments, and in the middle of random calls that change the disk.

An undisturbed command shows how long its stages take, how often each of them changes the disk, and leaves a copy of the folder at
the beginning of each. Then one to six stages are drawn; a copy of the folder at the first of them is worked on and killed there,
resumed and killed in the next, and at last resumed to its end, where it must hold the same bytes as the undisturbed one.

`python -m tests.campaigns.kills WORK NUMBER SEED FOLDER` prints the outcomes as JSON; WORK is one of `WORKS`.
"""

import errno
import hashlib
import json
import os
import random
import shutil
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
from metastep.controllers import Controller
from metastep.experiments import learn, publishing, reporting
from metastep.experiments.checking import check_folder
from metastep.experiments.run import Run
from metastep.experiments.run import run as run_experiment
from metastep.fqi import load_model, recorded_model
from metastep.mdp import collection
from tests import drafts
from tests.disk import watch
from tests.processes import CHILDREN
from tests.search.test_stage import TINY

_TINY = """collect.num_meta_episodes=32 rollout.num_episodes=4 rollout.block_size=8 meta.num_updates=2 fqi.iterations=2
    fqi.regressor.trees=3 fqi.num_stepsizes=11 selection.num_tasks=4 compare.num_tasks=6 compare.num_updates=2
    compare.num_tuning_tasks=2 compare.num_resamples=100 compare.methods=["metafqi","fixed","adam"]"""
SETTINGS = _TINY.split()
FAULTS = {"full disk": errno.ENOSPC, "read-only": errno.EROFS}  # of all calls after the first that has it
SAID = "stderr.txt"  # beside the folder


class Work(NamedTuple):
    """A command that is killed. Everything is called with the folder that it writes; inputs lie beside that."""

    command: Callable[[Path], list[str]]
    problems: Callable[[Path], object] = lambda folder: None  # found when it has ended
    inputs: Callable[[Path], object] = lambda folder: None  # makes what it reads, and what lies in the folder before
    announced: Callable[["Child"], object] = lambda child: None  # further stages
    state: Callable[[Path], str] = lambda folder: ""  # after a kill; a state in capitals is a failure
    refuses_twice: bool = False  # whether it refuses to run when it has ended, and then leaves leftovers as they are


class Child:
    """Run the command in a process, report when a stage begins, and die at one of the calls of one stage that change the disk."""

    def __init__(self, work: str, parent: Connection, aimed: str, at: int, mode: str) -> None:
        self.work, self.parent, self.aimed, self.at, self.mode = work, parent, aimed, at, mode
        self.stage, self.calls, self.fault, self.is_drafting = "start", 0, "", drafts.are_on()

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
        for number, path in ((1, Path(os.devnull)), (2, folder.with_name(SAID))):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
        drafts.switch(self.is_drafting)
        watch(self.around)
        self.announce(progress.Terminal, "stage", lambda _, name, *rest: name)
        self.announce(reporting, "write_report", lambda _: "report")
        WORKS[self.work].announced(self)
        sys.argv = ["metastep", *WORKS[self.work].command(folder)]
        try:
            if sys.argv[1] == "reproduce":
                reproduce(folder)
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
    def kind(self) -> str:
        return (
            self.name.removeprefix("nav2d: ").removeprefix("update ").partition(" ")[0]
        )  # without a run, model or method


def words(folder: Path, verb: str = "run", *more: str) -> list[str]:
    overrides = [word for setting in (*SETTINGS, *more) for word in ("--set", setting)]
    return [verb, "nav2d", "--out", str(folder), "--device", "cpu", *overrides]


def checked(folder: Path) -> list[Any]:
    return [finding for finding in check_folder(folder) if finding.problem]


def trained(folder: Path) -> Run:
    """Return a run beside the folder, made on first use."""
    out = folder.with_name("input")
    return Run.open(out) if out.exists() else run_experiment("nav2d", out, overrides=SETTINGS)


def published(folder: Path, *more: str) -> list[str]:
    return ["publish", str(folder.with_name("input")), "--name", "m", "--out", str(folder), "--device", "cpu", *more]


def publish_older(folder: Path) -> None:
    """Leave a pair of a smaller model."""
    publishing.publish([trained(folder)], "m", folder, trees=1)


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


def announce_rounds(child: Child) -> None:
    def name(_: object, controller: Controller, *rest: object) -> str:
        return "first-round" if controller.name == "uniform" else "later-round"

    child.announce(collection, "_collect_blocks", name)


def announce_learning(child: Child) -> None:
    learn._SECONDS_BETWEEN_PARTS = 0.0  # a part after every update
    child.announce(learn, "_write_results", lambda *_: "results")


def announce_pair(child: Child) -> None:
    child.announce(publishing, "write_new", lambda path, *rest: "pair" if path.suffix == ".md" else "")


def reproduce(folder: Path) -> None:
    from paper import runner

    runner.reproduce(["fig2"], folder, "tiny", 3, progress.Terminal(), environments=["nav2d"])


def reproduction(folder: Path) -> list[Any]:
    from paper.runner import check_reproduction

    return [finding for finding in check_reproduction(folder) if finding.problem]


def learned(folder: Path) -> list[str]:
    return ["learn", str(folder.with_name("input")), "--out", str(folder), "--updates", "5", "--device", "cpu"]


def searched(folder: Path) -> list[str]:
    return ["search", str(folder.with_name("tiny.toml")), "--scale", "full", "--out", str(folder), "--device", "cpu"]


def write_search(folder: Path) -> None:
    folder.with_name("tiny.toml").write_text(TINY.replace(", methods = []", ""))


_ROUNDS = "collect.rounds=3", "collect.num_meta_episodes=16"
WORKS = {
    "run": Work(words, checked),
    "rounds": Work(lambda folder: words(folder, "collect", *_ROUNDS), checked, announced=announce_rounds),
    "search": Work(searched, checked, write_search),
    "learn": Work(learned, inputs=trained, announced=announce_learning),
    "publish": Work(published, inputs=trained, announced=announce_pair, state=pair, refuses_twice=True),
    "replace": Work(
        lambda folder: published(folder, "--force"), inputs=publish_older, announced=announce_pair, state=pair
    ),
    "reproduce": Work(lambda _: ["reproduce"], reproduction),
}


def run(
    work: str,
    folder: Path,
    began: Callable[[str, int, BaseProcess], object] = lambda *_: None,
    aimed: tuple[str, int, str] = ("", 0, ""),
) -> tuple[int | None, str]:
    """Run to the end, or to a kill; return the exit code and the stage that was under way.

    `began` receives the stage that begins and the number of calls of the one before; the process waits until it returns.
    """
    ours, theirs = CHILDREN.Pipe()
    process = CHILDREN.Process(target=Child(work, theirs, *aimed).run, args=(folder,))
    process.start()
    theirs.close()
    stage = "start"
    with ours, suppress(EOFError, ConnectionError):
        began(stage, 0, process)
        while True:
            stage, calls = ours.recv()
            began(stage, calls, process)
            ours.send(None)
    process.join()
    return process.exitcode, stage


def undisturbed(work: str, folder: Path, copies: Path) -> list[Stage]:
    """Return the stages of an undisturbed command, which runs twice: the first time compiles."""
    stages, since = list[Stage](), 0.0
    restore(folder, copies / "0")
    assert run(work, folder) == (0, "end")
    restore(copies / "0", folder)

    def began(name: str, calls: int, _: object) -> None:
        nonlocal since
        if stages:
            stages[-1] = stages[-1]._replace(seconds=time.monotonic() - since, calls=calls)
            restore(folder, copies / str(len(stages)))
        stages.append(Stage(name, 0.0, 0, copies / str(len(stages))))
        since = time.monotonic()

    assert run(work, folder, began) == (0, "end")
    return stages[:-1]


def restore(source: Path, target: Path) -> None:
    """Make a folder a copy of another, which need not exist."""
    shutil.rmtree(target, ignore_errors=True)
    if source.exists():
        shutil.copytree(source, target)


def kill(work: str, folder: Path, stage: Stage, generator: random.Random) -> tuple[int | None, str]:
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


def digests(folder: Path, *, hidden: bool = True) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "times.json")
    files = [path for path in files if hidden or path.name[0] != "."]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def campaign(which: str, number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, work = random.Random(seed), WORKS[which]
    folder = sandbox / "work"  # always the same, since reports name it
    work.inputs(folder)
    stages = undisturbed(which, folder, sandbox / "copies")
    reference, kinds = digests(folder), sorted({stage.kind for stage in stages})
    killed, states, compared, failures = Counter[str](), Counter[str](), 0, list[str]()

    def is_complete() -> bool:
        return work.refuses_twice and digests(folder, hidden=False) == reference

    while killed.total() < number:
        drawn = [generator.choice(kinds) for _ in range(min(generator.randint(1, 6), number - killed.total()))]
        aims = sorted(generator.choice([i for i, stage in enumerate(stages) if stage.kind == kind]) for kind in drawn)
        restore(stages[aims[0]].folder, folder)
        history = [f"from {stages[aims[0]].name}"]
        for aim in aims:
            code, name = kill(which, folder, stages[aim], generator)
            state = work.state(folder)
            states[state] += 1
            history.append(f"{code} in {name} {state}")
            if code == -signal.SIGKILL:
                killed[next((stage.kind for stage in stages if stage.name == name), name)] += 1
            elif code and not is_complete():
                failures.append(f"{history}: stopped")
            if state != state.lower():
                failures.append(f"{history}: half a publication")
        expected = 2 if is_complete() else 0
        code, _ = run(which, folder)
        compared += 1
        found = digests(folder, hidden=not expected)
        if code != expected or found != reference:
            names = sorted(name for name in found.keys() | reference.keys() if found.get(name) != reference.get(name))
            failures.append(f"{history}: code {code}, other bytes in {names}")
        if problems := work.problems(folder):
            failures.append(f"{history}: check finds {problems}")
        print(f"{dict(killed)} killed, {compared} compared, {len(failures)} failed", file=sys.stderr, flush=True)
    counts = {"kills": killed.total(), "outcomes": dict(killed), "runs compared": compared}
    return counts | ({"states": dict(states)} if work.state(folder) else {}) | {"failures": failures[:20]}


if __name__ == "__main__":
    os.umask(0o022)
    print(json.dumps(campaign(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
