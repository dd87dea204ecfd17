"""What cannot run is refused in one sentence before anything is allocated or written."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from metastep._core.errors import InputError
from metastep.envs.halfcheetah import HalfCheetahVel
from metastep.experiments import budget
from metastep.experiments.config import list_presets, load, require_available
from metastep.experiments.run import Run, start_run
from tests.cli.test_cli import invoke, refused

OWN = Path(__file__).parent.parent / "own"


@pytest.mark.parametrize("preset", list_presets())
def test_every_preset_is_within_reach(preset):
    configs = [load(preset, scale) for scale in ("quick", "full")]
    quick, full = (budget.budget_of(Run(Path("run"), config)) for config in configs)
    assert max(*quick.memory.values(), *full.memory.values()) < 1e9
    # Learning with networks at the scale of `full` is for GPUs, and so are search and HalfCheetah.
    paces = {"ppo": ("with learning", 36), "update": ("with learning", 240), "halfcheetah": ("on the host", 36)}
    pace, hours = paces.get(preset.rpartition("-")[2], ("in JAX", 13))
    assert max(quick.steps, full.steps) / budget.STEPS_PER_SECOND[pace] < hours * 3600.0
    if pace == "in JAX":  # a few minutes at 25 million steps a second, padding included, and the same experiment
        assert quick.steps < min(5e9, full.steps / 2)
        for section in ("env", "policy", "initial", "meta", "rollout"):
            assert getattr(configs[0], section) == getattr(configs[1], section)


SIZES = ["rollout.block_size", "collect.block_size", "rollout.num_episodes", "meta.num_updates", "selection.num_tasks"]
SIZES += ["collect.num_meta_episodes", "compare.num_tasks", "compare.num_updates", "compare.num_resamples"]
SIZES += ["search.pairs", "search.knots", "search.units"]


@pytest.mark.parametrize("setting", SIZES)
def test_memory_out_of_reach_is_refused_at_once(tmp_path, setting):
    preset, scale = ("pendulum-update", "full") if setting.startswith("search") else ("nav2d", "quick")
    with pytest.raises(InputError, match=r"^[a-z_.]+: .* takes about [\d.]+ [GTPk]?.*B of memory, .* available; .*\.$"):
        start_run(preset, scale, tmp_path / "run", overrides=[f"{setting}={10**9}"], anyway=True)
    assert not (tmp_path / "run").exists()


def test_the_memory_of_a_search_depends_on_its_own_blocks():
    each = [f"search={{block_size=100000000, strategy={name!r}}}" for name in ("open-es", "snes")]
    paired, other = (Run(Path("run"), load("pendulum-update", "quick", [words])) for words in each)
    with pytest.raises(InputError, match=r"^search\.block_size: what depends on it takes about .*B of memory, "):
        budget.require_affordable(paired)
    two, three = (budget.budget_of(run).memory["search.block_size"] for run in (paired, other))
    assert 2 * three == 3 * two  # learners of a pair run side by side
    wide = ["search.units=100000", "search.strategy='cma-es'"]
    memory = budget.budget_of(Run(Path("run"), load("pendulum-update", "full", wide))).memory
    assert memory["search.units"] > 4.0 * (6.0 * 100_000) ** 2  # the covariance


def test_the_disk_is_looked_at_before_there_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "available_memory", lambda: 10**18)
    large = ["collect.num_meta_episodes=100000000"]
    with pytest.raises(InputError, match="of disk space"):
        start_run("nav2d", "quick", tmp_path / "run", overrides=large, anyway=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("preset", "overrides", "pace"),
    [
        ("nav2d", ["rollout.horizon=1000000000"], "in JAX, about .* at 10.0 M"),
        ("cartpole-ppo", ["compare.num_tuning_tasks=300000"], "with learning, about .* at 100.0 k"),
        ("halfcheetah", ["compare.num_tasks=1000000", "compare.num_updates=200"], "on the host, about .* at 100.0 k"),
    ],
)
def test_weeks_need_a_yes(tmp_path, preset, overrides, pace):
    overrides = [*overrides, 'compare.methods=["fixed"]']
    words = rf"^The experiment simulates [\d.]+ [GT]steps {pace}steps/s; more than 10 days need --yes\.$"
    with pytest.raises(InputError, match=words):
        start_run(preset, "quick", tmp_path / "run", overrides=overrides)
    assert not (tmp_path / "run").exists()
    budget.require_affordable(Run(Path("run"), load(preset, "quick", overrides)), anyway=True)


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


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
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
    own, settings = str(OWN / "ridge_walk.toml"), [f"env.name=wrong_walks:{env}"]
    for _ in range(2):
        assert start_run(own, None, tmp_path / "run", overrides=settings).config.env.name == f"wrong_walks:{env}"
    if env == "NanFarOut":  # actions are as wide as the policy's
        with pytest.raises(InputError, match="env 'walk': the reward is nan at step"):
            start_run(own, None, tmp_path / "wide", overrides=[*settings, 'policy={name="linear", sigma=3.0}'])
