"""Small meta-MDPs for tests; each is built once, so that it is compiled once."""

from functools import cache
from typing import Any

from metastep.envs import Pendulum
from metastep.mdp import ActorCriticMDP, EpisodicMetaMDP, InitialPolicy
from metastep.policies import ActorCritic
from metastep.rules import NGA, Rule
from metastep.rules.actor_critic import PPO, ActorCriticRule, Sampler
from metastep.rules.spaces import HyperparameterSpace
from metastep.simulation.gradients import Estimator
from tests.reference import CASES, make_rollout

BLOCK = 8
NATURAL = NGA()


@cache
def make_mdp(
    name: str = "nav2d", hidden: tuple[int, ...] = (), rule: Rule = NATURAL, high: float = 2.0, **changes: Any
) -> EpisodicMetaMDP:
    """A block of 8 learners with short episodes."""
    # Long enough on the cart-pole for episodes to end at different times.
    fields = {"num_episodes": 20, "horizon": 40 if name == "cartpole" else 6} | changes
    rollout = make_rollout(name, "mean", hidden, **fields)
    initial = InitialPolicy(mean=(0.0,), variance=(CASES[name].spread ** 2,))
    if name == "minigolf":
        initial = InitialPolicy("uniform", low=(1.0,), high=(2.0,))
    space = HyperparameterSpace((0.0,), (high,), names=rule.hyperparameters)
    return EpisodicMetaMDP(Estimator(rollout), space, initial, rule, block_size=BLOCK)


TRAINING = PPO(epochs=2, minibatch_size=8)


@cache
def make_training_mdp(rule: ActorCriticRule = TRAINING, num_envs: int = 2, num_steps: int = 12) -> ActorCriticMDP:
    """A block of 8 learners with tiny networks and episodes that are cut off within a batch."""
    env = Pendulum()
    policy = ActorCritic(env.num_observations, env.num_actions, hidden=(4,))
    space = HyperparameterSpace((1e-4,), (1e-1,), ("log",), names=rule.hyperparameters)
    return ActorCriticMDP(Sampler(env, policy, num_envs, num_steps, horizon=7), space, rule, block_size=BLOCK, budget=4)
