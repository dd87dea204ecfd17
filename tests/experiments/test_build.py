"""What a configuration needs is looked for before anything is written."""

import pytest

from metastep import envs
from metastep.envs.host.halfcheetah import HalfCheetahVel
from metastep.errors import InputError
from metastep.experiments.build import require_available


@pytest.mark.parametrize("name", envs.names())
def test_every_registered_environment_is_available_here(name):
    require_available(envs.make(name))


def test_a_package_that_is_missing_is_one_sentence(monkeypatch):
    def start(*_):
        raise ImportError("No module named 'engine'")

    monkeypatch.setattr(HalfCheetahVel, "start_episodes", start)
    with pytest.raises(InputError, match=r"^env: halfcheetah needs something that is not installed: No module .*'\.$"):
        require_available(HalfCheetahVel())
