"""A collection stopped inside a block resumes there, to the same bytes, and leaves nothing behind."""

import dataclasses
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from metastep._core import parallel, storage
from metastep.mdp import EpisodicMetaMDP, collection
from metastep.mdp.collection import collect
from metastep.mdp.controller import Exploration
from metastep.mdp.loop import Checkpoints
from metastep.rules import TRPO, Adam
from metastep.rules.spaces import HyperparameterSpace
from tests.controllers.problems import make_training_mdp
from tests.envs.host.twins import Twin
from tests.mdp.test_collection import small_mdp
from tests.mdp.test_dataset import files
from tests.rules.test_on_host import PENDULUM
from tests.rules.test_on_host import make_mdp as steps_mdp

BATCH_STEPS = 16 * 8 * 5  # learners, episodes, horizon of `small_mdp`
SETTINGS = {"num_episodes": 28, "num_updates": 7, "seed": 3, "config": {"a": 1}}  # two blocks, the second padded
HALTS = 4  # of a block: after 2, 4, 6 and 7 updates


class Stopped(Exception):
    """The interruption."""


class Watch:
    """Records the progress, and stops the work after so many reports."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.reports, self.stop_after = [], stop_after

    @contextmanager
    def stage(self, name, total, unit):
        self.total = total
        yield self

    def advance(self, amount):
        self.reports.append(amount)
        if len(self.reports) == self.stop_after:
            raise Stopped


def on_host() -> EpisodicMetaMDP:
    mdp = small_mdp()
    hosted = dataclasses.replace(mdp.estimator.rollout, env=Twin(mdp.env))
    return dataclasses.replace(mdp, estimator=dataclasses.replace(mdp.estimator, rollout=hosted))


def part_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("part-*"))


def stop(folder: Path, after: int, mdp: EpisodicMetaMDP | None = None, **changes) -> None:
    """Collect until `after` halts have been reported."""
    with pytest.raises(Stopped):
        collect(mdp or small_mdp(), folder, **(SETTINGS | changes), tracker=Watch(after))


def resume(folder: Path, mdp: EpisodicMetaMDP | None = None, **changes) -> Watch:
    watch = Watch()
    collect(mdp or small_mdp(), folder, **(SETTINGS | changes), tracker=watch)
    return watch


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """The dataset of a collection that neither halts nor is stopped."""
    return files(collect(small_mdp(), tmp_path_factory.mktemp("whole") / "data", **SETTINGS).folder)


class InTurn:
    """A pool that makes one call after the other, so that the order of the halts is known."""

    is_local = True

    def slots(self):
        return 1

    def submit(self, function, *arguments):
        future = Future()
        try:
            future.set_result(parallel.call_with(self.listener, 1, function, arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def open(self, listener):
        self.listener = listener
        return nullcontext()


@pytest.fixture(autouse=True)
def in_turn():
    with parallel.using(InTurn()):
        yield


@pytest.fixture
def short_stretches(monkeypatch):
    """Halts after every second update, each of which leaves a part."""
    monkeypatch.setattr(collection, "STEPS_PER_SEGMENT", 2 * BATCH_STEPS)
    monkeypatch.setattr(collection, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)


@pytest.mark.usefixtures("short_stretches")
@pytest.mark.parametrize("after", [1, 3, HALTS, HALTS + 2])
def test_a_stopped_collection_goes_on_inside_the_block(tmp_path, whole, after):
    stop(tmp_path, after)
    block, halts = divmod(after, HALTS)
    assert part_names(tmp_path) == [f"part-0000{block}.safetensors"] * bool(halts)
    watch = resume(tmp_path)
    assert files(tmp_path) == whole
    batches = 2 * 8 - 8 * block - (2 * halts + 1 if halts else 0)
    assert watch.total == sum(watch.reports) == batches * BATCH_STEPS


@pytest.mark.usefixtures("short_stretches")
@pytest.mark.parametrize(
    "make",
    [
        on_host,
        lambda: small_mdp(rule=Adam(), space=HyperparameterSpace((0.0,), (0.1,))),
        make_training_mdp,
        lambda: steps_mdp(PENDULUM, TRPO(minibatch_size=8, critic_epochs=1)),
    ],
    ids=["on the host", "with moments", "PPO", "TRPO on the host"],
)
def test_stopped_at_every_halt_the_bytes_are_the_same(tmp_path, monkeypatch, make):
    mdp = make()
    one = {"num_updates": 3, "num_episodes": mdp.block_size}
    monkeypatch.setattr(collection, "STEPS_PER_SEGMENT", 1)
    for _ in range(3):
        stop(tmp_path / "stopped", 1, mdp, **one)
    assert resume(tmp_path / "stopped", mdp, **one).total == 0
    monkeypatch.undo()
    resume(tmp_path / "whole", mdp, **one)
    assert files(tmp_path / "stopped") == files(tmp_path / "whole")


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(data)


def of_another_configuration(path: Path) -> None:
    other = path.parent.parent / "other"
    stop(other, 3, config={"a": 2})
    path.write_bytes((other / path.name).read_bytes())


def of_another_version(path: Path) -> None:
    arrays, metadata = storage.read_tensors(path)
    del arrays["learners.estimate.gradient"]
    storage.write_tensors(path, arrays, metadata)


@pytest.mark.usefixtures("short_stretches")
@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (flip_a_bit, "its content does not match the checksum in its header"),
        (of_another_configuration, "is of another dataset or block"),
        (of_another_version, "does not hold what this version keeps"),
    ],
)
def test_a_part_that_cannot_be_used_is_left_out(tmp_path, whole, capsys, harm, words):
    folder = tmp_path / "data"
    stop(folder, 3)
    harm(folder / "part-00000.safetensors")
    stop(folder, 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert "part-00000.safetensors" in line
    assert words in line
    assert resume(folder).total == (16 - 3) * BATCH_STEPS
    assert capsys.readouterr().err == ""
    assert files(folder) == whole


@pytest.mark.usefixtures("short_stretches")
def test_parts_of_complete_blocks_are_removed(tmp_path, whole):
    stop(tmp_path, 3)
    part = (tmp_path / "part-00000.safetensors").read_bytes()
    for after in (2, None):  # when block 1 is begun, and when it is complete
        stop(tmp_path, after) if after else resume(tmp_path)
        (tmp_path / "part-00000.safetensors").write_bytes(part)
    resume(tmp_path)
    assert files(tmp_path) == whole


@pytest.mark.parametrize(
    ("steps", "seconds", "is_memoryless", "reports"),
    [(7 * BATCH_STEPS, 0.0, True, 2), (BATCH_STEPS, 1e9, True, 14), (BATCH_STEPS, 0.0, False, 2), (1, 1e9, True, 14)],
    ids=["one segment", "quick segments", "controller with memory", "large batches"],
)
def test_where_parts_are_of_no_use_there_are_none(tmp_path, whole, monkeypatch, steps, seconds, is_memoryless, reports):
    controller = type("Either", (Exploration,), {"is_memoryless": is_memoryless})()
    monkeypatch.setattr(collection, "STEPS_PER_SEGMENT", steps)
    monkeypatch.setattr(collection, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    monkeypatch.setattr(Checkpoints, "write", None)
    watch = resume(tmp_path, controller=controller)
    assert len(watch.reports) == reports
    assert sum(watch.reports) == watch.total == 16 * BATCH_STEPS
    assert files(tmp_path) == whole


WORKER = """
import sys
from pathlib import Path
from metastep.mdp import collection
from tests.mdp.test_parts import BATCH_STEPS, LONG, small_mdp
collection.STEPS_PER_SEGMENT, collection.SECONDS_BETWEEN_CHECKPOINTS = BATCH_STEPS, 0.0
collection.collect(small_mdp(), Path(sys.argv[1]), **LONG)
"""
LONG = SETTINGS | {"num_episodes": 16, "num_updates": 150}


def test_a_killed_process_resumes_inside_the_block(tmp_path):
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path / "killed")], cwd=Path(__file__).parents[2])
    started = time.monotonic()
    while worker.poll() is None and not part_names(tmp_path / "killed") and time.monotonic() - started < 120.0:
        time.sleep(0.005)
    worker.send_signal(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    assert 0 < resume(tmp_path / "killed", **LONG).total < 150 * BATCH_STEPS
    resume(tmp_path / "whole", **LONG)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
