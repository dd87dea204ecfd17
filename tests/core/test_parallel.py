"""Calls run in threads or processes with the same bytes, on the requested device, or one sentence says why not."""

import json
import math
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier, Event, Lock
from types import SimpleNamespace

import jax
import pytest

from metastep._core import parallel
from metastep._core.errors import InputError
from metastep._core.parallel import LocalPool, completed, patience, prepare_jax

_SCRIPT = """
import hashlib, json, os, sys
from pathlib import Path

from metastep._core import parallel
from metastep._core.errors import InputError

def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}

def product():
    import jax.numpy as jnp
    import numpy as np
    rows = np.random.default_rng(0).normal(size=(65536, 64)).astype(np.float32)
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    threads = sum(name.startswith("tf_XLAEigen") for name in names)
    return np.asarray(jnp.asarray(rows).T @ rows).tobytes().hex()[:4096], threads, os.environ["PJRT_NPROC"]

def growth():
    from joblib.externals.loky import process_executor
    return os.getpid(), process_executor._MAX_MEMORY_LEAK_SIZE

class TwoWords(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

def fail(kind, *words):
    raise kind(*words)

parallel.use_cores(2)
parallel.prepare_jax("cpu")
from metastep.mdp.collection import collect
from tests.controllers.problems import make_mdp

out, found = Path(sys.argv[1]), {}
for cores in (1, 2):
    parallel._limit = cores
    dataset = collect(make_mdp(), out / str(cores), num_episodes=24, num_updates=2, seed=6, config={})
    found[f"data of {cores}"] = digest(dataset.folder)
try:
    with parallel.executor(2, print) as pool:
        pool.submit(parallel.report, 1, 0.5).result()  # processes report results only
        other, most = pool.submit(growth).result()
        found["in other processes"], found["most growth"] = other != os.getpid(), most
        found["sums"] = [product(), pool.submit(product).result()]
        found["raised"] = []
        for kind, words in ((InputError, ("one sentence",)), (TwoWords, ("one", "two"))):
            try:
                pool.submit(fail, kind, *words).result()
            except Exception as error:
                found["raised"].append(f"{type(error).__name__}: {error}")
        pool.submit(os._exit, 1).result()
except InputError as error:
    found["sentence"] = str(error)
print(json.dumps(found))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted by their names in /proc")
def test_processes_compute_the_same_bits_and_raise_what_calls_raise(tmp_path):
    """In a script that uses processes from the start; like a notebook, it does not guard its main part."""
    root, script = Path(__file__).resolve().parent.parent.parent, tmp_path / "script.py"
    script.write_text(_SCRIPT)
    path = f"{root}{os.pathsep}{root / 'src'}"
    environment = os.environ | {"PYTHONPATH": path, "METASTEP_PATIENCE": "0", "PJRT_NPROC": "2"}
    command = [sys.executable, script, tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["in other processes"]
    assert found["most growth"] == math.inf  # loky does not restart processes that keep compiled programs
    here, there = found["sums"]
    assert here == there
    assert here[1:] == [1, "1"]  # XLA has one thread, whatever the number of cores
    assert found["data of 1"] == found["data of 2"]
    assert found["raised"] == ["InputError: one sentence", "RuntimeError: TwoWords: one and two"]
    assert found["sentence"].startswith("--cores: a worker process was killed")


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


@pytest.mark.parametrize(
    ("device", "chosen", "found", "sentence"),
    [
        *((device, None, platform, "") for device, platform in [("gpu", "gpu"), ("cpu", "cpu"), (None, "gpu")]),
        ("gpu", None, "cpu", r"--device: gpu is not available here, JAX finds only cpu, .*jax\[cuda12\]"),
        ("cpu", None, "gpu", r"--device: cpu is not available here, JAX finds only gpu\.$"),
        ("gpu", "cuda", AssertionError(), r"--device: gpu is not available here, .*[^.]\.$"),
        (None, "cuda", RuntimeError("no\nbackend."), r"JAX_PLATFORMS: cuda is not available here, .*no backend\.$"),
        (None, None, AssertionError(), "--device: JAX's choice is not available here"),
    ],
)
def test_the_requested_device_is_taken_or_one_sentence_says_why_not(monkeypatch, device, chosen, found, sentence):
    def devices():
        if isinstance(found, Exception):
            raise found
        return [SimpleNamespace(platform=found)]

    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if chosen:
        monkeypatch.setenv("JAX_PLATFORMS", chosen)
    with pytest.raises(InputError, match=f"^{sentence}") if sentence else nullcontext():
        prepare_jax(device)
