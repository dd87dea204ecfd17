"""PPO in JAX. Episodes have one step: guess a sum."""

import jax
import jax.numpy as jnp
import optax
from jax.scipy.stats.norm import logpdf

UPDATES = 30
usual = {"stepsize": 3e-4, "gradient_steps": 10, "clip_range": 0.2, "entropy_weight": 1e-3, "critic_rate": 1.0}
optimizer = optax.scale_by_adam()


@jax.jit
def update(params, state, key):
    moments, stats = state
    seen, noise = jax.random.normal(key, (512, 2)), jax.random.normal(jax.random.fold_in(key, 1), (512,))
    action, value = seen @ params["gain"] + jnp.exp(params["log_std"]) * noise, seen**2 @ params["critic"]
    reward, before = -((action - seen.sum(1)) ** 2), logpdf(noise) - params["log_std"]
    gain = (reward - value - (reward - value).mean()) / (reward - value).std()
    values = usual

    def loss(params):
        ratio = jnp.exp(logpdf(action, seen @ params["gain"], jnp.exp(params["log_std"])) - before)
        clipped = jnp.clip(ratio, 1 - values["clip_range"], 1 + values["clip_range"])
        found = -jnp.minimum(ratio * gain, clipped * gain).mean() - values["entropy_weight"] * params["log_std"]
        found += 0.5 * ((seen**2 @ params["critic"] - reward) ** 2).mean()
        return found, {"approx_kl": (ratio - 1 - jnp.log(ratio)).mean()}

    def descend(_, carry):
        params, moments, _ = carry
        slopes, stats = jax.grad(loss, has_aux=True)(params)
        steps, moments = optimizer.update(slopes, moments, params)
        rates = {name: -values["stepsize"] * values["critic_rate"] ** (name == "critic") for name in params}
        return {name: params[name] + rates[name] * steps[name] for name in params}, moments, stats

    params, moments, stats = jax.lax.fori_loop(
        0, jnp.int32(values["gradient_steps"]), descend, (params, moments, stats)
    )
    return params, (moments, stats), reward.mean()


params = {"gain": jnp.zeros(2), "log_std": jnp.zeros(()), "critic": jnp.zeros(2)}
state = optimizer.init(params), {"approx_kl": jnp.zeros(())}
for key in jax.random.split(jax.random.key(0), UPDATES):
    params, state, mean = update(params, state, key)
    print(f"mean return {mean:6.2f}, divergence {state[1]['approx_kl']:.1e}")
