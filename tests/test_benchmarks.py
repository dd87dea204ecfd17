"""Every benchmark runs at its smallest size, and one that was stopped resumes."""

import json
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.processes import execute

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "shared")
NEEDS = {"sb3_rates": "stable_baselines3", "ppo_sb3": "stable_baselines3"}
OPTIONS = {"calibration": ["--size", "5"]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_runs_at_its_smallest_size(name, tmp_path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    words = OPTIONS.get(name, ["--smoke", "--out", str(tmp_path)])
    done = execute(FOLDER / f"{name}.py", words=(*words,), cwd=tmp_path, JAX_NUMPY_DTYPE_PROMOTION="standard")
    assert done.returncode == 0, done.stderr
    if name not in OPTIONS:
        saved = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
        assert saved
        assert all(saved)


def test_stopped_runs_resume_unless_model_or_loop_changed(tmp_path, monkeypatch):
    """Stable-Baselines3's runs take hours, so finished ones are kept."""
    pytest.importorskip("stable_baselines3")
    monkeypatch.syspath_prepend(str(FOLDER))
    import sb3_rates

    made = []

    class InThisProcess:
        def submit(self, function, job):
            future = Future()
            future.set_result(function(job))
            return future

    monkeypatch.setattr(sb3_rates, "run", lambda job: made.append(job) or {"score": len(made), **job._asdict()})
    loop = sb3_rates.loop_of("pendulum", "preset")
    others = [sb3_rates.loop_of("pendulum", "default"), loop._replace(hold=2), loop._replace(horizon=7)]
    others += [loop._replace(settings=loop.settings | {"n_epochs": 99}), sb3_rates.loop_of("acrobot", "preset")]
    assert len({each.digest for each in (loop, *others)}) == 6
    job = sb3_rates.Job("pendulum", "learned", 0.0, 0.0, 0, "ppo-classic", "preset", 30, "first fit", loop.digest)
    kept = tmp_path / "kept.jsonl"
    assert [found["score"] for found in sb3_rates.run_all([job, job], kept, InThisProcess())] == [1, 1]
    with kept.open("a") as file:
        file.write('{"score": 7, "fam')  # stopped
    refitted, changed = job._replace(fingerprint="second fit"), job._replace(digest="another preset")
    assert [found["score"] for found in sb3_rates.run_all([job, refitted, changed], kept, InThisProcess())] == [1, 2, 3]
    assert made == [job, refitted, changed]
    assert sorted(json.loads(line)["score"] for line in kept.read_text().splitlines()) == [1, 2, 3]
