"""SIGKILLs of Dask workers, and of the process that schedules them, during `metastep run --workers 2`.

An undisturbed run without workers leaves the reference. Then the same run is made with two workers, of which a random one is
killed at random moments until the run is through; it must hold the same bytes. The scheduler is part of the command's own
process: killing it takes the workers along, and the same command must resume to the same bytes.

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

from metastep.experiments.checking import check_folder
from tests.campaigns.kills import digests, words

SECONDS = 600.0  # after which a run counts as hanging


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    """The run as a process; it works where the folder is, so that reports name it alike."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    arguments = [*words(Path(folder.name)), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "metastep", *arguments],
        cwd=folder.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The worker processes that a command has started."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"spawn_main" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def finish(process: subprocess.Popen[str]) -> str:
    """The error of a run that did not end well, or nothing."""
    _, error = process.communicate(timeout=SECONDS)
    return f"code {process.returncode}: {error[-1500:]}" if process.returncode else ""


def kill_workers(folder: Path, most: int, generator: random.Random) -> tuple[int, str]:
    """Run and kill workers on the way: how many, and what went wrong, if anything."""
    process, killed, began = start(folder, "--workers", "2"), 0, time.monotonic()
    while killed < most and process.poll() is None and time.monotonic() - began < SECONDS:
        time.sleep(generator.uniform(0.0, 4.0))
        if there := workers_of(process):
            with suppress(ProcessLookupError):
                os.kill(generator.choice(there), signal.SIGKILL)
                killed += 1
    return killed, finish(process)


def kill_scheduler(folder: Path, seconds: float, generator: random.Random) -> tuple[int, str]:
    """Run, kill everything with the scheduler at a moment, and resume."""
    process = start(folder, "--workers", "2")
    with suppress(subprocess.TimeoutExpired):
        process.wait(generator.uniform(0.1, 1.0) * seconds)
    there = workers_of(process)
    process.kill()
    process.communicate()
    error, until = finish(start(folder, "--workers", "2")), time.monotonic() + 60.0  # imports are not interrupted
    while (left := [pid for pid in there if Path(f"/proc/{pid}").exists()]) and time.monotonic() < until:
        time.sleep(0.1)
    outlived = f"workers {left} outlived the scheduler" if left else ""
    return int(process.returncode == -signal.SIGKILL), error + outlived


def campaign(number: int, schedulers: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, began = random.Random(seed), time.monotonic()
    failures = list[str]()
    if error := finish(start(sandbox / "reference" / "run")):
        failures.append(f"undisturbed: {error}")
    reference, killed, compared = digests(sandbox / "reference" / "run"), Counter[str](), 0
    seconds = 15.0
    while not failures and (killed["workers"] < number or killed["schedulers"] < schedulers):
        folder, since = sandbox / "killed" / "run", time.monotonic()
        if killed["workers"] < number:
            kills, error = kill_workers(folder, number - killed["workers"], generator)
            killed["workers"] += kills
            seconds = time.monotonic() - since if not kills else seconds
        else:
            kills, error = kill_scheduler(folder, seconds, generator)
            killed["schedulers"] += kills
        compared += 1
        found = digests(folder)
        if error:
            failures.append(f"{kills} kills: {error}")
            break
        names = sorted(name for name in found.keys() | reference.keys() if found.get(name) != reference.get(name))
        problems = [finding for finding in check_folder(folder) if finding.problem]
        if names or problems:
            failures.append(f"{kills} kills: other bytes in {names}, check finds {problems}")
        print(f"{dict(killed)} killed, {compared} compared, {len(failures)} failed", file=sys.stderr, flush=True)
        shutil.rmtree(folder)
    return {
        "kills": killed.total(),
        "outcomes": dict(killed),
        "runs compared": compared,
        "failures": failures,
        "seconds": round(time.monotonic() - began),
    }


if __name__ == "__main__":
    os.umask(0o022)
    print(json.dumps(campaign(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
