"""PPO in JAX. Episodes have one step: guess a sum."""

import jax
import jax.numpy as jnp
import optax
from jax.scipy.stats.norm import logpdf

UPDATES = 30
optimizer = optax.adam(3e-4)


@jax.jit
def update(params, state, stats, key):
    seen, noise = jax.random.normal(key, (512, 2)), jax.random.normal(jax.random.fold_in(key, 1), (512,))
    action, value = seen @ params["gain"] + jnp.exp(params["log_std"]) * noise, seen**2 @ params["critic"]
    reward, before = -((action - seen.sum(1)) ** 2), logpdf(noise) - params["log_std"]
    gain = (reward - value - (reward - value).mean()) / (reward - value).std()

    def loss(params):
        ratio = jnp.exp(logpdf(action, seen @ params["gain"], jnp.exp(params["log_std"])) - before)
        divergence = (ratio - 1 - jnp.log(ratio)).mean()
        critic_loss = ((seen**2 @ params["critic"] - reward) ** 2).mean()
        policy_loss = -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
        return policy_loss + 0.5 * critic_loss - 0.001 * params["log_std"], {"approx_kl": divergence}

    def descend(_, carry):
        params, state, _ = carry
        slopes, stats = jax.grad(loss, has_aux=True)(params)
        steps, state = optimizer.update(slopes, state, params)
        return optax.apply_updates(params, steps), state, stats

    params, state, stats = jax.lax.fori_loop(0, 10, descend, (params, state, stats))
    return params, state, stats, reward.mean()


params = {"gain": jnp.zeros(2), "log_std": jnp.zeros(()), "critic": jnp.zeros(2)}
state, stats = optimizer.init(params), {"approx_kl": jnp.zeros(())}
for key in jax.random.split(jax.random.key(0), UPDATES):
    params, state, stats, mean = update(params, state, stats, key)
    print(f"mean return {mean:6.2f}, divergence {stats['approx_kl']:.1e}")
