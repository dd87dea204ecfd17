"""What cannot run is refused in one sentence before anything is allocated or written."""

import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from metastep import envs
from metastep._core.errors import InputError
from metastep.envs.halfcheetah import HalfCheetahVel
from metastep.experiments import budget
from metastep.experiments.config import list_presets, load, require_available
from metastep.experiments.run import Run, start_run
from tests.cli.test_cli import invoke, refused

OWN = Path(__file__).parent.parent / "own"


def budget_of(preset, scale, *overrides):
    return budget.budget_of(Run(Path("run"), load(preset, scale, overrides)))


@pytest.mark.parametrize("preset", list_presets())
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_preset_is_within_reach(preset, scale):
    found = budget_of(preset, scale)
    assert max(found.memory.values()) < 1e9
    pace = (
        "with learning"
        if preset.endswith(("-ppo", "-update"))
        else "on the host"
        if preset == "halfcheetah"
        else "in JAX"
    )
    # Learning with networks at the scale of `full` is for GPUs, and so is search.
    hours = 36 if preset.endswith("-ppo") else 240 if preset.endswith("-update") else 13
    assert found.steps / budget.STEPS_PER_SECOND[pace] < hours * 3600.0


SIZES = ["rollout.block_size", "collect.block_size", "rollout.num_episodes", "meta.num_updates", "selection.num_tasks"]
SIZES += ["collect.num_meta_episodes", "compare.num_tasks", "compare.num_updates", "compare.num_resamples"]


@pytest.mark.parametrize("setting", SIZES)
def test_memory_out_of_reach_is_refused_at_once(tmp_path, setting):
    began = time.monotonic()
    with pytest.raises(InputError, match=r"^[a-z_.]+: .* takes about [\d.]+ [GTPk]?.*B of memory, .* available; .*\.$"):
        start_run("nav2d", "quick", tmp_path / "run", overrides=[f"{setting}={10**9}"], anyway=True)
    assert time.monotonic() - began < 10.0
    assert not (tmp_path / "run").exists()


def test_the_disk_is_looked_at_before_there_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "available_memory", lambda: 10**18)
    large = ["collect.num_meta_episodes=100000000"]
    with pytest.raises(InputError, match="of disk space"):
        start_run("nav2d", "quick", tmp_path / "run", overrides=large, anyway=True)
    assert not (tmp_path / "run").exists()


def test_weeks_need_a_yes(tmp_path):
    long = ["rollout.horizon=1000000000", 'compare.methods=["fixed", "adam"]']
    words = [word for setting in long for word in ("--set", setting)]
    sentence = refused(invoke("run", "nav2d", "--out", tmp_path / "run", *words))
    days = re.fullmatch(
        r"error: The experiment simulates [\d.]+ Tsteps in JAX, about ([\d.e+]+) days at 10.0 Msteps/s; "
        r"more than 10 days need --yes\.",
        sentence,
    )
    assert float(days[1]) > 10.0
    assert not (tmp_path / "run").exists()
    config = load("nav2d", "quick", long)
    assert budget.require_affordable(Run(Path("run"), config), anyway=True).steps > 1e13


@pytest.mark.parametrize(
    ("preset", "scale", "overrides", "pace"),
    [
        ("halfcheetah", "full", ["compare.num_tasks=100000", 'compare.methods=["fixed", "adam"]'], "on the host"),
        (
            "cartpole-ppo",
            "quick",
            ["compare.num_tuning_tasks=300000"],
            "with learning",
        ),  # the simulation alone is a day
    ],
)
def test_simulators_on_the_host_and_networks_are_slower(preset, scale, overrides, pace):
    with pytest.raises(InputError, match=rf"simulates [\d.]+ [GT]steps {pace}, about [\d.e+]+ days at 100.0 ksteps/s;"):
        budget.require_affordable(Run(Path("run"), load(preset, scale, overrides)))


@pytest.mark.parametrize("name", envs.names())
def test_every_registered_environment_is_available_here(name):
    require_available(SimpleNamespace(env=envs.make(name)))


def test_a_package_or_a_method_that_is_missing_is_one_sentence(tmp_path, monkeypatch):
    begin = HalfCheetahVel.start_episodes

    def missing(*_):
        raise ImportError("No module named 'engine'")

    def without_restart(*arguments):
        episodes = begin(*arguments)
        return SimpleNamespace(observe=episodes.observe, step=episodes.step)

    monkeypatch.setattr(HalfCheetahVel, "start_episodes", missing)
    with pytest.raises(InputError, match=r"^env: halfcheetah needs something that is not installed: No module .*'\.$"):
        require_available(SimpleNamespace(env=HalfCheetahVel()))
    monkeypatch.setattr(HalfCheetahVel, "start_episodes", without_restart)
    settings = ["env.name=halfcheetah", 'env.options={engine="c"}', "rollout.horizon=64"]
    with pytest.raises(InputError, match=r"^env\.name: 'halfcheetah' has episodes without `restart`, which"):
        start_run("pendulum-ppo", "quick", tmp_path / "run", overrides=settings, anyway=True)
    assert not (tmp_path / "run").exists()


# Environments of one's own.


def started(out, env, *overrides):
    settings = [f"env.name=wrong_walks:{env}", *overrides]
    return start_run(str(OWN / "ridge_walk.toml"), None, out, overrides=settings)


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ("ReturnsTuple", "env 'walk': `step` must return a metastep.envs.Step, its result has no `state`."),
        ("ObservesVector", "env 'walk': array 0 of `observe` has shape (2,), it must be a scalar."),
        ("ObservesTwo", "env 'walk': `observe` returns 2 numbers, but num_observations is 1."),
        ("Branches", "env 'walk': `step with 1 actions and 0 normals` depends on a value in Python (an `if`, "),
        ("PaysNan", "env 'walk': the reward is nan at step 0 of an episode in the task goal = "),
        ("SaysLittle", "env 'walk': `num_observations` must be a whole number of at least 1, got None."),
        ("NanOnHost", "env 'host walk': the reward is nan at step 0 of an episode in the task goal = "),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_folder(tmp_path, monkeypatch, env, sentence):
    monkeypatch.syspath_prepend(str(OWN))
    words = ["--set", f"env.name=wrong_walks:{env}", "--out", tmp_path / "run"]
    assert refused(invoke("collect", OWN / "ridge_walk.toml", *words)).startswith(f"error: {sentence}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("env", ["Idle", "Cut", "NanFarOut", "OnHost", "CutOnHost"])
def test_what_can_be_run_starts_and_resumes(tmp_path, monkeypatch, env):
    """A few steps do not show whether all that is declared has an effect."""
    monkeypatch.syspath_prepend(str(OWN))
    for _ in range(2):
        assert started(tmp_path / "run", env).config.env.name == f"wrong_walks:{env}"
    if env == "NanFarOut":  # actions are as wide as the policy's
        with pytest.raises(InputError, match="env 'walk': the reward is nan at step"):
            started(tmp_path / "wide", env, 'policy={name="linear", sigma=3.0}')
