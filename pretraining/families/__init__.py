"""Families of tasks, and one table of settings of them, settings.toml: for training, and others for the final test.

`build("hopper")` returns an environment of the table. Configurations name one as `pretraining.families:hopper`, and a family with
other options as `pretraining.families.robots:Hopper`.
"""

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from metastep import InputError, envs
from metastep.envs import Env, register
from pretraining import wrappers as varied
from pretraining.families import games, motion, robots, systems, tables


class Setting(NamedTuple):
    """A family, how long and at what discount it is played, how it is varied, and its options."""

    family: type[Any]
    horizon: int
    discount: float
    wrappers: tuple[Callable[[Any], Env], ...]  # the innermost first
    options: dict[str, Any]


_CLASSES = {name: each for part in (envs, games, motion, robots, systems, tables) for name, each in vars(part).items()}


def _setting(family: str, horizon: int, discount: float = 0.99, wrappers: Any = (), **options: Any) -> Setting:
    named = [{"wrapper": each} if isinstance(each, str) else dict(each) for each in wrappers]
    around = tuple(partial(getattr(varied, each.pop("wrapper")), **each) for each in named)
    return Setting(_CLASSES[family], horizon, discount, around, options)


_TABLE = tomllib.loads(Path(__file__).with_name("settings.toml").read_text("utf-8"))
TRAINING, TEST = ({name: _setting(**own) for name, own in _TABLE[use].items()} for use in ("training", "test"))
SETTINGS: dict[str, Setting] = TRAINING | TEST


def build(name: str) -> Env:
    """Return the environment of a setting; its `name` is that of the setting."""
    if name not in SETTINGS:
        raise InputError(f"family: {name!r} is not in the table; allowed are {', '.join(SETTINGS)}.")
    setting = SETTINGS[name]
    env = setting.family(**setting.options)
    for wrapper in setting.wrappers:
        env = wrapper(env)
    return varied.Named(env, name)


for _name in SETTINGS:
    register(_name, partial(build, _name))
