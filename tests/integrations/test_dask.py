"""Workers of a Dask cluster do what threads do, and what goes wrong with one is told in a sentence."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from distributed import Client, Scheduler, SpecCluster, Worker
from metastep._core.crew import employed
from metastep.integrations.processes import LOOPBACK, Processes

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.parallel import count_threads
from metastep.experiments.config import load
from metastep.experiments.folder import RunFolder
from metastep.experiments.learning import collect_data
from metastep.integrations import dask as workers
from metastep.integrations import processes
from metastep.mdp import collection
from metastep.mdp.collection import collect, make_block
from metastep.mdp.runs import carry_out, run_blocks
from tests.campaigns.kills import digests
from tests.campaigns.workers import finish, start, workers_of
from tests.mdp.test_collection import small_mdp
from tests.mdp.test_runs import MIXED

SETTINGS = {"num_episodes": 40, "num_updates": 2, "seed": 6, "config": {"a": 1}}


@pytest.fixture(scope="module")
def crew():
    """A cluster within this process: a scheduler and a worker of two threads."""
    scheduler = {"cls": Scheduler, "options": {**LOOPBACK, "port": 0}}
    worker = {"cls": Worker, "options": {**LOOPBACK, "nthreads": 2, "memory_limit": None}}
    with SpecCluster(workers={0: worker}, scheduler=scheduler) as cluster, Client(cluster) as client:
        yield workers.DaskCrew(client)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Counted:
    """A tracker that adds up what it is told."""

    def __init__(self):
        self.total, self.done = 0.0, 0.0

    def stage(self, name, total, unit):
        self.total = total
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def advance(self, amount):
        self.done += amount


def test_workers_collect_the_same_bytes(crew, tmp_path):
    tracker = Counted()
    with employed(crew):
        elsewhere = collect(small_mdp(), tmp_path / "elsewhere", **SETTINGS, tracker=tracker)
    assert files(elsewhere.folder) == files(collect(small_mdp(), tmp_path / "here", **SETTINGS).folder)
    assert tracker.done == tracker.total > 0.0


def test_workers_run_the_same_blocks(crew):
    def plan():
        return (yield MIXED[:2])

    with employed(crew):
        found = carry_out([plan()])[0]
    for block, ran in zip(MIXED, found, strict=False):
        alone = run_blocks([block], 0, lambda _: None)[0]
        for name, array in alone.history.to_arrays().items():
            np.testing.assert_array_equal(ran.history.to_arrays()[name], array)


def test_workers_tell_how_far_they_are(crew):
    heard, told = [], threading.Event()

    def listen(news):
        heard.append(news)
        told.set()

    with crew.telling(listen) as tell:
        crew.submit(tell, (3, 0.5)).result()
        assert told.wait(20.0)
    assert [tuple(news) for news in heard] == [(3, 0.5)]


def test_what_a_worker_raises_is_raised_here_and_cores_are_divided(crew):
    with pytest.raises(InputError, match="threads is 0"):
        crew.submit(count_threads, 0).result()
    assert crew.slots(1) == 4
    assert crew.submit(count_threads, None).result() == max(1, count_threads(None) // 2)


def test_workers_of_one_machine_divide_its_cores():
    scheduler = {"cls": Scheduler, "options": {**LOOPBACK, "port": 0}}
    worker = {"cls": Worker, "options": {**LOOPBACK, "nthreads": 1, "memory_limit": None}}
    with SpecCluster(workers={0: worker, 1: worker}, scheduler=scheduler) as cluster, Client(cluster) as client:
        client.wait_for_workers(2)
        crew = workers.DaskCrew(client)
        assert crew.slots(1) == 4
        assert crew.submit(count_threads, None).result() == max(1, count_threads(None) // 2)


def test_an_unlike_worker_is_refused(crew, monkeypatch):
    unlike = {**workers._environment(), "jax": "0.1"}
    monkeypatch.setattr(crew, "_environment", unlike)
    with pytest.raises(InputError, match=r"the worker \S+ has jax = .*, this process has \"0\.1\"; results of unlike"):
        crew.submit(count_threads, None).result()


def test_workers_that_die_on_starting_are_given_up(monkeypatch):
    monkeypatch.setattr(processes, "_serve", os.getpid)  # which takes no arguments, so that the process fails at once
    words = r"^--workers: 3 processes ended with code 1 before they could work; .*`if __name__ == \"__main__\":`"
    with pytest.raises(InputError, match=words), workers.workers(2) as crew:
        crew.submit(count_threads, None).result(timeout=60.0)
    with pytest.raises(InputError, match=words):  # whoever asks for more is told, too
        crew.submit(count_threads, None)


def test_nobody_gives_up_while_a_worker_is_there(monkeypatch):
    started, reasons, alive = [], [], {0}
    scheduler = SimpleNamespace(workers={"address": SimpleNamespace(name="0-1")})

    def begin(_, index):
        started.append(index)
        process = SimpleNamespace(is_alive=lambda: index in alive, kill=lambda: None, exitcode=1)
        return processes._Process(process, f"{index}-{len(started)}", time.monotonic())

    def look(times):
        looks = iter([False] * times + [True])
        team._closing = SimpleNamespace(wait=lambda _: next(looks))
        team._watch()

    monkeypatch.setattr(Processes, "_start", begin)
    team = Processes(2, scheduler, reasons.append)
    look(5)  # the second worker dies on starting, again and again
    assert (started.count(0), started.count(1), reasons) == (1, 6, [])
    alive.clear()
    scheduler.workers.clear()
    look(1)
    assert (started.count(0), reasons) == (2, [])  # the one that was there is replaced, too
    look(5)
    assert started.count(0) == 3
    assert [reason[:40] for reason in reasons] == ["--workers: 3 processes ended with code 1"]


def test_a_worker_writes_where_it_sees_the_folder_and_else_sends_the_block(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(collection, "make_block", lambda *arguments: made.append(arguments))
    with pytest.raises(InputError, match="not complete"):  # nobody makes the blocks
        collect(small_mdp(), tmp_path / "data", **SETTINGS)
    work, controller, block, _ = made[0]
    sent = make_block(work._replace(mark=tmp_path / "nowhere"), controller, block, print)
    assert sent is not None
    assert not work.files.path(block).exists()
    with storage.temporary(tmp_path / "data" / "collecting") as mark:
        assert make_block(work._replace(mark=mark), controller, block, print) is None
        assert work.files.holds(block)
        before = work.files.path(block).stat()
        assert make_block(work._replace(mark=mark), controller, block, print) is None  # it is there already
        assert work.files.path(block).stat() == before
    np.testing.assert_array_equal(storage.read_tensors(work.files.path(block)).arrays["context"], sent.context)
    other = dataclasses.replace(work.files, digest="of another dataset")
    assert not other.holds(block)


def metastep(folder: Path, *more: str) -> subprocess.Popen[str]:
    words = ["-m", "metastep", "collect", "nav2d", "--out", str(folder), "--device", "cpu", *more]
    environment = os.environ | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
    return subprocess.Popen([sys.executable, *words], env=environment, stderr=subprocess.PIPE, text=True)


def refused(process: subprocess.Popen[str]) -> str:
    _, error = process.communicate(timeout=120.0)
    assert process.returncode == 2, error
    assert "Traceback" not in error
    return error.strip().splitlines()[-1]


def test_a_killed_worker_is_replaced_and_no_byte_differs(tmp_path):
    """A small share of the campaign of `make soak`."""
    small = ["rollout.num_episodes=4", "rollout.block_size=8", "meta.num_updates=2", "collect.num_meta_episodes=64"]
    here = collect_data(RunFolder.create(tmp_path / "here", load("nav2d", None, small)))
    given = [word for setting in small for word in ("--set", setting)]
    process, killed = metastep(tmp_path / "run", "--workers", "1", *given), []
    while process.poll() is None and not killed:
        killed = workers_of(process)[:1]
        time.sleep(0.05)
    time.sleep(1.0)  # it may import still, or simulate
    os.kill(killed[0], signal.SIGKILL)
    _, error = process.communicate(timeout=120.0)
    assert process.returncode == 0, error
    assert files(tmp_path / "run" / "data") == files(here.folder)


@pytest.mark.soak
def test_a_worker_that_hangs_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "5s")
    process, data = metastep(tmp_path / "run", "--workers", "2"), tmp_path / "run" / "data"
    while process.poll() is None and not list(data.glob("block-*")):
        time.sleep(0.05)
    stopped = workers_of(process)[0]
    os.kill(stopped, signal.SIGSTOP)
    _, error = process.communicate(timeout=300.0)
    assert process.returncode == 0, error
    assert not Path(f"/proc/{stopped}").exists()
    assert files(data) == files(collect_data(RunFolder.create(tmp_path / "here", load("nav2d", None, []))).folder)


@pytest.mark.soak
def test_no_byte_of_a_run_with_rounds_depends_on_the_number_of_workers(tmp_path):
    """Of a model whose second round follows a model that was fitted on the first."""
    overrides = (
        "models.metastep.collect={num_meta_episodes = 32, labels = 3, rounds = 2}",
        "models.metastep.fqi={iterations = 2, regressor = {trees = 3}}",
        'compare.methods=["metastep", "fixed"]',
    )
    given = [word for override in overrides for word in ("--set", override)]
    found = {}
    for number in (0, 1, 2, 3):
        folder = tmp_path / str(number) / "run"
        assert finish(start(folder, *given, *(("--workers", str(number)) if number else ())), folder) == ""
        found[number] = digests(folder)
    assert "models/metastep/rounds/1.safetensors" in found[0]
    assert found[1] == found[2] == found[3] == found[0]


def test_a_scheduler_that_does_not_answer_is_one_sentence(tmp_path):
    sentence = refused(metastep(tmp_path / "run", "--scheduler", "tcp://127.0.0.1:9"))
    assert sentence.startswith("error: --scheduler: 'tcp://127.0.0.1:9' does not answer: ")
    assert "cannot be started where --scheduler names" in refused(
        metastep(tmp_path / "run", "--scheduler", "tcp://127.0.0.1:9", "--workers", "2")
    )
    assert not (tmp_path / "run").exists()


@contextmanager
def scheduler_alone(folder: Path):
    """The address of a scheduler without workers, which is killed at the end."""
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(folder / "scheduler.json")]
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        assert scheduler.stderr is not None
        yield next(line.split()[-1] for line in scheduler.stderr if "Scheduler at:" in line)
    finally:
        scheduler.kill()
        scheduler.communicate()


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_a_scheduler_that_dies_while_nothing_is_asked_of_it_is_one_sentence(tmp_path, seconds):
    words = r"^--scheduler: tcp://\S+ does not answer any more; what is done is kept, and the same command resumes\.$"

    def work() -> None:
        with ExitStack() as lives, workers.cluster_at(lives.enter_context(scheduler_alone(tmp_path))):
            lives.close()
            time.sleep(seconds)  # a model is fitted meanwhile
            collect(small_mdp(), tmp_path / "data", **SETTINGS)

    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(InputError, match=words):
        work()


def test_a_scheduler_that_dies_leaves_what_is_done(tmp_path):
    with scheduler_alone(tmp_path) as address:
        waiting = metastep(tmp_path / "run", "--scheduler", address)
        assert waiting.stderr is not None
        assert any(line.startswith("collect:") for line in waiting.stderr)
    assert refused(waiting).endswith("does not answer any more; what is done is kept, and the same command resumes.")
    assert (tmp_path / "run" / "data" / "manifest.json").exists()
