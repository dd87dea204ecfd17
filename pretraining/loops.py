"""Training loops as people have them, as data, and the meta-MDP of a family of the table under one of them.

Their shapes decide what is compiled: a program belongs to one family and one loop. All hyperparameters of an update are traced.
"""

import math
from typing import Any, Literal, NamedTuple

from metastep import ActorCriticMDP, InputError
from metastep.envs import choices_of
from metastep.policies import ActorCritic
from metastep.rules.actor_critic import PPO, Sampler
from metastep.rules.spaces import HyperparameterSpace, Range, space_for
from pretraining.families import SETTINGS, build

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
        """Those that a model may ask for, in whole epochs: at least 128, and twice the loop's own up to 640."""
        wanted = min(max(128, 2 * self.gradient_steps), round(CHOICES["gradient_steps"].high))
        return math.ceil(wanted / self.minibatches) * self.minibatches


_BOTH = ("observations", "rewards")

LOOPS: dict[str, Loop] = {
    "ours": Loop(16, 200, 400, 8, 40, (32, 32)),  # that of the presets
    "sb3": Loop(1, 2048, 64, 10, 20),  # Stable-Baselines3's default
    "cleanrl": Loop(4, 128, 128, 4, 120),  # CleanRL's ppo.py and PureJaxRL's ppo.py
    "cleanrl-continuous": Loop(1, 2048, 64, 10, 20, normalises=_BOTH),  # CleanRL's ppo_continuous_action.py
    "purejaxrl-brax": Loop(128, 25, 400, 4, 100, normalises=_BOTH),  # fewer environments, more steps
    "zoo-cartpole": Loop(8, 32, 256, 20, 200, discount=0.98),  # RL Zoo, as the next two
    "zoo-mujoco": Loop(1, 512, 32, 20, 40, (64, 64), "relu", _BOTH),
    "zoo-lander": Loop(16, 256, 64, 4, 25, discount=0.999),  # a quarter of the steps
    "many-updates": Loop(8, 16, 32, 1, 500, (32,)),  # 4 gradient steps
    "wide": Loop(32, 64, 256, 4, 40, (128, 128), "relu", ("observations",)),
}

SMALL_LOOPS: dict[str, Loop] = {  # for a few cores
    "ours": Loop(8, 50, 100, 4, 20, (16, 16)),
    "one-env": Loop(1, 256, 32, 4, 20, (16, 16), "relu", _BOTH),
    "cleanrl": Loop(4, 64, 64, 4, 30, (16, 16)),
}


def loops_of(names: tuple[str, ...], loops: dict[str, Loop]) -> dict[str, str]:
    """Return the name of a loop for each of some families: loops take turns in the order of the table of families."""
    order = [name for name in SETTINGS if name in names]
    return {name: [*loops][index % len(loops)] for index, name in enumerate(order)}


def build_mdp(family: str, loop: Loop, *, learners: int, twins: int = 1) -> ActorCriticMDP:
    """Return the meta-MDP of PPO on a family of the table, all of whose hyperparameters are chosen for every update."""
    if family not in SETTINGS:
        raise InputError(f"family: {family!r} is not in the table; allowed are {', '.join(SETTINGS)}.")
    env, setting = build(family), SETTINGS[family]
    policy = ActorCritic(
        env.num_observations, env.num_actions, choices_of(env), hidden=loop.hidden, activation=loop.activation
    )
    normalised: dict[str, Any] = {f"normalise_{name}": True for name in loop.normalises}
    discount = loop.discount or setting.discount
    sampler = Sampler(env, policy, loop.num_envs, loop.num_steps, setting.horizon, discount, twins=twins, **normalised)
    epochs = loop.most_gradient_steps // loop.minibatches
    rule = PPO(epochs=epochs, minibatch_size=loop.minibatch_size, gradient_steps=loop.gradient_steps)
    space = space_for(rule, RATES, {}, CHOICES)
    assert isinstance(space, HyperparameterSpace)
    return ActorCriticMDP(sampler, space, rule, block_size=learners, budget=loop.num_updates)


def described(name: str, loop: Loop) -> dict[str, Any]:
    """Return a loop as JSON holds it, for a model's record."""
    found = {"name": name, **loop._asdict(), "gradient_steps": loop.gradient_steps}
    return (
        found
        | {"batch_steps": loop.num_envs * loop.num_steps, "hidden": list(loop.hidden)}
        | {"normalises": list(loop.normalises)}
    )
