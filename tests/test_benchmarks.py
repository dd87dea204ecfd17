"""Every benchmark runs at its smallest size."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep.experiments.config import load
from metastep.experiments.run import Run
from metastep.mdp import Learners
from metastep.rules.spaces import HyperparameterSpace
from tests.processes import execute

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "shared")
NEEDS = dict.fromkeys(("sb3_rates", "sb3_update", "ppo_sb3"), "stable_baselines3")
NEEDS |= dict.fromkeys(("update_study",), "evosax")
OPTIONS = {"calibration": ["--size", "5"]}
LONG = ("update_study",)  # compiles a dozen programs


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.soak] * (name in LONG)) for name in SCRIPTS])
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


def test_runs_of_another_model_or_loop_run_again(tmp_path, monkeypatch):
    pytest.importorskip("stable_baselines3")
    monkeypatch.syspath_prepend(str(FOLDER))
    import sb3_rates

    made, loop = [], sb3_rates.loop_of("pendulum", "preset")
    others = [sb3_rates.loop_of("pendulum", "default"), loop._replace(hold=2), loop._replace(horizon=7)]
    others += [loop._replace(settings=loop.settings | {"n_epochs": 99}), sb3_rates.loop_of("acrobot", "preset")]
    assert len({each.digest for each in (loop, *others)}) == 6
    job = sb3_rates.Job("pendulum", "learned", 0.0, 0.0, 0, "cartpole-ppo", "preset", 30, "first fit", loop.digest)
    jobs = [job, job._replace(fingerprint="second fit"), job._replace(digest="another preset")]
    for asked in ([job, job], jobs):
        work = lambda job: made.append(job) or job._asdict()  # noqa: E731
        sb3_rates.run_all(asked, tmp_path / "kept.jsonl", (ThreadPoolExecutor(1), 1), work)
    assert made == jobs


def test_the_worst_of_a_population_copy_the_best_with_other_values(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import pbt

    how = pbt.Population(size=8, every=2, spread=0.1, updates=4, perturb=0.1)
    space = HyperparameterSpace((1e-4, 0.8), (1e-1, 1.0), ("log", "linear"), ("stepsize", "gae_lambda"))
    number = jnp.arange(24.0)
    state = {"theta": number[:, None], "rule_state": (number, number), "estimate": number, "flagged": number > 50.0}
    learners = Learners(**state, previous=number, context=number // 8, curvature=None, key=None, update=jnp.uint32(2))
    score = np.random.default_rng(0).permuted(np.tile(np.arange(8.0), (3, 1)), axis=1)
    score[1, 2] = np.nan
    values = jnp.tile(jnp.asarray([[1e-2, 0.9]]), (24, 1))
    key = jax.random.key(0)
    after, changed = pbt.exploit_and_explore(space, how, learners, values, jnp.asarray(score.ravel()), key)
    source = np.asarray(after.theta[:, 0], int).reshape(3, 8)
    is_copy = source != np.arange(24).reshape(3, 8)
    ranks = np.argsort(np.argsort(np.nan_to_num(score, nan=-1.0), axis=1), axis=1)
    np.testing.assert_array_equal(is_copy, ranks < 2)  # a quarter
    for task, row in enumerate(source):
        assert set(row[is_copy[task]] - 8 * task) <= set(np.flatnonzero(ranks[task] >= 6))  # of the same task
    for array in (*after.rule_state, after.estimate, after.previous):
        np.testing.assert_array_equal(array, source.ravel())
    np.testing.assert_allclose(changed[~is_copy.ravel()], np.float32([[1e-2, 0.9]] * 18))
    moved = np.asarray(changed)[is_copy.ravel()] / [1e-2, 0.9]
    np.testing.assert_allclose(np.abs(np.log10(moved[:, 0])), 0.3, rtol=1e-4)  # a tenth of three decades
    np.testing.assert_allclose(np.abs(0.9 * moved[:, 1] - 0.9), 0.02, rtol=1e-4)


def test_the_curve_of_a_population_is_that_of_who_led_before(monkeypatch):
    """The mean of pure noise stays what it is: choosing the best and then looking at new returns has no bias."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import pbt

    curve, leader = pbt.led(np.array([[[1.0, 2.0]], [[5.0, 3.0]], [[np.nan, 4.0]], [[9.0, 7.0]]]), every=1)
    np.testing.assert_array_equal(leader[:, 0], [0, 1, 0, 1])
    np.testing.assert_array_equal(curve[:, 0], [1.0, 3.0, np.nan, 7.0])
    noise = np.random.default_rng(0).normal(size=(20, 400, 8))
    assert abs(pbt.led(noise, 3)[0].mean()) < 0.05


def test_the_study_holds_hyperparameters_and_joins_seeds(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    import update_study

    mdp = Run(tmp_path / "unused", load("pendulum-update", "full")).of_model("update").mdp
    held = update_study.variants(mdp, 5e-3)
    assert len(held) == 1 + 2 * len(mdp.space.names)
    for name, usual in {"clip_range": 0.2, "gae_lambda": 0.95, "critic_rate": 1.0, "gradient_steps": 64.0}.items():
        choices = held[f"without-{name.replace('_', '-')}"]["choices"]
        assert choices[name]["low"] < usual < choices[name]["high"] < 1.01 * usual
        assert choices == held["all"]["choices"] | {name: choices[name]}
    assert held["only-clip-range"]["stepsize_high"] < 1.01 * 5e-3
    halved = update_study.changed(mdp, batch=0.5, epochs=0.25, rewards=0.01)
    assert (halved.batch_steps, halved.rule.epochs, halved.rule.minibatch_size) == (mdp.batch_steps // 2, 2, 200)

    rng = np.random.default_rng(0)
    for seed in (0, 1):  # the tuned rates gain 10 and 8, the constant gains 11, the schedule 12
        first, noise = rng.normal(size=(2, 50))
        levels = {"kl-adaptive": 10.0, "fixed": 8.0, "constant": 11.0, "schedule": 12.0}
        short = {"all": 11.0, "without-clip-range": 9.0, "only-clip-range": 8.5}
        loops = {"fixed": 5.0, "linear": 4.0, "feedback over loops": 8.0, "schedule over loops": 7.0}
        for part, gains in {"levels": levels, "ablations": short, "loops": loops}.items():
            areas = {name: (first + gain + noise - noise.mean()).tolist() for name, gain in gains.items()}
            methods = {name: {"area": area, "last": area, "steps": 5.0} for name, area in areas.items()}
            found = {"first": first.tolist(), "methods": methods, "selected": "schedule"}
            found |= {"curves": {"budget": [], "stepsize": []}, "cost": {"search_steps": 1.0, "seconds": 1.0}}
            found = {"loops": {"rewards / 100": found}, "rates": {}} if part == "loops" else found
            (tmp_path / f"pendulum-update-{seed}-{part}.json").write_text(json.dumps(found))
    update_study.join(SimpleNamespace(out=tmp_path))
    found = json.loads((tmp_path / "study.json").read_text())["pendulum-update"]
    assert (found["best"], found["levels"]["schedule"]["area"]["seeds"]) == (["kl-adaptive"] * 2, 2)
    leads = [found["levels"][name]["area"]["mean"] for name in ("constant", "schedule", "schedule minus constant")]
    np.testing.assert_allclose(leads, [0.1, 0.2, 0.1], atol=1e-9)
    # One hyperparameter alone is compared with the constant rate, which it has; a loop has rates of its own.
    leads = [each["mean"] for each in (*found["ablations"].values(), *found["loops"].values())]
    np.testing.assert_allclose(leads, [0.1, -0.2, 0.05, 0.2, 0.2, 0.4, 0.4], atol=1e-9)
    assert (tmp_path / "study.png").stat().st_size > 1000
    assert "20.0 %" in capsys.readouterr().out
