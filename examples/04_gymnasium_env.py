"""Any Gymnasium environment as a family of tasks: Pendulum with a bob of unknown mass.

A factory builds the environment of a task; everything else (policies, gradients, update rules, controllers, fitted Q-iteration)
works as with the environments of the library. Python environments are slow, so the batches here are small.
"""

import os

import gymnasium

from metastep.blocks import Stream
from metastep.contexts import ContextSpace
from metastep.controllers.fixed import Fixed
from metastep.envs.host import GymnasiumEnv
from metastep.gradients import Estimator
from metastep.meta.loop import run
from metastep.meta.mdp import InitialPolicy, MetaMDP
from metastep.meta.spaces import HyperparameterSpace
from metastep.policies import LinearGaussian
from metastep.rollouts import Rollout
from metastep.testing import check_env

quick = bool(os.environ.get("METASTEP_EXAMPLE_QUICK"))


def make_pendulum(context):
    env = gymnasium.make("Pendulum-v1", disable_env_checker=True)
    env.unwrapped.m = context.mass
    return env


env = GymnasiumEnv(make_pendulum, ContextSpace(("mass",), (0.5,), (2.0,), ("kg",)), name="pendulum")
check_env(env)  # says so if the factory ignores the mass, a seed, or has the wrong spaces

policy = LinearGaussian(env.num_observations, env.num_actions, sigma=1.0)
rollout = Rollout(env, policy, num_episodes=10 if quick else 50, horizon=20 if quick else 100)
mdp = MetaMDP(
    estimator=Estimator(rollout),
    space=HyperparameterSpace((0.0,), (2.0,)),
    initial=InitialPolicy("normal", (0.0,), (0.1,)),
    block_size=2 if quick else 4,
)
tasks = mdp.tasks(seed=0, stream=Stream.TEST, block=0)
print("masses (kg):", ", ".join(f"{float(mass):.2f}" for mass in tasks.context[:, 0]))
for stepsize in (0.3, 2.0):
    episode = run(mdp, Fixed(stepsize), tasks, num_updates=2 if quick else 15)
    returns = " ".join(f"{value:7.1f}" for value in episode.mean_return.mean(axis=1))
    print(f"step size {stepsize}: mean return after each update {returns}")
