"""Runs that a benchmark keeps: taken up where they are the same, made anew where model or loop are others."""

import importlib
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")


@pytest.fixture(scope="module")
def sb3_rates():
    folder = str(Path(__file__).resolve().parent.parent / "benchmarks")
    sys.path.insert(0, folder)
    yield importlib.import_module("sb3_rates")
    sys.path.remove(folder)


class AtOnce:
    """A pool that makes runs in this process."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def submit(self, function, job):
        from concurrent.futures import Future

        future = Future()
        future.set_result(function(job))
        return future


def test_kept_runs_are_of_the_same_model_and_loop(sb3_rates, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(sb3_rates, "ProcessPoolExecutor", AtOnce)
    monkeypatch.setattr(sb3_rates, "run", lambda job: made.append(job) or {"score": len(made), **job._asdict()})
    runs = sb3_rates.Runs(tmp_path / "kept.jsonl", 1)
    said = sb3_rates.loop_of("pendulum", "preset").said
    job = sb3_rates.Job("pendulum", "learned", 0.0, 0.0, 0, "ppo-classic", "preset", 30, "first fit", said)
    assert [found["score"] for found in runs([job, job])] == [1, 1]
    with open(tmp_path / "kept.jsonl", "a") as file:
        file.write('{"score": 7, "fam')  # stopped
    refitted, changed = job._replace(fingerprint="second fit"), job._replace(said="another preset")
    assert [found["score"] for found in runs([job, refitted, changed])] == [1, 2, 3]
    assert made == [job, refitted, changed]
    lines = (tmp_path / "kept.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["score"] for line in lines) == [1, 2, 3]


def test_a_loop_is_known_by_what_it_is_made_of(sb3_rates):
    loop = sb3_rates.loop_of("pendulum", "preset")
    others = [sb3_rates.loop_of("pendulum", "default"), loop._replace(hold=2), loop._replace(horizon=7)]
    others += [loop._replace(settings=loop.settings | {"n_epochs": 99}), sb3_rates.loop_of("acrobot", "preset")]
    assert len({each.said for each in (loop, *others)}) == 6
