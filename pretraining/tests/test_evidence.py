"""The evidence at its smallest size: all methods in both loops, resumed, its statistics and its page."""

import json
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("mujoco")

from stable_baselines3 import PPO

from pretraining import evidence, pages, sb3
from pretraining.sb3 import TUNED, ZOO
from pretraining.work import Clock


@pytest.mark.filterwarnings("ignore")  # of Stable-Baselines3, on batches this small
def test_all_methods_run_resume_and_come_to_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pages, "RESAMPLES", 50)
    places = {"out": tmp_path, "page": tmp_path / "lab" / "page.md", "figures": tmp_path / "images"}
    words = ["--envs", "InvertedPendulum-v5", "Pusher-v5", "--smoke", "--steps", "64", "--updates", "2", "--jobs", "1"]
    words += ["--universal=linear 2e-3", *(f"--{name}={path}" for name, path in places.items())]
    evidence.main([*words, "--seeds", "1", "--minutes", "0"])
    assert "16 runs are left" in capsys.readouterr().out  # five on each, and six in RL Zoo's loop, which Pusher lacks
    with monkeypatch.context() as patch:
        patch.setattr(evidence, "write_page", lambda records, *_: None)  # drawing takes seconds
        evidence.main([*words, "--seeds", "1"])
    kept = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert len(kept) == 16
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"env": "Inverted')  # stopped
    monkeypatch.setattr(evidence, "run", lambda job, smoke: json.loads(kept[0]) | job._asdict())
    evidence.main([*words, "--seeds", "2"])
    found = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [json.dumps(record) for record in found[:16]] == kept
    assert len(found) == 32
    assert {record["schedule"] for record in found} == {"", "linear 0.0003", "linear 0.002"}
    assert all(np.isfinite(record["curve"]).all() and len(record["curve"]) == 2 for record in found)
    # These batches are far smaller than the model's.
    assert all(record["fallback"] == (record["method"] == "model") for record in found[:16])
    page = places["page"].read_text()
    assert page.count("updates left to the loop") == 2  # of every environment, in both loops
    assert page.count("| 100 % |") >= 3
    assert all(label in page for label in ("ppo minus it", "KL-adaptive", "RL Zoo, tuned", "Pusher-v5"))
    for name in ("sb3-scores", "sb3-curves", "zoo-scores", "zoo-curves"):
        assert f"](../images/evidence-{name}.svg)" in page
        assert (places["figures"] / f"evidence-{name}.svg").stat().st_size > 1000
    with pytest.raises(SystemExit) as stopped:
        evidence.main([*words, "--universal", "cosine 0.1"])
    assert stopped.value.code == 2


def test_a_run_that_raises_costs_no_other_run(tmp_path):
    """The second of four jobs raises: the first is kept, and the error is not hidden."""

    class Job(NamedTuple):
        number: int

    def work(job):
        if job.number == 1:
            raise RuntimeError("broken")
        return {"number": job.number}

    jobs = [Job(number) for number in range(4)]
    with sb3.workers(1) as pool, pytest.raises(RuntimeError, match="broken"):
        sb3.run_all(jobs, tmp_path / "runs.jsonl", pool, work)
    kept = [json.loads(line)["number"] for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert 0 in kept
    assert 1 not in kept


def test_a_run_is_begun_only_if_it_fits_into_the_time_left(tmp_path):
    """Runs of one kind take 40 s, those of the other 5 s: of two minutes, some are left for the short ones only."""

    class Job(NamedTuple):
        env: str
        loop: str
        seed: int

    now = 0.0

    def work(job):
        nonlocal now
        now += 40.0 if job.env == "long" else 5.0
        return job._asdict()

    jobs = [Job(env, "sb3", seed) for seed in range(4) for env in ("long", "short")]
    with sb3.workers(1) as pool, pytest.raises(TimeoutError, match="2 runs are left"):
        sb3.run_all(jobs, tmp_path / "runs.jsonl", pool, work, Clock(2.0, lambda: now))
    kept = [json.loads(line)["env"] for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert sorted(kept) == ["long"] * 2 + ["short"] * 4
    assert now == 100.0


@pytest.mark.filterwarnings("ignore")
def test_a_policy_that_is_not_finite_ends_its_own_run_only(monkeypatch):
    job = evidence.Job("InvertedPendulum-v5", "sb3", "default", 0, 192, "", "", "", "")
    learn = PPO.learn

    def stop(agent, steps, callback):
        learn(agent, 64, callback=callback)
        raise ValueError("Expected parameter loc\nto be finite")

    monkeypatch.setattr(PPO, "learn", stop)
    found = evidence.run(job, smoke=True)
    assert found["failed"] == "Expected parameter loc to be finite"
    assert len(found["curve"]) >= 2
    assert found["curve"][-1] == pytest.approx(min(found["curve"]))


def test_the_universal_schedule_is_that_of_the_recipe(monkeypatch):
    record = SimpleNamespace(configuration={"universal_rate": {"rate": 0.005, "falls": True}})
    monkeypatch.setattr(evidence, "rate_model", lambda model: SimpleNamespace(record=record))
    assert evidence.universal_schedule("", "ppo") == "linear 0.005"
    assert evidence.universal_schedule("constant 1e-3", "ppo") == "constant 0.001"
    record.configuration = {}
    assert evidence.universal_schedule("", "ppo") == evidence.UNIVERSAL


def test_interquartile_means_resample_seeds_within_environments():
    rng = np.random.default_rng(0)
    # Environments differ by 100, which a resampling of environments would show.
    rows = [100.0 * env + np.array([[1.0], [0.0]]) + 0.1 * rng.normal(size=(2, 5)) for env in range(4)]
    (means, leads), runs = pages.stratified(rows), np.sort(np.concatenate(rows, axis=1), axis=1)
    np.testing.assert_allclose(means[:, 0], runs[:, 5:15].mean(axis=1))
    assert np.all((means[:, 1] < means[:, 0]) & (means[:, 0] < means[:, 2]) & (means[:, 2] - means[:, 1] < 0.3))
    np.testing.assert_allclose(leads[1, 0], means[0, 0] - means[1, 0])
    assert 0.8 < leads[1, 1] < leads[1, 2] < 1.2
    assert np.isnan(pages.stratified([row[:, :1] for row in rows])[..., 1:]).all()
    curve = {"curve": [0.0, 1.0], "first": 0.0, "fallback": 0.5, "env": "x", "loop": "sb3", "steps": 10}
    records = [curve | {"method": name, "seed": seed} for name, seed in (("model", 0), ("default", 0), ("model", 1))]
    (scores,) = pages.gathered(records, "sb3", ["model", "default"])
    assert scores.curves.shape == (2, 1, 101)  # the seed that both have finished
    assert scores.fallback == 0.5


@pytest.mark.parametrize(("log_ratio", "factor"), [(0.5, 1 / 1.5), (0.01, 1.5), (0.12, 1.0), (0.0, 1.0)])
def test_the_adaptive_rate_follows_the_divergence_of_a_minibatch(log_ratio, factor):
    import torch

    minibatch, group = SimpleNamespace(old_log_prob=torch.zeros(4)), {"lr": 0.0}
    policy = SimpleNamespace(optimizer=SimpleNamespace(param_groups=[group]))
    policy.evaluate_actions = lambda: (None, torch.full((4,), log_ratio), None)
    buffer = SimpleNamespace(get=lambda size: iter([minibatch]))
    callback = sb3.KLAdaptive()
    callback.model = SimpleNamespace(rollout_buffer=buffer, policy=policy)
    callback._init_callback()
    for _ in buffer.get(4):
        policy.evaluate_actions()
    assert group["lr"] == pytest.approx(1e-3 * factor)


def test_the_settings_of_rl_zoo_are_whole():
    assert set(evidence.ENVS) - set(ZOO) == {"Pusher-v5"}
    assert all(set(TUNED) < set(settings) and 0.9 <= settings["gamma"] < 1.0 for settings in ZOO.values())
