"""RL Zoo's tuned PPO (hyperparams/ppo.yml of rl-zoo3 2.9), for the environments of the evidence that it has settings for.

Its entries for Reacher, InvertedPendulum and InvertedDoublePendulum are those of the versions v2, of others those of v4.
"""

from typing import Any

TUNED = ("learning_rate", "clip_range", "gae_lambda", "ent_coef")  # what a method sets; the rest belongs to the loop
_WIDE: Any = {"log_std_init": -2, "ortho_init": False, "activation": "relu", "hidden": [256, 256]}
_NAMES = ("n_envs", "n_steps", "batch_size", "n_epochs", "gamma", "max_grad_norm", "vf_coef", *TUNED)
_LANDER = (16, 1024, 64, 4, 0.999, 0.5, 0.5, 3e-4, 0.2, 0.98, 0.01)
_TABLE: dict[str, tuple[float, ...]] = {  # where the file has no value, that of Stable-Baselines3
    "InvertedPendulum-v5": (1, 32, 64, 5, 0.999, 0.3, 0.19816, 0.000222425, 0.4, 0.9, 1.37976e-07),
    "InvertedDoublePendulum-v5": (1, 128, 512, 10, 0.98, 0.5, 0.695929, 0.000155454, 0.4, 0.8, 1.05057e-06),
    "Reacher-v5": (1, 512, 32, 5, 0.9, 0.9, 0.950368, 0.000104019, 0.3, 1.0, 7.52585e-08),
    "Hopper-v5": (1, 512, 32, 5, 0.999, 0.7, 0.835671, 9.80828e-05, 0.2, 0.99, 0.00229519),
    "Walker2d-v5": (1, 512, 32, 20, 0.99, 1.0, 0.871923, 5.05041e-05, 0.1, 0.95, 0.000585045),
    "HalfCheetah-v5": (1, 512, 64, 20, 0.98, 0.8, 0.58096, 2.0633e-05, 0.1, 0.92, 0.000401762),
    "Swimmer-v5": (4, 1024, 256, 10, 0.9999, 0.5, 0.5, 6e-4, 0.2, 0.98, 0.0),
    "LunarLander-v3": _LANDER,
    "LunarLanderContinuous-v3": _LANDER,
    "BipedalWalker-v3": (32, 2048, 64, 10, 0.999, 0.5, 0.5, 3e-4, 0.18, 0.95, 0.0),
}
ZOO: dict[str, dict[str, Any]] = {
    env: dict(zip(_NAMES, values, strict=True))
    | {"normalize": not env.startswith("LunarLander"), "policy": _WIDE if env[:3] in ("Hop", "Hal") else {}}
    for env, values in _TABLE.items()
}
