"""Training loops as people have them, as data, and the meta-MDP of a family of the table under one of them.

Their shapes decide what is compiled: a program belongs to one family and one loop. All hyperparameters of an update are traced.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from metastep import ActorCriticMDP
from metastep.envs import choices_of
from metastep.fqi.guard import most_steps
from metastep.policies import ActorCritic
from metastep.rules.actor_critic import PPO, Sampler
from metastep.rules.spaces import HyperparameterSpace, Range, space_for
from pretraining.families import SETTINGS, build
from pretraining.families.robots import Robot

RATES = Range(3e-5, 0.1, "log")
CHOICES = PPO.choices | {"gradient_steps": Range(4.0, 640.0, "log", "gradient_steps")}
START = {"stepsize": 2e-3, "gradient_steps": 48.0, "clip_range": 0.2, "gae_lambda": 0.95, "entropy_weight": 1e-3}
START |= {"critic_rate": 1.0}


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

    @property
    def most_gradient_steps(self) -> int:
        """Those that a model may ask for: as many as in other people's loops."""
        return round(most_steps(described("", self)))


def described(name: str, loop: Loop) -> dict[str, Any]:
    """Return a loop as JSON holds it, for a model's record."""
    found = {"name": name, **loop._asdict(), "hidden": list(loop.hidden), "normalises": list(loop.normalises)}
    return found | {"batch_steps": loop.num_envs * loop.num_steps, "gradient_steps": loop.gradient_steps}


_BOTH = ("observations", "rewards")

# Those whose environments make few steps one after another come first: robots, which are slow, get these.
LOOPS: dict[str, Loop] = {
    "ours": Loop(16, 200, 400, 8, 40, (32, 32)),  # that of the presets
    "purejaxrl-brax": Loop(128, 25, 400, 4, 100, normalises=_BOTH),  # fewer environments, more steps
    "cleanrl": Loop(4, 128, 128, 4, 120),  # CleanRL's ppo.py and PureJaxRL's ppo.py
    "zoo-cartpole": Loop(8, 32, 256, 20, 200, discount=0.98),  # RL Zoo
    "wide": Loop(32, 64, 256, 4, 40, (128, 128), "relu", ("observations",)),
    "zoo-lander": Loop(16, 256, 64, 4, 25, discount=0.999),  # RL Zoo, a quarter of the steps
    "sb3": Loop(1, 2048, 64, 10, 20),  # Stable-Baselines3's default
    "zoo-mujoco": Loop(1, 512, 32, 20, 40, (64, 64), "relu", _BOTH),  # RL Zoo
    "cleanrl-continuous": Loop(1, 2048, 64, 10, 20, normalises=_BOTH),  # CleanRL's ppo_continuous_action.py
    "many-updates": Loop(8, 16, 32, 1, 500, (32,)),  # 4 gradient steps
}

SMALL_LOOPS: dict[str, Loop] = {  # for a few cores
    "ours": Loop(8, 50, 100, 4, 20, (16, 16)),
    "one-env": Loop(1, 256, 32, 4, 20, (16, 16), "relu", _BOTH),
    "cleanrl": Loop(4, 64, 64, 4, 30, (16, 16)),
}


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
    epochs = loop.most_gradient_steps // loop.minibatches
    rule = PPO(epochs=epochs, minibatch_size=loop.minibatch_size, gradient_steps=loop.gradient_steps)
    space = space_for(rule, RATES, {}, CHOICES)
    assert isinstance(space, HyperparameterSpace)
    return ActorCriticMDP(sampler, space, rule, block_size=learners, budget=loop.num_updates)
