"""Calls run in threads or processes with the same bytes, on the requested device, or one sentence says why not."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from threading import Barrier, Event, Lock
from types import SimpleNamespace

import jax
import pytest

from metastep._core import parallel
from metastep._core.errors import InputError
from metastep._core.parallel import LocalPool, completed, patience, prepare_jax
from tests.processes import metastep

_SCRIPT = """
import hashlib, json, os, sys
from pathlib import Path

from metastep._core import parallel
from metastep._core.errors import InputError
from metastep._core.parallel import prepare_jax

def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}

def product():
    import jax.numpy as jnp
    import numpy as np
    rows = np.random.default_rng(0).normal(size=(65536, 64)).astype(np.float32)
    return np.asarray(jnp.asarray(rows).T @ rows).tobytes().hex()[:4096], os.getpid()

def grow():
    import time
    os.kept = [*getattr(os, "kept", []), b"1" * 320_000_000]  # a script's own names are sent with every call
    time.sleep(1.1)  # loky looks at the memory of a process once a second
    return os.getpid()

class TwoWords(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

def fail(kind, *words):
    raise kind(*words)

prepare_jax("cpu")
from metastep.mdp.collection import collect
from tests.controllers.problems import make_mdp

out, found = Path(sys.argv[1]), {}
for cores in (1, 2):
    parallel._limit = cores
    dataset = collect(make_mdp(), out / str(cores), num_episodes=24, num_updates=2, seed=6, config={})
    found[f"data of {cores}"] = digest(dataset.folder)
here, me = product()
with parallel.executor(2, print) as pool:
    pool.submit(parallel.report, 1, 0.5).result()  # processes report results only
    there, other = pool.submit(product).result()
    grown = [call.result() for call in [pool.submit(grow) for _ in range(6)]]
    found["raised"] = []
    for kind, words in ((InputError, ("one sentence",)), (TwoWords, ("one", "two"))):
        try:
            pool.submit(fail, kind, *words).result()
        except Exception as error:
            found["raised"].append(f"{type(error).__name__}: {error}")
found["same sums"], found["in other processes"] = here == there, me != other
found["processes that grew"] = len(set(grown))
try:
    with parallel.executor(2, print) as pool:
        pool.submit(os._exit, 1).result()
except InputError as error:
    found["sentence"] = str(error)
with parallel.executor(2, print) as pool:
    found["after it"] = pool.submit(abs, -1).result()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """Outcome of a script that uses processes from the start; like a notebook, it does not guard its main part."""
    place, root = tmp_path_factory.mktemp("parallel"), Path(__file__).resolve().parent.parent.parent
    (place / "script.py").write_text(_SCRIPT)
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}", "METASTEP_PATIENCE": "0"}
    command = [sys.executable, place / "script.py", place]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_processes_compute_the_same_bits_and_raise_what_calls_raise(found):
    assert found["in other processes"]
    assert found["same sums"]
    assert found["data of 1"] == found["data of 2"]
    assert found["processes that grew"] <= 2  # loky does not restart them
    assert found["raised"] == ["InputError: one sentence", "RuntimeError: TwoWords: one and two"]


def test_a_killed_process_is_one_sentence_and_new_ones_start(found):
    assert found["sentence"].startswith("--cores: a worker process was killed")
    assert found["after it"] == 1


def test_patience(monkeypatch):
    monkeypatch.delenv("METASTEP_PATIENCE")
    assert [patience(cores) for cores in (2, 4, 16)] == [6.0, 4.0, 3.2]
    monkeypatch.setenv("METASTEP_PATIENCE", "soon")
    with pytest.raises(InputError, match="METASTEP_PATIENCE: 'soon' must be a number of seconds"):
        patience(2)
    pools = [LocalPool(16, seconds) for seconds in (60.0, math.inf, -math.inf)]
    assert [pool.slots() for pool in pools] == [4, 32, 32]  # threads leave calls to processes that will start


def test_a_call_that_cannot_be_sent_runs_here():
    pool, lock = LocalPool(2, -math.inf), Lock()
    with pytest.warns(UserWarning, match="work stays in this process, it cannot be sent to another: .*lock"):
        assert pool.submit(id, lock).result() == id(lock)
    assert pool.submit(os.getpid).result() == os.getpid()


def test_workers_that_join_get_calls_before_the_first_one_ends(monkeypatch):
    monkeypatch.setattr(parallel, "_SECONDS_BETWEEN_CHECKS", 0.01)
    joined, all_began = Event(), Barrier(3, timeout=30.0)

    class Growing(LocalPool):
        def slots(self) -> int:
            return 3 if joined.is_set() else 1

    def call(number: int) -> int:
        joined.set()
        all_began.wait()
        return number

    calls = iter([(number, call, number) for number in range(3)])
    pool = Growing(3)
    assert sorted(completed(pool, lambda _: next(calls, None))) == [(0, 0), (1, 1), (2, 2)]


def test_results_lead_to_further_calls_and_a_pool_is_busy_once_every_worker_has_one():
    asked, todo = [], [1, 2, 3]

    def next_call(is_busy: bool):
        asked.append(is_busy)
        return ("tag", abs, todo.pop()) if todo else None

    pool, results = LocalPool(2), []
    for _, result in completed(pool, next_call):
        results.append(result)
        if result == 2:
            todo.append(-7)
    assert sorted(results) == [1, 2, 3, 7]
    assert asked[:4] == [False, False, True, True]  # two of four slots serve the two workers


def test_threads_share_the_cores_and_raise_what_a_call_raises(monkeypatch):
    monkeypatch.setattr(parallel, "_limit", 6)
    pool = LocalPool(3)
    assert pool.submit(parallel.count_threads, None).result() == 2
    with pytest.raises(InputError, match="threads is 0"):
        pool.submit(parallel.count_threads, 0).result()
    assert parallel.count_threads(None) == 6


@pytest.fixture
def fake_jax(monkeypatch):
    """Install a JAX that takes every setting and finds these platforms, or fails."""

    def install(*found):
        def devices():
            if isinstance(found[0], Exception):
                raise found[0]
            return [SimpleNamespace(platform=platform) for platform in found]

        monkeypatch.setattr(jax.config, "update", lambda *_: None)
        monkeypatch.setattr(jax, "devices", devices)

    return install


def test_the_requested_device_is_accepted_and_another_one_refused(fake_jax):
    for device, found in (("gpu", "gpu"), ("cpu", "cpu"), (None, "cpu"), (None, "gpu")):
        fake_jax(found)
        prepare_jax(device)
    fake_jax("cpu")
    with pytest.raises(InputError, match=r"^--device: gpu is not available here, JAX finds only cpu, .*jax\[cuda12\]"):
        prepare_jax("gpu")
    fake_jax("gpu", "cpu")
    with pytest.raises(InputError, match=r"^--device: cpu is not available here, JAX finds only gpu\.$"):
        prepare_jax("cpu")


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("no\nbackend.")])
def test_a_backend_that_does_not_start_is_one_sentence(fake_jax, monkeypatch, error):
    fake_jax(error)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(InputError, match=r"^JAX_PLATFORMS: cuda is not available here, .*[^.]\.$"):
        prepare_jax(None)
    with pytest.raises(InputError, match=r"^--device: gpu is not available here(: .*[^.])?\.$"):
        prepare_jax("gpu")
    monkeypatch.delenv("JAX_PLATFORMS")
    with pytest.raises(InputError, match=r"^--device: JAX finds no device"):
        prepare_jax(None)


def test_the_command_line_refuses_and_leaves_no_folder(tmp_path):
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this machine has a GPU")
    done = metastep("run", "minigolf", "--device", "gpu", "--out", str(tmp_path / "run"))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: --device: gpu is not available here")
    assert not (tmp_path / "run").exists()


POOL = """
import os
from pathlib import Path
from metastep._core import parallel

parallel._available = lambda: 4
parallel.use_cores(2)
parallel.prepare_jax("cpu")
import jax.numpy as jnp
jnp.ones(3).block_until_ready()
names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
print(os.environ["PJRT_NPROC"], sum(name.startswith("tf_XLAEigen") for name in names))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted by their names in /proc")
def test_xla_has_one_thread_whatever_the_number_of_cores():
    command = [sys.executable, "-c", POOL]
    done = subprocess.run(command, env=os.environ | {"PJRT_NPROC": "2"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
