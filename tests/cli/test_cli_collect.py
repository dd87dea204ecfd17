"""`metastep collect` as a user runs it: killed, resumed, refused."""

import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import Done, metastep, start

SMALL = ["collect.num_meta_episodes=320", "rollout.num_episodes=10", "meta.num_updates=4", "rollout.block_size=16"]


def command(out: Path, *more: str) -> list[str]:
    small = [word for setting in SMALL for word in ("--set", setting)]
    return ["collect", "nav2d", "--out", str(out), "--device", "cpu", *small, *more]


def collect(out: Path, *more: str) -> Done:
    return metastep(*command(out, *more))


def digests(folder: Path) -> dict[str, str]:
    """Of everything but the command, which names the folder, and what it took."""
    own = ("command.txt", "times.json")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in own)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def refused(result: Done) -> str:
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ")
    return lines[-1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    result = collect(folder)
    assert result.returncode == 0, result.stderr
    assert "1280 tuples in 20 blocks" in result.stdout
    return folder


def kill_and_resume(folder: Path, kills: int) -> int:
    """Kill the collection at random moments until it has been killed `kills` times, then let it finish."""
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
    assert collect(folder).returncode == 0
    return killed


def test_killed_collections_resume_to_the_same_bytes(whole, tmp_path):
    assert kill_and_resume(tmp_path / "run", kills=3) == 3
    assert digests(tmp_path / "run") == digests(whole)


def test_the_number_of_cores_changes_no_byte(whole, tmp_path):
    folder = tmp_path / "run"
    assert collect(folder, "--cores", "1").returncode == 0
    assert digests(folder) == digests(whole)
    assert (folder / "command.txt").read_text() == shlex.join(["metastep", *command(folder)]) + "\n"


def test_another_configuration_is_refused_and_nothing_is_lost(whole):
    before = digests(whole)
    assert re.search(r"rollout.horizon .* 11", refused(collect(whole, "--set", "rollout.horizon=11")))
    assert digests(whole) == before


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("block-00003.safetensors", flip_a_bit),
        ("block-00004.safetensors", lambda path: os.truncate(path, path.stat().st_size // 2)),
        ("block-00005.safetensors", Path.unlink),
        ("manifest.json", lambda path: path.write_text(path.read_text().replace('"horizon": 10', '"horizon": 12'))),
    ],
)
def test_damage_is_named_with_its_file(whole, tmp_path, name, damage):
    shutil.copytree(whole, tmp_path / "run")
    damage(tmp_path / "run" / "data" / name)
    assert name in refused(metastep("inspect", str(tmp_path / "run")))


@pytest.mark.parametrize("words", [["--set", "rolout.horizon=3"], ["--tasks", "nowhere.csv"]])
def test_bad_input_is_one_sentence(tmp_path, words):
    assert words[1].partition(".")[0] in refused(collect(tmp_path / "run", *words))
    assert not (tmp_path / "run").exists()


def test_help_answers_quickly_and_imports_nothing_heavy():
    program = (
        "import sys, metastep.cli; assert not {'jax', 'numpy', 'sklearn', 'numba', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "metastep", "--help"], check=True, capture_output=True)
    assert time.perf_counter() - started < 5.0  # half a second on a quiet machine; this one may be busy


def test_an_environment_of_the_users_own(tmp_path):
    """A module in the working folder, named in the configuration, for the installed command."""
    (tmp_path / "walks.py").write_text(
        'from metastep.envs import Nav2D, register\n\nregister("slow_walk", lambda: Nav2D(max_move=0.01))\n'
    )
    (tmp_path / "walk.toml").write_text('extends = "nav2d"\nenv = { name = "walks:slow_walk" }\n')
    settings = ["collect.num_meta_episodes=8", "rollout.num_episodes=4", "rollout.block_size=8", "meta.num_updates=1"]
    words = ["collect", "walk.toml", "--out", "walk", *(word for one in settings for word in ("--set", one))]
    program = [Path(sys.executable).with_name("metastep"), *words]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "8 tuples" in done.stdout
    assert json.loads((tmp_path / "walk" / "config.json").read_text())["experiment"]["env"]["name"] == "walks:slow_walk"
    (tmp_path / "walks.py").unlink()
    gone = metastep(*words, cwd=tmp_path)
    assert gone.returncode == 2
    assert "env.name: the module 'walks' cannot be imported" in gone.stderr
    assert "Traceback" not in gone.stderr
