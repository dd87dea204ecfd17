"""Workers of a Dask cluster do what threads do, and one sentence says what goes wrong with one."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, Security, SpecCluster

from metastep._core import parallel, storage
from metastep._core.errors import InputError
from metastep._core.parallel import completed, count_threads, report, using
from metastep.experiments.config import load
from metastep.experiments.run import Run
from metastep.integrations import dask as workers
from metastep.integrations.dask import LOOPBACK, PrivateScheduler, PrivateWorker, cluster_at
from metastep.mdp import collection
from metastep.mdp.collection import collect, make_block
from metastep.mdp.runs import run_blocks, run_plans
from metastep.search.course import course_arrays
from tests.campaigns.workers import workers_of
from tests.mdp.test_collection import small_mdp
from tests.mdp.test_dataset import files
from tests.mdp.test_runs import MIXED
from tests.processes import metastep
from tests.search.test_evolution import FEEDBACK, plan_of

SECURITY = Security.temporary()
SETTINGS = {"num_episodes": 40, "num_updates": 2, "seed": 6, "config": {"a": 1}}


@pytest.fixture(scope="module")
def pool():
    """A cluster within this process: a scheduler and a worker of two threads."""
    private = {**LOOPBACK, "security": SECURITY}
    scheduler = {"cls": PrivateScheduler, "options": {**private, "port": 0}}
    worker = {"cls": PrivateWorker, "options": {**private, "nthreads": 2, "memory_limit": None}}
    with SpecCluster(workers={0: worker}, scheduler=scheduler, security=SECURITY) as cluster, Client(cluster) as client:
        yield workers.DaskPool(client)


def test_workers_collect_the_same_bytes_and_run_the_same_blocks(pool, tmp_path):
    def plan():
        return (yield MIXED[:2])

    with using(pool):
        elsewhere = collect(small_mdp(), tmp_path / "elsewhere", **SETTINGS)
        found = run_plans([plan()])[0]
    assert files(elsewhere.folder) == files(collect(small_mdp(), tmp_path / "here", **SETTINGS).folder)
    for block, ran in zip(MIXED, found, strict=False):
        alone = run_blocks([block], 0)[0]
        for name, array in alone.history.to_arrays().items():
            np.testing.assert_array_equal(ran.history.to_arrays()[name], array)


def test_no_byte_of_a_search_depends_on_cores_and_workers(pool, monkeypatch):
    def searched(cores):
        monkeypatch.setattr(parallel, "_limit", cores)
        course = run_plans([plan_of({"generations": 2, "pairs": 24}, FEEDBACK)])[0]
        return course.steps, {name: array.tobytes() for name, array in course_arrays(course).items()}

    with using(pool):
        elsewhere = searched(2)
    assert searched(1) == searched(3) == elsewhere


def test_workers_report_progress(pool):
    heard, reported = [], threading.Event()

    def listen(progress):
        heard.append(tuple(progress))
        reported.set()

    with pool.open(listen):
        pool.submit(report, 3, 0.5).result()
        assert reported.wait(20.0)
    assert heard == [(3, 0.5)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> dict[str, Path]:
    """PEM files of the cluster, which is its own authority."""
    folder = tmp_path_factory.mktemp("certificates")
    contents = {"ca": SECURITY.tls_ca_file, "cert": SECURITY.tls_client_cert, "key": SECURITY.tls_client_key}
    for name, content in contents.items():
        (folder / name).write_text(content)
    return {f"tls_{name}": folder / name for name in contents}


def test_a_cluster_with_certificates(pool, certificates):
    with cluster_at(pool._client.scheduler.address, **certificates) as same:
        assert same.submit(abs, -3).result() == 3


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"address": "tcp://127.0.0.1:9"}, r"--scheduler: 'tcp://\S+' must begin with tls:// where --tls-ca or others"),
        ({"tls_key": None}, r"--tls-key: is missing; --tls-ca, --tls-cert, --tls-key must be given"),
        (dict.fromkeys(("tls_ca", "tls_cert", "tls_key")), "tls:// needs --tls-ca, --tls-cert, --tls"),
        ({"tls_ca": Path("nowhere")}, "File nowhere is missing"),
        ({"tls_cert": Path(__file__)}, r"--tls-cert: \S+ must be a PEM file"),
        ({"tls_cert": "tls_key"}, "they do not belong together: "),
        ({}, "--scheduler: 'tls://127.0.0.1:9' does not answer: "),
    ],
)
def test_certificates_that_are_refused(certificates, changed, sentence):
    given = {"address": "tls://127.0.0.1:9", **certificates}
    given |= {name: certificates.get(file, file) for name, file in changed.items()}
    short = dask.config.set({"distributed.comm.timeouts.connect": "200ms"})
    with short, pytest.raises(InputError, match=sentence), cluster_at(**given):
        pass


def test_an_exception_of_a_worker_is_raised_here_and_cores_are_shared(pool):
    with pytest.raises(InputError, match="threads is 0"):
        pool.submit(count_threads, 0).result()
    assert pool.slots() == 4
    assert pool.submit(count_threads, None).result() == max(1, count_threads(None) // 2)
    with pytest.raises(InputError, match=r"the work cannot be sent to a worker: .*lock"):
        pool.submit(id, threading.Lock())


def test_an_unlike_worker_is_refused(pool, monkeypatch):
    monkeypatch.setattr(pool, "_call", partial(workers._call, {**workers._environment(), "jax": "0.1"}, "cpu", None))
    with pytest.raises(InputError, match=r"the worker \S+ has jax = .*, this process has \"0\.1\"; unlike workers"):
        pool.submit(count_threads, None).result()


def test_processes_that_end_while_they_start_are_one_sentence(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "if multiprocessing.current_process().name != 'MainProcess':\n"
        "    raise SystemExit  # as in a script whose main part is not guarded\n"
        "from metastep._core.parallel import completed\n"
        "from metastep.integrations.dask import workers\n"
        "calls = iter([(1, abs, -1)])\n"
        "with workers(1) as pool:\n"
        "    print(*completed(pool, lambda _: next(calls, None)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120.0)
    assert done.stdout == ""
    assert "ended before they could work; a script that starts workers must do so below `if __name__" in done.stderr


def test_a_worker_writes_where_it_sees_the_folder_and_else_sends_the_block(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(collection, "make_block", lambda *arguments: made.append(arguments))
    with pytest.raises(InputError, match="not complete"):  # no block was made
        collect(small_mdp(), tmp_path / "data", **SETTINGS)
    work, controller, block = made[0]
    sent = make_block(work._replace(mark=tmp_path / "nowhere"), controller, block)
    assert sent is not None
    assert not work.writer.path(block).exists()
    with storage.temporary(tmp_path / "data" / "collecting") as mark:
        assert make_block(work._replace(mark=mark), controller, block) is None
        assert not work.writer.problem(block)
        before = work.writer.path(block).stat()
        assert make_block(work._replace(mark=mark), controller, block) is None  # it is there already
        assert work.writer.path(block).stat() == before
    np.testing.assert_array_equal(storage.read_tensors(work.writer.path(block)).arrays["context"], sent.context)


def test_a_killed_worker_is_replaced_and_no_byte_differs(tmp_path):
    def dies_once(mark: Path) -> int:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    with workers.workers(1) as pool:
        calls = iter([(0, dies_once, tmp_path / "mark")])
        ((_, process),) = completed(pool, lambda _: next(calls, None))
        elsewhere = collect(small_mdp(), tmp_path / "elsewhere", **SETTINGS)
    assert process != os.getpid()
    assert files(elsewhere.folder) == files(collect(small_mdp(), tmp_path / "here", **SETTINGS).folder)


@pytest.mark.soak
def test_a_worker_that_hangs_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "5s")
    data = tmp_path / "run" / "data"
    words = ["-m", "metastep", "collect", "nav2d", "--out", str(data.parent), "--device", "cpu", "--workers", "2"]
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(data.glob("block-*")):
        time.sleep(0.05)
    stopped = workers_of(process)[0]
    os.kill(stopped, signal.SIGSTOP)
    _, error = process.communicate(timeout=300.0)
    assert process.returncode == 0, error
    assert not Path(f"/proc/{stopped}").exists()
    assert files(data) == files(Run.create(tmp_path / "here", load("nav2d", None, [])).collect().folder)


def test_workers_cannot_be_started_where_a_scheduler_is_named(tmp_path):
    words = ("collect", "nav2d", "--out", str(tmp_path / "run"), "--scheduler", "tcp://127.0.0.1:9", "--workers", "2")
    done = metastep(*words)
    assert (done.returncode, "cannot be started where --scheduler names" in done.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


@contextmanager
def scheduler_alone(folder: Path):
    """The address of a scheduler without workers, which is killed at the end."""
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(folder / "scheduler.json")]
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", *words]
    scheduler = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield next(line.split()[-1] for line in scheduler.stderr if "Scheduler at:" in line)
    finally:
        scheduler.kill()
        scheduler.communicate()


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_an_open_scheduler_is_warned_of_and_one_that_dies_unasked_is_one_sentence(tmp_path, capfd, seconds):
    words = r"^--scheduler: tcp://\S+ does not answer any more; finished work is kept, and the same command resumes\.$"

    def work() -> None:
        with ExitStack() as lives, workers.cluster_at(lives.enter_context(scheduler_alone(tmp_path))):
            lives.close()
            time.sleep(seconds)  # a model is fitted meanwhile
            collect(small_mdp(), tmp_path / "data", **SETTINGS)

    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(InputError, match=words):
        work()
    assert "is open, so everyone who reaches it can run code there" in capfd.readouterr().err
