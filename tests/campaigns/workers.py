"""Kill Dask workers, and the process that schedules them, during `metastep run --workers 2`.

Random workers, at work or starting, are killed at random moments until the run ends, which must leave the bytes of a run without
workers. Killing the command, which holds the scheduler, ends the workers, too, and the same command must resume.
"""

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
from tests.campaigns import Tally, digests, main
from tests.campaigns.kills import words

SECONDS = 600.0  # after which a run counts as hanging


def log_of(folder: Path) -> Path:
    return folder.with_name("stderr.txt")


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start the run; it works in the folder's parent, so that reports name the folder alike."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "metastep", *words(Path(folder.name)), *more]
    with log_of(folder).open("wb") as log:
        return subprocess.Popen(command, cwd=folder.parent, stdout=subprocess.DEVNULL, stderr=log)


def finish(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Return the error of a run that did not end well, or nothing."""
    code = process.wait(timeout=SECONDS)
    return f"code {code}: {log_of(folder).read_text(errors='replace')[-1500:]}" if code else ""


def workers_of(process: subprocess.Popen[Any], *, connected: bool = False) -> list[int]:
    """Return the worker processes of a command, or those that have reached the scheduler."""
    found = []
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children():
            with suppress(psutil.Error):
                sockets = child.net_connections("tcp") if connected else ()
                is_connected = any(socket.status == psutil.CONN_ESTABLISHED for socket in sockets)
                if "spawn_main" in " ".join(child.cmdline()) and is_connected >= connected:
                    found.append(child.pid)
    return found


def kill_workers(folder: Path, most: int, generator: random.Random) -> tuple[Counter[str], str]:
    """Run and kill workers, except while all are starting: the run gives up if three of them die like that."""
    process, killed, began = start(folder, "--workers", "2"), Counter[str](), time.monotonic()
    while killed.total() < most and process.poll() is None and time.monotonic() - began < SECONDS:
        time.sleep(generator.uniform(0.0, 4.0))
        if at_work := workers_of(process, connected=True):
            chosen = generator.choice(workers_of(process) or at_work)
            with suppress(ProcessLookupError):
                os.kill(chosen, signal.SIGKILL)
                killed["worker" if chosen in at_work else "starting worker"] += 1
    return killed, finish(process, folder)


def kill_scheduler(folder: Path, seconds: float) -> tuple[Counter[str], str]:
    """Run, kill the command after some seconds, and resume."""
    process = start(folder, "--workers", "2")
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    there = workers_of(process)
    process.kill()
    killed = Counter[str]({"scheduler": int(process.wait() == -signal.SIGKILL)})
    error = finish(start(folder, "--workers", "2"), folder)
    until = time.monotonic() + 60.0  # a worker that imports ends only after that
    while (left := [pid for pid in there if psutil.pid_exists(pid)]) and time.monotonic() < until:
        time.sleep(0.1)
    return killed, error + (f"workers {left} outlived the scheduler" if left else "")


def campaign(number: int, schedulers: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, began, tally = random.Random(seed), time.monotonic(), Tally()
    folder = sandbox / "alone" / "run"
    error = finish(start(folder), folder)
    assert not error, error
    reference, seconds = digests(folder), time.monotonic() - began
    killed, folder = tally.counts, sandbox / "killed" / "run"
    while not tally.failures and killed.total() < number + schedulers:
        left = number - killed.total() + killed["scheduler"]
        if left:
            kills, error = kill_workers(folder, left, generator)
        else:
            kills, error = kill_scheduler(folder, generator.uniform(0.0, seconds))
        problems = [finding for finding in check_folder(folder) if finding.problem]
        if error or problems or digests(folder) != reference:
            tally.failures.append(f"{dict(kills)}: {error or 'other bytes'}, check finds {problems}")
        for kind in kills.elements():
            tally.add(kind)
        shutil.rmtree(folder)
    return tally.found()


if __name__ == "__main__":
    main(campaign)
