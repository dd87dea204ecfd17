"""SIGKILLs over all stages of a run: at random moments, and in the middle of random calls that change the disk.

An undisturbed run tells how long its stages take, how often each of them changes the disk, and leaves a copy of the folder at
the beginning of each. Then the stages of one to six kills are drawn, all equally likely; a copy of the folder as it was at
the first of them is run and killed there, resumed and killed in the next, and at last resumed to its end, where it must hold
the same bytes as the undisturbed one, and `metastep check` must find nothing.

`python -m tests.campaigns.kills NUMBER SEED FOLDER` prints what came of it as JSON.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

from metastep.experiments.checking import check_folder

SETTINGS = [
    "collect.num_meta_episodes=32",
    "rollout.num_episodes=4",
    "rollout.block_size=8",
    "meta.num_updates=2",
    "fqi.iterations=2",
    "fqi.regressor.trees=3",
    "selection.num_tasks=4",
    "compare.num_tasks=6",
    "compare.num_updates=2",
    "compare.num_tuning_tasks=2",
    "compare.num_resamples=100",
    "fqi.num_stepsizes=11",
    'compare.methods=["metafqi", "fixed", "adam"]',
]
# Runs the command and tells where a stage begins, with the number of calls so far that change the disk; but ends itself at
# one of the calls of one stage: before, after, or within a write.
PROGRAM = """
import os, signal, socket, sys
parent, aimed, at, mode = socket.socket(fileno=int(sys.argv.pop(1))), sys.argv.pop(1), int(sys.argv.pop(1)), sys.argv.pop(1)
from metastep import cli, progress, storage
from metastep.experiments import runner
stage, calls = "start", 0
def begin(name):
    global stage, calls
    parent.sendall(f"{name}|{calls}\\n".encode())
    parent.recv(1)
    stage, calls = name, 0
def wrap(name, call):
    def counted(*arguments):
        global calls
        calls += 1
        here = stage == aimed and calls == at
        if here and mode == "within" and name == "write":
            call(arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif here and mode == "after":
            call(*arguments)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return counted
storage.DISK = storage.Disk(*(wrap(name, call) for name, call in storage.Disk()._asdict().items()))
opened, written = progress.Terminal.stage, runner.write_report
def announced(self, name, *rest):
    begin(name)
    return opened(self, name, *rest)
def reported(*arguments):
    begin("report")
    return written(*arguments)
progress.Terminal.stage, runner.write_report = announced, reported
try:
    cli.main()
finally:
    begin("end")
"""


class Stage(NamedTuple):
    """A stage of the undisturbed run."""

    name: str
    seconds: float
    calls: int
    folder: Path

    @property
    def kind(self) -> str:
        """The methods are tuned and compared one after the other."""
        first = self.name.partition(" ")[0]
        return "compare" if first == "test" else first


def words(folder: Path) -> list[str]:
    overrides = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["run", "nav2d", "--out", str(folder), "--device", "cpu", *overrides]


def run(
    folder: Path,
    began: Callable[[str, int, subprocess.Popen[bytes]], object] = lambda *_: None,
    aimed: tuple[str, int, str] = ("", 0, ""),
) -> tuple[int, str]:
    """Run to the end, or to a kill: the exit code, and the stage that was under way.

    `began` is told what begins and how many calls the stage before it made; the process waits until it returns.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", PROGRAM, str(theirs.fileno()), *map(str, aimed), *words(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
    )
    theirs.close()
    stage = "start"
    with ours, ours.makefile("r") as lines, suppress(ConnectionError):
        for line in lines:
            stage, _, calls = line.strip().partition("|")
            began(stage, int(calls), process)
            ours.sendall(b"\n")
    return process.wait(), stage


def undisturbed(folder: Path, copies: Path) -> list[Stage]:
    """The stages of a run that nobody stops."""
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


def kill(folder: Path, stage: Stage, generator: random.Random) -> tuple[int, str]:
    """Run and kill in a stage, if it comes to that."""
    if stage.calls and (stage.name == "start" or generator.random() < 0.5):
        mode = generator.choice(["before", "within", "after"])
        return run(folder, aimed=(stage.name, generator.randint(1, stage.calls), mode))
    timers: list[Timer] = []

    def began(name: str, _: int, process: subprocess.Popen[bytes]) -> None:
        if name == stage.name:
            timers.append(Timer(generator.uniform(0.0, stage.seconds), process.kill))
            timers[0].start()

    try:
        return run(folder, began)
    finally:
        for timer in timers:
            timer.cancel()


def digests(folder: Path) -> dict[str, str]:
    """Of everything, leftovers included."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def campaign(number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, began = random.Random(seed), time.monotonic()
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
    return {
        "kills": killed.total(),
        "outcomes": dict(killed),
        "runs compared": compared,
        "failures": failures[:20],
        "seconds": round(time.monotonic() - began),
    }


if __name__ == "__main__":
    os.umask(0o022)
    print(json.dumps(campaign(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
