"""`metastep collect` as a user runs it: killed and resumed, with an environment of one's own."""

import json
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.campaigns import digests
from tests.processes import metastep, start

SMALL = ["collect.num_meta_episodes=320", "rollout.num_episodes=10", "meta.num_updates=4", "rollout.block_size=16"]


def command(out: Path) -> list[str]:
    small = [word for setting in SMALL for word in ("--set", setting)]
    return ["collect", "nav2d", "--out", str(out), "--device", "cpu", *small]


def kill_and_resume(folder: Path, kills: int) -> None:
    """Kill the collection at random moments until it has been killed `kills` times, then let it finish on one core."""
    generator = random.Random(1)
    data, manifest, killed = folder / "data", folder / "data" / "manifest.json", 0
    started = time.monotonic()
    while killed < kills:
        running = start(*command(folder))
        # Most kills fall into the writing of blocks: wait for some progress, then a random moment.
        target = len(list(data.glob("block-*"))) + generator.randint(0, 4) if data.exists() else 0
        while running.process.is_alive() and time.monotonic() - started < 3000.0:
            if data.exists() and len(list(data.glob("block-*"))) >= target:
                break
            time.sleep(0.005)
        time.sleep(generator.random() * 0.05)
        running.process.kill()
        killed += running.wait().returncode == -signal.SIGKILL
        if manifest.exists() and json.loads(manifest.read_text())["blocks"] and killed < kills:
            shutil.rmtree(folder)  # complete: start over, there is more killing to do
    assert metastep(*command(folder), "--cores", "1").returncode == 0


def test_killed_collections_resume_to_the_same_bytes(tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    done = metastep(*command(whole))
    assert done.returncode == 0, done.stderr
    assert "1280 tuples in 20 blocks" in done.stdout
    kill_and_resume(folder, kills=3)
    assert (folder / "command.txt").read_text() == shlex.join(["metastep", *command(folder)]) + "\n"
    for each in (folder, whole):
        (each / "command.txt").unlink()  # names the folder
    assert digests(folder) == digests(whole)


def test_an_environment_of_the_users_own(tmp_path):
    """A module in the working folder, named in the configuration, for the installed command."""
    module = 'from metastep.envs import Nav2D, register\n\nregister("slow_walk", lambda: Nav2D(max_move=0.01))\n'
    (tmp_path / "walks.py").write_text(module)
    (tmp_path / "walk.toml").write_text('extends = "nav2d"\nenv = { name = "walks:slow_walk" }\n')
    settings = ["collect.num_meta_episodes=8", "rollout.num_episodes=4", "rollout.block_size=8", "meta.num_updates=1"]
    words = ["collect", "walk.toml", "--out", "walk", *(word for one in settings for word in ("--set", one))]
    program = [Path(sys.executable).with_name("metastep"), *words]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "8 tuples" in done.stdout
