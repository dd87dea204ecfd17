"""Whole PPO runs of this library and of Stable-Baselines3 with the same settings: do they reach the same returns?

    python benchmarks/ppo_sb3.py                    # both environments, 10 seeds
    python benchmarks/ppo_sb3.py --env pendulum --seeds 3
    python benchmarks/ppo_sb3.py --host             # ours in Gymnasium's own environments, in batches as long as an episode

Both learn the nominal task: ours in JAX, with `--host` in Gymnasium's environments; theirs in Gymnasium's. Policies are evaluated
at four points by Stable-Baselines3's `evaluate_policy` in Gymnasium's environment, with our parameters copied into its networks.
This checks our environment, batches and updates at once. Seeds are not paired; intervals are Student's t over seeds.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import warnings
from typing import Any, NamedTuple

import numpy as np

import shared

POINTS = 4  # evenly spaced evaluations of a run


class Setting(NamedTuple):
    """The task and the hyperparameters of both."""

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
    """Return the evaluations of one run of Stable-Baselines3."""
    model, found = model_of(setting, seed), []
    for _ in range(POINTS):
        steps = setting.updates // POINTS * setting.envs * setting.steps
        model.learn(steps, reset_num_timesteps=False)
        found.append(evaluated(model, setting, episodes))
    return found


def reaching(setting: Setting) -> Setting:
    """Return batches of the same size from fewer environments, each as long as an episode."""
    while setting.steps < setting.horizon:
        setting = setting._replace(envs=setting.envs // 2, steps=2 * setting.steps)
    return setting


def in_gymnasium(env: Any, setting: Setting) -> Any:
    """Return Gymnasium's own environment, with its nominal task."""
    import gymnasium

    from metastep.envs.host import GymnasiumEnv

    def make(context: Any) -> Any:
        return gymnasium.make(setting.gymnasium, disable_env_checker=True)

    return GymnasiumEnv(make, env.context_space, name=setting.gymnasium)


def ours(name: str, setting: Setting, seeds: int, episodes: int, *, host: bool) -> tuple[list[list[float]], float]:
    """Return the evaluations of our runs, all in one block, and environment steps per second with learning."""
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
                found[-1].append(evaluated(model, setting, episodes))
    return np.transpose(found).tolist(), seeds * mdp.batch_steps / float(np.median(seconds))


def copy(parts: dict[str, Any], model: Any) -> None:
    """Copy our parameters into their networks."""
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


def evaluated(model: Any, setting: Setting, episodes: int) -> float:
    """Return the mean return of the stochastic policy."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    env = make_vec_env(setting.gymnasium, n_envs=episodes, seed=1)
    return float(evaluate_policy(model, env, n_eval_episodes=episodes, deterministic=False)[0])


def interval(values: Any) -> str:
    """Return mean and 95 % interval over seeds."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.1f} ± {half:.1f}"


def main() -> None:
    warnings.simplefilter("ignore")
    parser = shared.parser_of(__doc__)
    parser.add_argument("--env", choices=tuple(SETTINGS), nargs="+", default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=20, help="of each evaluation")
    parser.add_argument("--host", action="store_true", help="ours in Gymnasium's own environments")
    asked = parser.parse_args()
    if importlib.util.find_spec("stable_baselines3") is None:
        sys.exit(
            "stable_baselines3 is not installed, so there is nothing to compare with: pip install 'metastep[sb3]'."
        )
    import torch

    torch.set_num_threads(1)  # fastest for small networks
    if asked.smoke:
        asked.env, asked.seeds, asked.episodes = ["pendulum"], 2, 1
    for name in asked.env:
        setting = reaching(SETTINGS[name]) if asked.host else SETTINGS[name]
        if asked.smoke:
            setting = setting._replace(envs=2, steps=16, updates=POINTS, epochs=1, minibatch=16, horizon=16)
        own, speed = ours(name, setting, asked.seeds, asked.episodes, host=asked.host)
        others = [theirs(setting, seed, asked.episodes) for seed in range(asked.seeds)]
        runs = {"metastep": own, "Stable-Baselines3": others}
        points = setting.envs * setting.steps * setting.updates // POINTS * np.arange(1, POINTS + 1)
        headings = ["", *(f"{steps:,} steps" for steps in points)]
        rows = [[who, *map(interval, np.transpose(returns))] for who, returns in runs.items()]
        title = f"{setting.gymnasium}: mean return, {asked.seeds} seeds, 95 % intervals"
        shared.show(title, headings, rows, [f"metastep: {speed:,.0f} steps/s with learning, all seeds together"])
        found = {"setting": setting._asdict(), "host": asked.host, "steps_per_second": speed, **runs}
        shared.save(asked.out, f"ppo-sb3-{name}{'-host' if asked.host else ''}", found)


if __name__ == "__main__":
    main()
