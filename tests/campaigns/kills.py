"""SIGKILLs over all stages of a run: at random moments, and in the middle of random calls that change the disk.

An undisturbed run shows how long its stages take, how often each of them changes the disk, and leaves a copy of the folder at
the beginning of each. Then one to six stages are drawn; a copy of the folder at the first of them is run and killed there,
resumed and killed in the next, and at last resumed to its end, where it must hold the same bytes as the undisturbed one.

`python -m tests.campaigns.kills NUMBER SEED FOLDER` prints the outcomes as JSON.
"""

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
from metastep.experiments import reporting
from metastep.experiments.checking import check_folder
from tests.disk import watch
from tests.processes import CHILDREN

_TINY = """collect.num_meta_episodes=32 rollout.num_episodes=4 rollout.block_size=8 meta.num_updates=2 fqi.iterations=2
    fqi.regressor.trees=3 fqi.num_stepsizes=11 selection.num_tasks=4 compare.num_tasks=6 compare.num_updates=2
    compare.num_tuning_tasks=2 compare.num_resamples=100 compare.methods=["metafqi","fixed","adam"]"""
SETTINGS = _TINY.split()


class Child:
    """Run the command in a process, report when a stage begins, and die at one of the calls of one stage that change the disk."""

    def __init__(self, parent: Connection, aimed: str, at: int, mode: str) -> None:
        self.parent, self.aimed, self.at, self.mode = parent, aimed, at, mode
        self.stage, self.calls = "start", 0

    def begin(self, name: str) -> None:
        self.parent.send((name, self.calls))
        self.parent.recv()
        self.stage, self.calls = name, 0

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self.calls += 1
        here = self.stage == self.aimed and self.calls == self.at
        if here and self.mode == "within" and name == "write":
            call(arguments[0][: len(arguments[0]) // 2])
        elif here and self.mode == "after":
            call(*arguments)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)

    def announced(self, function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
        def begun(*arguments: Any) -> Any:
            self.begin(name or arguments[1])
            return function(*arguments)

        return begun

    def run(self, arguments: list[str]) -> None:
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        watch(self.around)
        progress.Terminal.stage = self.announced(progress.Terminal.stage)  # type: ignore[method-assign]
        reporting.write_report = self.announced(reporting.write_report, "report")
        sys.argv = ["metastep", *arguments]
        try:
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
        return self.name.partition(" ")[0]  # without a method's name


def words(folder: Path) -> list[str]:
    overrides = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["run", "nav2d", "--out", str(folder), "--device", "cpu", *overrides]


def run(
    folder: Path,
    began: Callable[[str, int, BaseProcess], object] = lambda *_: None,
    aimed: tuple[str, int, str] = ("", 0, ""),
) -> tuple[int | None, str]:
    """Run to the end, or to a kill; return the exit code and the stage that was under way.

    `began` receives the stage that begins and the number of calls of the one before; the process waits until it returns.
    """
    ours, theirs = CHILDREN.Pipe()
    process = CHILDREN.Process(target=Child(theirs, *aimed).run, args=(words(folder),))
    process.start()
    theirs.close()
    stage = "start"
    with ours, suppress(EOFError, ConnectionError):
        while True:
            stage, calls = ours.recv()
            began(stage, calls, process)
            ours.send(None)
    process.join()
    return process.exitcode, stage


def undisturbed(folder: Path, copies: Path) -> list[Stage]:
    """Return the stages of an undisturbed run."""
    stages = [Stage("start", 0.0, 0, copies / "0")]
    since = time.monotonic()

    def began(name: str, calls: int, _: object) -> None:
        nonlocal since
        stages[-1] = stages[-1]._replace(seconds=time.monotonic() - since, calls=calls)
        stages.append(Stage(name, 0.0, 0, copies / str(len(stages))))
        shutil.copytree(folder, stages[-1].folder)
        since = time.monotonic()

    assert run(folder, began) == (0, "end")
    return stages[:-1]


def kill(folder: Path, stage: Stage, generator: random.Random) -> tuple[int | None, str]:
    """Run and kill in a stage, if it comes to that."""
    if stage.calls and (stage.name == "start" or generator.random() < 0.5):
        mode = generator.choice(["before", "within", "after"])
        return run(folder, aimed=(stage.name, generator.randint(1, stage.calls), mode))
    timers: list[Timer] = []

    def began(name: str, _: int, process: BaseProcess) -> None:
        if name == stage.name:
            timers.append(Timer(generator.uniform(0.0, stage.seconds), process.kill))
            timers[0].start()

    try:
        return run(folder, began)
    finally:
        for timer in timers:
            timer.cancel()


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "times.json")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def campaign(number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator = random.Random(seed)
    assert run(sandbox / "warm")[0] == 0  # compiles
    folder = sandbox / "run"  # all runs have the same, since reports name it
    stages = undisturbed(folder, sandbox / "copies")
    reference, kinds = digests(folder), sorted({stage.kind for stage in stages})
    shutil.rmtree(folder)
    killed: Counter[str] = Counter()
    compared, failures = 0, list[str]()
    while killed.total() < number:
        drawn = [generator.choice(kinds) for _ in range(min(generator.randint(1, 6), number - killed.total()))]
        aims = sorted(generator.choice([i for i, stage in enumerate(stages) if stage.kind == kind]) for kind in drawn)
        if aims[0]:
            shutil.copytree(stages[aims[0]].folder, folder)
        history = [f"from {stages[aims[0]].name}"]
        for aim in aims:
            code, name = kill(folder, stages[aim], generator)
            history.append(f"{code} in {name}")
            if code == -signal.SIGKILL:
                killed[next((stage.kind for stage in stages if stage.name == name), name)] += 1
            elif code:
                failures.append(f"{history}: stopped")
        code, _ = run(folder)
        compared += 1
        found = digests(folder)
        if code or found != reference:
            names = sorted(name for name in found.keys() | reference.keys() if found.get(name) != reference.get(name))
            failures.append(f"{history}: code {code}, other bytes in {names}")
        if problems := [finding for finding in check_folder(folder) if finding.problem]:
            failures.append(f"{history}: check finds {problems}")
        print(f"{dict(killed)} killed, {compared} compared, {len(failures)} failed", file=sys.stderr, flush=True)
        shutil.rmtree(folder)
    return {"kills": killed.total(), "outcomes": dict(killed), "runs compared": compared, "failures": failures[:20]}


if __name__ == "__main__":
    os.umask(0o022)
    print(json.dumps(campaign(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
