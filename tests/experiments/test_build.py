"""What a configuration needs is looked for before anything is written."""

from types import SimpleNamespace

import pytest

from metastep import envs
from metastep._core.errors import InputError
from metastep.envs.host.halfcheetah import HalfCheetahVel
from metastep.experiments.build import require_available
from metastep.experiments.start import start_run


@pytest.mark.parametrize("name", envs.names())
def test_every_registered_environment_is_available_here(name):
    require_available(SimpleNamespace(env=envs.make(name)))


def test_a_package_that_is_missing_is_one_sentence(monkeypatch):
    def start(*_):
        raise ImportError("No module named 'engine'")

    monkeypatch.setattr(HalfCheetahVel, "start_episodes", start)
    with pytest.raises(InputError, match=r"^env: halfcheetah needs something that is not installed: No module .*'\.$"):
        require_available(SimpleNamespace(env=HalfCheetahVel()))


def test_a_simulator_without_restart_leaves_no_folder(tmp_path, monkeypatch):
    start = HalfCheetahVel.start_episodes

    def without_restart(*arguments):
        episodes = start(*arguments)
        return SimpleNamespace(observe=episodes.observe, step=episodes.step)

    monkeypatch.setattr(HalfCheetahVel, "start_episodes", without_restart)
    settings = ["env.name=halfcheetah", 'env.options={engine="c"}', "rollout.horizon=64"]
    with pytest.raises(InputError, match=r"^env\.name: 'halfcheetah' has episodes without `restart`, which"):
        start_run("pendulum-ppo", "quick", tmp_path / "run", command="", overrides=settings, anyway=True)
    assert not (tmp_path / "run").exists()
