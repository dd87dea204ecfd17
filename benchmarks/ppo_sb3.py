"""Whole PPO runs of this package and of Stable-Baselines3 with the same settings: do they reach the same returns?

    python benchmarks/ppo_sb3.py                    # both environments, 10 seeds
    python benchmarks/ppo_sb3.py --env pendulum --seeds 3
    python benchmarks/ppo_sb3.py --host             # ours in Gymnasium's own environments, in batches as long as an episode

Both learn in the nominal task, ours simulated in JAX, with `--host` by Gymnasium, theirs by Gymnasium. Policies are judged at a
few points on the way, all by Stable-Baselines3's `evaluate_policy` in Gymnasium's environment, into whose networks our parameters
are copied: this holds our environment, batches and updates to theirs at once. Seeds are not paired; intervals are Student's over
seeds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from shared import save

POINTS = 4  # of a run, evenly spaced, at which the policy is judged


class Setting(NamedTuple):
    """What both learn, and how."""

    gymnasium: str
    context: tuple[float, ...]  # Gymnasium's
    horizon: int
    envs: int
    steps: int
    updates: int
    epochs: int
    minibatch: int
    rate: float
    discount: float


SETTINGS = {
    "cartpole-v1": Setting("CartPole-v1", (1.0, 0.1, 0.5, 10.0), 500, 8, 128, 48, 10, 64, 1e-3, 0.99),
    "pendulum": Setting("Pendulum-v1", (1.0, 1.0, 10.0), 200, 8, 256, 48, 10, 64, 1e-3, 0.9),
}


def model_of(setting: Setting, seed: int) -> Any:
    """Stable-Baselines3's PPO with its defaults but for the settings."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    return PPO(
        "MlpPolicy",
        make_vec_env(setting.gymnasium, n_envs=setting.envs, seed=seed),
        n_steps=setting.steps,
        batch_size=setting.minibatch,
        n_epochs=setting.epochs,
        learning_rate=setting.rate,
        gamma=setting.discount,
        seed=seed,
        device="cpu",
    )


def theirs(setting: Setting, seed: int, episodes: int) -> list[float]:
    """Returns on the way of one run of Stable-Baselines3."""
    model, found = model_of(setting, seed), []
    for _ in range(POINTS):
        steps = setting.updates // POINTS * setting.envs * setting.steps
        model.learn(steps, reset_num_timesteps=False)
        found.append(judged(model, setting, episodes))
    return found


def reaching(setting: Setting) -> Setting:
    """The same size of a batch from fewer environments, each of which has the time for an episode."""
    while setting.steps < setting.horizon:
        setting = setting._replace(envs=setting.envs // 2, steps=2 * setting.steps)
    return setting


def in_gymnasium(env: Any, setting: Setting) -> Any:
    """Gymnasium's own environment in place of ours; its task is the nominal one."""
    import gymnasium

    from metastep.envs.host import GymnasiumEnv

    def make(context: Any) -> Any:
        return gymnasium.make(setting.gymnasium, disable_env_checker=True)

    return GymnasiumEnv(make, env.context_space, name=setting.gymnasium)


def ours(name: str, setting: Setting, seeds: int, episodes: int, *, host: bool) -> tuple[list[list[float]], float]:
    """Returns on the way of our runs, all in one block, and environment steps a second with learning."""
    import jax.numpy as jnp

    from metastep import envs
    from metastep.envs import choices_of
    from metastep.mdp import ActorCriticMDP
    from metastep.mdp.blocks import Stream
    from metastep.policies import ActorCritic
    from metastep.rules.actor_critic import PPO, Sampler
    from metastep.rules.spaces import HyperparameterSpace

    env: Any = in_gymnasium(envs.make(name), setting) if host else envs.make(name)
    policy = ActorCritic(env.num_observations, env.num_actions, choices_of(env))
    sampler = Sampler(env, policy, setting.envs, setting.steps, setting.horizon, setting.discount)
    rule, space = PPO(setting.epochs, setting.minibatch), HyperparameterSpace((1e-5,), (1e-1,), ("log",))
    mdp = ActorCriticMDP(sampler, space, rule, block_size=seeds)
    learners = mdp.begin(mdp.tasks(0, Stream.TEST, 0, np.asarray([setting.context], np.float32)))
    model, found, seconds = model_of(setting, 0), [], []
    for update in range(setting.updates):
        start = time.perf_counter()
        learners = mdp.advance(learners, jnp.full((seeds, 1), setting.rate, jnp.float32))
        learners.theta.block_until_ready()
        seconds.append(time.perf_counter() - start)
        if (update + 1) % (setting.updates // POINTS) == 0:
            found.append([])
            for theta in learners.theta:
                copy(policy.split(theta), model)
                found[-1].append(judged(model, setting, episodes))
    return np.transpose(found).tolist(), seeds * mdp.batch_steps / float(np.median(seconds))


def copy(parts: dict[str, Any], model: Any) -> None:
    """Our parameters into their networks."""
    import torch

    net = model.policy
    layers = {
        "actor": (net.mlp_extractor.policy_net[0], net.mlp_extractor.policy_net[2], net.action_net),
        "critic": (net.mlp_extractor.value_net[0], net.mlp_extractor.value_net[2], net.value_net),
    }
    for network, modules in layers.items():
        for index, layer in enumerate(modules):
            for kind in ("weight", "bias"):
                getattr(layer, kind).data = torch.tensor(np.asarray(parts[f"{network}.{index}.{kind}"]).T.copy())
    if "log_std" in parts:
        net.log_std.data = torch.tensor(np.asarray(parts["log_std"]))


def judged(model: Any, setting: Setting, episodes: int) -> float:
    """Mean return of the policy as it explores."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    env = make_vec_env(setting.gymnasium, n_envs=episodes, seed=1)
    return float(evaluate_policy(model, env, n_eval_episodes=episodes, deterministic=False)[0])


def interval(values: Any) -> str:
    """Mean with its 95 % interval over seeds."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.1f} ± {half:.1f}"


def main() -> None:
    """Print the table and save the figures."""
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)  # fastest for small networks
    parser = argparse.ArgumentParser(description="PPO beside Stable-Baselines3.")
    parser.add_argument("--env", choices=tuple(SETTINGS), nargs="+", default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=20, help="of each judgement")
    parser.add_argument("--host", action="store_true", help="ours in Gymnasium's own environments")
    arguments = parser.parse_args()
    console = Console(width=140)
    found: dict[str, Any] = {}
    for name in arguments.env:
        setting = reaching(SETTINGS[name]) if arguments.host else SETTINGS[name]
        own, speed = ours(name, setting, arguments.seeds, arguments.episodes, host=arguments.host)
        runs = {
            "metastep": own,
            "Stable-Baselines3": [theirs(setting, seed, arguments.episodes) for seed in range(arguments.seeds)],
        }
        found[name] = {"setting": setting._asdict(), "host": arguments.host, "steps_per_second": speed, **runs}
        table = Table(title=f"{setting.gymnasium}: mean return, {arguments.seeds} seeds, 95 % intervals")
        batch, every = setting.envs * setting.steps, setting.updates // POINTS
        for heading in ("", *(f"{batch * every * (point + 1):,} steps" for point in range(POINTS))):
            table.add_column(heading)
        for who, returns in runs.items():
            table.add_row(who, *(interval(column) for column in np.transpose(returns)))
        console.print(table)
        console.print(f"metastep: {speed:,.0f} steps/s with learning, all seeds together")
        save(console, f"ppo-sb3-{name}{'-host' if arguments.host else ''}", found[name])


if __name__ == "__main__":
    main()
