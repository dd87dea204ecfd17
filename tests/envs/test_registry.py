from pathlib import Path
from typing import Any

import pytest

from metastep import envs
from metastep._core.errors import InputError
from metastep._core.settings import Entry
from metastep.envs import CartPole, Nav2D


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nav2d", {"wind": 3}, r"'wind' is not an option of nav2d, allowed are .*max_move"),
        ("cartpole", {"forse": "continuous"}, r"'forse' is not an option of cartpole, .* Did you mean 'force'\?$"),
    ],
)
def test_an_unknown_option_is_named_with_those_there_are(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"^env.options: {words}") as error:
        envs.make(name, **options)
    assert "context_space" not in str(error.value)


def test_a_name_is_taken_once_and_factories_may_take_no_options_or_any(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"none": Entry(lambda: Nav2D(), "", ""), "any": Entry(lambda **options: Nav2D(**options), "", "")}
    monkeypatch.setattr(envs.REGISTRY, "_entries", entries)
    envs.register("nav2d", Nav2D)
    envs.register("nav2d", Nav2D)  # the same again is no conflict
    with pytest.raises(InputError, match=r"env\.name: the name 'nav2d' is taken already"):
        envs.register("nav2d", CartPole)
    with pytest.raises(InputError, match=r"'a' is not an option of none, allowed are none\."):
        envs.make("none", a=1)
    with pytest.raises(InputError, match=r"env.options: any cannot be built with \{'a': 1\}"):
        envs.make("any", a=1)
    assert envs.make("any", max_move=1.0) == Nav2D(max_move=1.0)


def test_a_module_may_be_named_that_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs.REGISTRY, "_entries", {})
    monkeypatch.syspath_prepend(tmp_path)
    walks = "from metastep.envs import Nav2D, register\nregister('slow_walk', lambda: Nav2D(max_move=0.01))"
    (tmp_path / "walks_of_mine.py").write_text(walks)
    (tmp_path / "broken_walks.py").write_text("1 / 0")
    assert envs.make("walks_of_mine:slow_walk") == Nav2D(max_move=0.01)
    assert envs.make("walks_of_mine:Nav2D", max_move=0.2) == Nav2D(max_move=0.2)  # a class needs no registration
    for name, words in {
        "walks_of_mine:slow_wlk": r"env.name: 'slow_wlk' is not registered, .* Did you mean 'slow_walk'\?",
        "walks_of_mine.slow_walk": r"'walks_of_mine\.slow_walk' is not .* One of your own is 'walks_of_mine:slow_walk'\.$",
        "no_such_walks:slow_walk": r"'no_such_walks' cannot be imported, ModuleNotFoundError: .*\. It must be installed or",
        "broken_walks:slow_walk": r"'broken_walks' cannot be imported, ZeroDivisionError: division by zero\.$",
    }.items():
        with pytest.raises(InputError, match=words):
            envs.make(name)
