"""SIGKILLs over all stages of a run: at random moments, and in the middle of random calls that change the disk.

`python -m tests.campaigns.kills NUMBER SEED FOLDER` prints what came of it as JSON.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

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
# Runs the command, but ends itself at one of its calls that change the disk: before, after, or within a write.
PROGRAM = """
import os, signal, sys
from metastep import cli, storage
at, mode = int(sys.argv.pop(1)), sys.argv.pop(1)
calls = 0
def wrap(name, call):
    def counted(*arguments):
        global calls
        calls += 1
        if calls == at and mode == "within" and name == "write":
            call(arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif calls == at and mode == "after":
            call(*arguments)
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return counted
storage.DISK = storage.Disk(*(wrap(name, call) for name, call in storage.Disk()._asdict().items()))
cli.main()
"""


def words(folder: Path) -> list[str]:
    overrides = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["run", "nav2d", "--out", str(folder), "--device", "cpu", *overrides]


def start(folder: Path, at: int = 0, mode: str = "before") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, str(at), mode, *words(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def digests(folder: Path) -> dict[str, str]:
    """Of everything, leftovers included, but for what names the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    own = ("command.txt", "report.html", "report.md", "report.json")
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files if p.name not in own}


def stage(folder: Path) -> str:
    """How far a run had come when it was killed."""
    for name, file in (
        ("report", "comparison.safetensors"),
        ("compare", "model.safetensors"),
        ("validate", "validation.safetensors"),
    ):
        if (folder / file).exists():
            return name
    manifest = folder / "data" / "manifest.json"
    if not manifest.exists():
        return "start"
    return "fit" if json.loads(manifest.read_text())["blocks"] else "collect"


def campaign(number: int, seed: int, sandbox: Path) -> dict[str, object]:
    generator, began = random.Random(seed), time.monotonic()
    assert start(sandbox / "warm").wait() == 0  # compiles
    started = time.monotonic()
    assert start(sandbox / "whole").wait() == 0
    usual, reference = time.monotonic() - started, digests(sandbox / "whole")
    killed: Counter[str] = Counter()
    resumed = differing = failed = 0
    folder = sandbox / "run"
    while sum(killed.values()) < number:
        if generator.random() < 0.5:
            process = start(folder, generator.randint(1, 60), generator.choice(["before", "within", "after"]))
        else:
            process = start(folder)
            try:
                process.wait(timeout=generator.uniform(0.3, 1.0) * usual)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        code = process.wait()
        killed[stage(folder)] += code == -signal.SIGKILL
        failed += code not in (0, -signal.SIGKILL)
        print(f"{dict(killed)} killed, {failed} failed, {differing} differing", file=sys.stderr, flush=True)
        if code != -signal.SIGKILL:
            resumed += 1
            differing += digests(folder) != reference
            shutil.rmtree(folder, ignore_errors=True)
    failed += start(folder).wait() != 0
    differing += digests(folder) != reference
    return {
        "kills": sum(killed.values()),
        "in stage": dict(killed),
        "runs that ended": resumed + 1,
        "failed": failed,
        "differing": differing,
        "seconds": round(time.monotonic() - began),
    }


if __name__ == "__main__":
    os.umask(0o022)
    print(json.dumps(campaign(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
