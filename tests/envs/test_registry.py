import pytest

from metastep import envs
from metastep.envs import CartPole, Env, HostEnv, Nav2D
from metastep.errors import InputError


@pytest.mark.parametrize("name", envs.names())
def test_every_registered_environment_is_built_by_its_name(name: str) -> None:
    env = envs.make(name)
    assert isinstance(env, Env | HostEnv)
    assert env.name == name
    assert env == envs.make(name)
    assert hash(env) == hash(envs.make(name))


def test_the_environments_of_the_paper_are_registered() -> None:
    assert {"nav2d", "minigolf", "cartpole", "swingup", "halfcheetah", "lqr"} <= set(envs.names())


def test_options_are_fields() -> None:
    assert envs.make("cartpole", force="continuous") == CartPole(force="continuous")


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(InputError, match=r"env.name: 'cartpol' is not registered, .* Did you mean 'cartpole'\?"):
        envs.make("cartpol")


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(InputError, match=r"env.options: nav2d cannot be built with \{'wind': 3\}: .*'wind'"):
        envs.make("nav2d", wind=3)


def test_a_name_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "_REGISTRY", dict(envs._REGISTRY))
    envs.register("nav2d", Nav2D)  # the same again is no conflict
    with pytest.raises(InputError, match="env: the name 'nav2d' is taken already"):
        envs.register("nav2d", CartPole)
    envs.register("nav2d-large", lambda: Nav2D(max_move=1.0))
    assert envs.make("nav2d-large") == Nav2D(max_move=1.0)
