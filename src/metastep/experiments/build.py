"""From a configuration to the objects that run it."""

from metastep import envs
from metastep.errors import InputError
from metastep.experiments.config import Experiment
from metastep.gradients import Estimator
from metastep.meta.mdp import InitialPolicy, MetaMDP
from metastep.meta.spaces import HyperparameterSpace
from metastep.policies import LinearGaussian, MLPGaussian, Policy
from metastep.rollouts import Rollout


def build_mdp(config: Experiment) -> MetaMDP:
    """The meta-MDP that a configuration describes."""
    env = envs.make(config.env.name, **config.env.options)
    policy: Policy
    if config.policy.kind == "linear":
        policy = LinearGaussian(env.num_observations, env.num_actions, config.policy.sigma)
    else:
        policy = MLPGaussian(env.num_observations, env.num_actions, config.policy.sigma, config.policy.hidden)
    rollout, meta, initial = config.rollout, config.meta, config.initial
    used = ("mean", "variance") if initial.kind == "normal" else ("low", "high")
    for name in used:
        numbers = getattr(initial, name)
        if len(numbers) not in (1, policy.num_parameters):
            raise InputError(
                f"initial.{name}: {list(numbers)} must hold one number, or one for each of the "
                f"{policy.num_parameters} parameters."
            )
    return MetaMDP(
        estimator=Estimator(
            Rollout(env, policy, rollout.num_episodes, rollout.horizon, rollout.discount, rollout.baseline),
            damping=rollout.damping,
        ),
        space=HyperparameterSpace((meta.stepsize_low,), (meta.stepsize_high,), (meta.stepsize_scale,)),
        initial=InitialPolicy(initial.kind, *(getattr(initial, name) for name in used)),
        meta_discount=meta.meta_discount,
        observation=meta.observation,
        block_size=rollout.block_size,
    )


def updates_collected(config: Experiment) -> int:
    """T of the training data: the generative method samples every tuple afresh, which is an episode of one update."""
    return 1 if config.collect.method == "generative" else config.meta.num_updates
