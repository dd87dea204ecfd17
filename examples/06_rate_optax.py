"""PPO in JAX: the rate is a link of `optax.chain`, inside the compiled update. Episodes of one step: guess a sum."""

import os

import jax
import jax.numpy as jnp
import optax
from jax.scipy.stats.norm import logpdf

from metastep.integrations.optax import learned_rate

MODEL, UPDATES = os.environ.get("METASTEP_MODEL", "ppo-classic"), 30
optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam(), learned_rate(MODEL, UPDATES))


@jax.jit
def update(params, state, key, last):
    seen, noise = jax.random.normal(key, (512, 2)), jax.random.normal(jax.random.fold_in(key, 1), (512,))
    action = seen @ params["gain"] + jnp.exp(params["log_std"]) * noise
    reward, before = -((action - seen.sum(1)) ** 2), logpdf(noise) - params["log_std"]
    told = {"returns": reward[:16], "entropy": params["log_std"] + 1.419, "explained_variance": 0.0, **last}

    def loss(params):
        ratio = jnp.exp(logpdf(action, seen @ params["gain"], jnp.exp(params["log_std"])) - before)
        gain = (reward - reward.mean()) / reward.std()
        cost = {"approx_kl": (ratio - 1 - jnp.log(ratio)).mean(), "clip_fraction": (abs(ratio - 1) > 0.2).mean()}
        return -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean(), cost

    for epoch in range(10):
        slopes, last = jax.grad(loss, has_aux=True)(params)
        steps, state = optimizer.update(slopes, state, params, diagnostics=told, begins=epoch == 0)
        params = optax.apply_updates(params, steps)
    return params, state, last, reward.mean()


params, last = {"gain": jnp.zeros(2), "log_std": jnp.zeros(())}, {"approx_kl": 0.0, "clip_fraction": 0.0}
state = optimizer.init(params)
for key in jax.random.split(jax.random.key(0), UPDATES):
    params, state, last, mean = update(params, state, key, last)
    print(f"mean return {mean:6.2f}, rate {state[-1].hyperparams['learning_rate']:.1e}")
