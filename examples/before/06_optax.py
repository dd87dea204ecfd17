"""PPO in JAX. Episodes have one step: guess a sum."""

import jax
import jax.numpy as jnp
import optax
from jax.scipy.stats.norm import logpdf

UPDATES = 30
optimizer = optax.adam(3e-4)


@jax.jit
def update(params, state, key):
    seen, noise = jax.random.normal(key, (512, 2)), jax.random.normal(jax.random.fold_in(key, 1), (512,))
    action, value = seen @ params["gain"] + jnp.exp(params["log_std"]) * noise, seen**2 @ params["critic"]
    reward, before = -((action - seen.sum(1)) ** 2), logpdf(noise) - params["log_std"]
    gain = (reward - value - (reward - value).mean()) / (reward - value).std()
    metrics = {"returns": reward[-16:], "explained_variance": 1 - (reward - value).var() / reward.var()}

    def loss(params):
        ratio = jnp.exp(logpdf(action, seen @ params["gain"], jnp.exp(params["log_std"])) - before)
        stats = {"approx_kl": (ratio - 1 - jnp.log(ratio)).mean(), "clip_fraction": (abs(ratio - 1) > 0.2).mean()}
        critic_loss = ((seen**2 @ params["critic"] - reward) ** 2).mean()
        policy_loss = -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
        return policy_loss + 0.5 * critic_loss, stats | {"entropy": params["log_std"] + 1.419}

    for epoch in range(10):
        slopes, stats = jax.grad(loss, has_aux=True)(params)
        steps, state = optimizer.update(slopes, state, params)
        params = optax.apply_updates(params, steps)
    return params, state, metrics | stats


params = {"gain": jnp.zeros(2), "log_std": jnp.zeros(()), "critic": jnp.zeros(2)}
state = optimizer.init(params)
for key in jax.random.split(jax.random.key(0), UPDATES):
    params, state, logged = update(params, state, key)
    print(f"mean return {logged['returns'].mean():6.2f}, divergence {logged['approx_kl']:.1e}")
