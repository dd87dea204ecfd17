"""Processes that help with long work: the same bytes, and a sentence where one of them is ended."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Barrier, Event, Lock

import pytest

from metastep._core import crew
from metastep._core.crew import Queue, Threads
from metastep._core.errors import InputError
from metastep._core.helpers import Helped, patience

_SCRIPT = """
import hashlib, json, os, sys
from pathlib import Path

from metastep._core import threads
from metastep._core.helpers import at_work
from metastep._core.errors import InputError
from metastep._core.device import prepare_jax

def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}

def product():
    import jax.numpy as jnp
    import numpy as np
    rows = np.random.default_rng(0).normal(size=(65536, 64)).astype(np.float32)
    return np.asarray(jnp.asarray(rows).T @ rows).tobytes().hex()[:4096], os.getpid()

def grow():
    import time
    os.kept = [*getattr(os, "kept", []), b"1" * 320_000_000]  # what belongs to this script travels with every call
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
    threads._given = cores
    dataset = collect(make_mdp(), out / str(cores), num_episodes=24, num_updates=2, seed=6, config={})
    found[f"data of {cores}"] = digest(dataset.folder)
here, me = product()
with at_work(2) as crew, crew.telling(print) as tell:
    crew.submit(tell, "said by nobody").result()
    there, helper = crew.submit(product).result()
    grown = [call.result() for call in [crew.submit(grow) for _ in range(6)]]
    found["raised"] = []
    for kind, words in ((InputError, ("one sentence",)), (TwoWords, ("one", "two"))):
        try:
            crew.submit(fail, kind, *words).result()
        except Exception as error:
            found["raised"].append(f"{type(error).__name__}: {error}")
found["same sums"], found["by others"] = here == there, me != helper
found["processes that grew"] = len(set(grown))
try:
    with at_work(2) as crew:
        crew.submit(os._exit, 1).result()
except InputError as error:
    found["sentence"] = str(error)
with at_work(2) as crew:
    found["after it"] = crew.submit(abs, -1).result()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """What a process found that was helped from the beginning."""
    place, root = tmp_path_factory.mktemp("helpers"), Path(__file__).resolve().parent.parent
    (place / "script.py").write_text(
        _SCRIPT
    )  # without a guard of its main part, as notebooks and short scripts have none
    done = subprocess.run(
        [sys.executable, place / "script.py", place],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "src")]), "METASTEP_PATIENCE": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_helpers_compute_what_one_process_does(found):
    assert found["by others"]
    assert found["same sums"]
    assert found["data of 1"] == found["data of 2"]


def test_a_helper_that_grows_stays(found):
    assert found["processes that grew"] <= 2


def test_what_a_helper_raises_is_raised_here_even_if_it_cannot_travel(found):
    assert found["raised"] == ["InputError: one sentence", "RuntimeError: TwoWords: one and two"]


def test_a_helper_that_is_ended_is_told_of_and_others_come(found):
    assert found["sentence"].startswith("--cores: a process that helped was ended from outside")
    assert found["after it"] == 1


def test_help_comes_sooner_where_there_are_more_cores(monkeypatch):
    monkeypatch.delenv("METASTEP_PATIENCE")
    assert [patience(cores) for cores in (2, 4, 16)] == [6.0, 4.0, 3.2]


def test_a_process_that_is_alone_leaves_work_to_those_who_come():
    with Threads(16) as threads:
        waits, never, now = (Helped(threads, until=until) for until in (time.monotonic() + 60.0, math.inf, -math.inf))
        assert [waits.slots(cores) for cores in (2, 16)] == [2, 4]
        assert never.slots(16) == now.slots(16) == 32


def test_what_cannot_be_sent_stays_in_this_process():
    with Threads(2) as threads:
        crew, lock = Helped(threads, until=-math.inf), Lock()
        with pytest.warns(UserWarning, match="no other process helps, because the work cannot be sent to one: .*lock"):
            assert crew.submit(id, lock).result() == id(lock)
        assert crew.submit(os.getpid).result() == os.getpid()


def test_others_who_come_find_work_though_no_call_is_through(monkeypatch):
    monkeypatch.setattr(crew, "_SECONDS_BETWEEN_LOOKS", 0.01)
    others_came, all_began = Event(), Barrier(3, timeout=30.0)

    class Growing(Threads):
        def slots(self, here: int) -> int:
            return 3 if others_came.is_set() else 1

    def call(number: int) -> int:
        others_came.set()
        all_began.wait()
        return number

    with Growing(3) as threads:
        queue = Queue(threads, 1)
        for number in range(3):
            queue.add(0, number, call, number)
        found = [pair for _ in iter(lambda: bool(queue), False) for pair in queue.take()]
    assert sorted(found) == [(0, 0), (1, 1), (2, 2)]


def test_patience_is_a_number(monkeypatch):
    monkeypatch.setenv("METASTEP_PATIENCE", "soon")
    with pytest.raises(InputError, match="METASTEP_PATIENCE: 'soon' must be a number of seconds"):
        patience(2)


def test_a_queue_is_busy_once_everybody_has_a_call():
    may_end = Event()
    with Threads(2) as threads:  # which have four slots, two for each
        queue = Queue(threads, 2)
        assert not queue.is_busy
        queue._under_way[threads.submit(may_end.wait)] = 0
        assert not queue.is_busy  # the other has nothing to do
        queue._under_way[threads.submit(may_end.wait)] = 1
        assert queue.is_busy
        may_end.set()
