"""Training loops as people have them, the table loops.toml, and the meta-MDP of a family under one: a program for each pair."""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from metastep import ActorCriticMDP
from metastep.envs import choices_of
from metastep.policies import ActorCritic
from metastep.rules.actor_critic import PPO, Sampler
from metastep.rules.spaces import HyperparameterSpace, Range, space_for
from pretraining.families import SETTINGS, build
from pretraining.families.robots import Robot

RATES = Range(3e-5, 0.1, "log")
# Gradient steps count in percent of those that a loop makes by itself: loops differ too much for one number.
PERCENT = Range(25.0, 200.0, "log", "gradient_steps")
# Where a search begins, besides a loop's own gradient steps and the rate (`recipe.with_rate`).
START = {"clip_range": 0.2, "gae_lambda": 0.95, "entropy_weight": 3e-4, "critic_rate": 1.0}


class Loop(NamedTuple):
    """How much is sampled for an update, how often, and what learns from it."""

    num_envs: int
    num_steps: int
    minibatch_size: int
    epochs: int  # of the loop itself; a model may ask for more or fewer gradient steps
    num_updates: int
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    normalises: tuple[str, ...] = ()  # observations, rewards
    discount: float | None = None  # None for the family's own

    @property
    def minibatches(self) -> int:
        """Minibatches of an epoch."""
        return self.num_envs * self.num_steps // self.minibatch_size

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of an update without a model."""
        return self.epochs * self.minibatches


def described(name: str, loop: Loop) -> dict[str, Any]:
    """Return a loop as JSON holds it, for a model's record."""
    found = {"name": name, **loop._asdict(), "hidden": list(loop.hidden), "normalises": list(loop.normalises)}
    return found | {"batch_steps": loop.num_envs * loop.num_steps, "gradient_steps": loop.gradient_steps}


def _loop(row: dict[str, Any]) -> Loop:
    lists: Any = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    return Loop(**row | lists)


_TABLE = tomllib.loads(Path(__file__).with_name("loops.toml").read_text("utf-8"))
LOOPS, MEDIUM_LOOPS, SMALL_LOOPS = (
    {name: _loop(row) for name, row in _TABLE[use].items()} for use in ("full", "medium", "small")
)
SWAPPED: dict[str, dict[str, str]] = _TABLE["swapped"]  # by table and family


def assigned(groups: Iterable[Sequence[str]], loops: Mapping[str, Loop]) -> dict[str, str]:
    """Return the name of a loop for each family: loops take turns within each group, robots first."""
    found = dict[str, str]()
    for group in groups:
        order = sorted(group, key=lambda name: not issubclass(SETTINGS[name].family, Robot))
        found |= {name: [*loops][index % len(loops)] for index, name in enumerate(order)}
    return found


def build_mdp(family: str, loop: Loop, *, learners: int, twins: int = 1) -> ActorCriticMDP:
    """Return the meta-MDP of PPO on a family of the table, all of whose hyperparameters are chosen for every update."""
    env, setting = build(family), SETTINGS[family]
    shape: Any = {"hidden": loop.hidden, "activation": loop.activation}
    policy = ActorCritic(env.num_observations, env.num_actions, choices_of(env), **shape)
    how: Any = {f"normalise_{name}": True for name in loop.normalises} | {"twins": twins}
    sizes = loop.num_envs, loop.num_steps, setting.horizon, loop.discount or setting.discount
    sampler = Sampler(env, policy, *sizes, **how)
    own, most = loop.gradient_steps, math.ceil(loop.epochs * PERCENT.high / 100.0)
    steps = replace(PERCENT, low=PERCENT.low * (own / 100.0), high=PERCENT.high * (own / 100.0))
    rule = PPO(epochs=most, minibatch_size=loop.minibatch_size, gradient_steps=own)
    space = space_for(rule, RATES, {}, PPO.choices | {"gradient_steps": steps})
    assert isinstance(space, HyperparameterSpace)
    return ActorCriticMDP(sampler, space, rule, block_size=learners, budget=loop.num_updates)
