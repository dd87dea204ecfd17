"""SIGKILLs of Dask workers, and of the process that schedules them, during `metastep run --workers 2`.

An undisturbed run without workers leaves the reference, and one with two workers tells how long it takes. Then that is run
again and again: a random worker, at work or starting, is killed at random moments until the run is through; it must hold the
same bytes. Nothing is killed while all are starting, because the run gives up after three that die like that.

The scheduler is part of the command's own process: killing it takes the workers along, and the same command must resume to the
same bytes. Its kills are spread evenly over the time of a whole run; each kill is counted with its stage.

`python -m tests.campaigns.workers NUMBER SCHEDULERS SEED FOLDER` prints what came of it as JSON.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from metastep.experiments.checking import check_folder
from tests.campaigns.kills import digests, words

SECONDS = 600.0  # after which a run counts as hanging


def log_of(folder: Path) -> Path:
    """What the run in a folder says on its way."""
    return folder.with_name("stderr.txt")


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """The run as a process; it works where the folder is, so that reports name it alike."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    arguments = [*words(Path(folder.name)), *more]
    with log_of(folder).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "metastep", *arguments], cwd=folder.parent, stdout=subprocess.DEVNULL, stderr=log
        )


def workers_of(process: subprocess.Popen[Any]) -> list[int]:
    """The worker processes that a command has started."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"spawn_main" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def connected(process: subprocess.Popen[Any]) -> list[int]:
    """Those that have reached the scheduler; the others are starting."""
    found = []
    for pid in workers_of(process):
        with suppress(psutil.Error):
            sockets = psutil.Process(pid).net_connections("tcp")
            if any(socket.status == psutil.CONN_ESTABLISHED for socket in sockets):
                found.append(pid)
    return found


def stage_of(folder: Path) -> str:
    """Which stage a run is in, by what it said last."""
    lines = [line for line in log_of(folder).read_text(errors="replace").splitlines() if ": " in line]
    if not lines:
        return "start"
    last = lines[-1]
    if last.startswith("compare") and ": done in" in last:
        return "report"
    return last.split()[0].rstrip(":")


def finish(process: subprocess.Popen[bytes], folder: Path) -> str:
    """The error of a run that did not end well, or nothing."""
    code = process.wait(timeout=SECONDS)
    return f"code {code}: {log_of(folder).read_text(errors='replace')[-1500:]}" if code else ""


def kill_workers(folder: Path, most: int, generator: random.Random) -> tuple[Counter[str], str]:
    """Run and kill workers on the way: how many in each stage, and what went wrong, if anything."""
    process, killed, began = start(folder, "--workers", "2"), Counter[str](), time.monotonic()
    while killed.total() < most and process.poll() is None and time.monotonic() - began < SECONDS:
        time.sleep(generator.uniform(0.0, 4.0))
        if at_work := connected(process):
            chosen = generator.choice(workers_of(process) or at_work)
            with suppress(ProcessLookupError):
                os.kill(chosen, signal.SIGKILL)
                killed[f"{'' if chosen in at_work else 'starting '}worker in {stage_of(folder)}"] += 1
    return killed, finish(process, folder)


def kill_scheduler(folder: Path, seconds: float) -> tuple[Counter[str], str]:
    """Run, kill everything with the scheduler after so many seconds, and resume."""
    process = start(folder, "--workers", "2")
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    there, stage = workers_of(process), stage_of(folder)
    process.kill()
    killed = Counter[str]({f"scheduler in {stage}": 1} if process.wait() == -signal.SIGKILL else {})
    error = finish(start(folder, "--workers", "2"), folder)
    until = time.monotonic() + 60.0  # a worker that was importing ends only after that
    while (left := [pid for pid in there if Path(f"/proc/{pid}").exists()]) and time.monotonic() < until:
        time.sleep(0.1)
    outlived = f"workers {left} outlived the scheduler" if left else ""
    return killed, error + outlived


def campaign(number: int, schedulers: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, began = random.Random(seed), time.monotonic()
    failures, seconds, reference = list[str](), 0.0, dict[str, str]()
    for name, more in (("alone", ()), ("warm", ("--workers", "2")), ("workers", ("--workers", "2"))):
        folder, since = sandbox / name / "run", time.monotonic()
        if error := finish(start(folder, *more), folder):
            failures.append(f"undisturbed, {name}: {error}")
        seconds, reference = time.monotonic() - since, reference or digests(folder)
        if digests(folder) != reference:
            failures.append(f"undisturbed, {name}: other bytes")
    killed, compared, ended = Counter[str](), 0, 0
    # A run may be through before its moment comes; then the same is tried again, a little earlier.
    moments = [(index + generator.random()) / schedulers * seconds for index in range(schedulers)]
    while not failures and (number or moments):
        folder = sandbox / "killed" / "run"
        if number:
            kills, error = kill_workers(folder, number, generator)
            number -= kills.total()
        else:
            kills, error = kill_scheduler(folder, moments[-1] * 0.95**ended)
            ended = 0 if kills else ended + 1
            moments = moments[:-1] if kills else moments
        killed += kills
        compared += 1
        found = digests(folder)
        if error:
            failures.append(f"{dict(kills)}: {error}")
            break
        names = sorted(name for name in found.keys() | reference.keys() if found.get(name) != reference.get(name))
        problems = [finding for finding in check_folder(folder) if finding.problem]
        if names or problems:
            failures.append(f"{dict(kills)}: other bytes in {names}, check finds {problems}")
        print(f"{dict(killed)} killed, {compared} compared, {len(failures)} failed", file=sys.stderr, flush=True)
        shutil.rmtree(folder)
    return {
        "kills": killed.total(),
        "outcomes": dict(sorted(killed.items())),
        "runs compared": compared,
        "seconds of an undisturbed run": round(seconds, 1),
        "failures": failures,
        "seconds": round(time.monotonic() - began),
    }


if __name__ == "__main__":
    os.umask(0o022)
    print(json.dumps(campaign(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
