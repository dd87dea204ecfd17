from pathlib import Path
from typing import Any

import pytest

from metastep import envs
from metastep._core.errors import InputError
from metastep._core.registry import Entry
from metastep.envs import CartPole, Env, HostEnv, Nav2D


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


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nav2d", {"wind": 3}, r"'wind' is not an option of nav2d, allowed are .*max_move"),
        ("minigolf", {"foo": 1}, r"'foo' is not an option of minigolf, allowed are "),
        ("cartpole", {"forse": "continuous"}, r"'forse' is not an option of cartpole, .* Did you mean 'force'\?$"),
        ("halfcheetah", {"engin": "c"}, r"'engin' is not an option of halfcheetah, .* Did you mean 'engine'\?$"),
        (
            "halfcheetah",
            {"engine": "c", "line_search": 3},
            r"'line_search' is not an option of halfcheetah on engine 'c'",
        ),
    ],
)
def test_an_unknown_option_is_named_with_those_there_are(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"^env.options: {words}") as error:
        envs.make(name, **options)
    assert "context_space" not in str(error.value)
    assert "__init__" not in str(error.value)


def test_factories_may_take_no_options_or_any(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"none": Entry(lambda: Nav2D(), "", ""), "any": Entry(lambda **options: Nav2D(**options), "", "")}
    monkeypatch.setattr(envs.REGISTRY, "_entries", entries)
    with pytest.raises(InputError, match=r"'a' is not an option of none, allowed are none\."):
        envs.make("none", a=1)
    with pytest.raises(InputError, match=r"env.options: any cannot be built with \{'a': 1\}"):
        envs.make("any", a=1)
    assert envs.make("any", max_move=1.0) == Nav2D(max_move=1.0)


def test_a_name_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs.REGISTRY, "_entries", dict(envs.REGISTRY._entries))
    envs.register("nav2d", Nav2D)  # the same again is no conflict
    with pytest.raises(InputError, match=r"env\.name: the name 'nav2d' is taken already"):
        envs.register("nav2d", CartPole)
    envs.register("nav2d-large", lambda: Nav2D(max_move=1.0))
    assert envs.make("nav2d-large") == Nav2D(max_move=1.0)


MODULE = """
from metastep.envs import Nav2D, register

register("slow_walk", lambda: Nav2D(max_move=0.01))
"""


def test_a_module_may_be_named_that_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs.REGISTRY, "_entries", {})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "walks_of_mine.py").write_text(MODULE)
    (tmp_path / "broken_walks.py").write_text("1 / 0")
    assert envs.make("walks_of_mine:slow_walk") == Nav2D(max_move=0.01)
    with pytest.raises(InputError, match=r"env.name: 'slow_wlk' is not registered, .* Did you mean 'slow_walk'\?"):
        envs.make("walks_of_mine:slow_wlk")
    with pytest.raises(
        InputError, match=r"'walks_of_mine\.slow_walk' is not .* One of your own is 'walks_of_mine:slow_walk'\.$"
    ):
        envs.make("walks_of_mine.slow_walk")
    with pytest.raises(
        InputError,
        match=r"'no_such_walks' cannot be imported, ModuleNotFoundError: .*\. It must be installed or lie in",
    ):
        envs.make("no_such_walks:slow_walk")
    with pytest.raises(InputError, match=r"'broken_walks' cannot be imported, ZeroDivisionError: division by zero\.$"):
        envs.make("broken_walks:slow_walk")
