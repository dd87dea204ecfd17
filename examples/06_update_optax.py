"""PPO in JAX: a model sets the hyperparameters inside the compiled update. Episodes have one step: guess a sum."""

import jax
import jax.numpy as jnp
import optax
from jax.scipy.stats.norm import logpdf

from metastep.integrations.optax import learned_update

UPDATES = 30
optimizer = optax.inject_hyperparams(optax.adam)(3e-4)
learned = learned_update("ppo", UPDATES, loop={"gradient_steps": 10})


@jax.jit
def update(params, state, stats, key, memory):
    seen, noise = jax.random.normal(key, (512, 2)), jax.random.normal(jax.random.fold_in(key, 1), (512,))
    action, value = seen @ params["gain"] + jnp.exp(params["log_std"]) * noise, seen**2 @ params["critic"]
    reward, before = -((action - seen.sum(1)) ** 2), logpdf(noise) - params["log_std"]
    gain = (reward - value - (reward - value).mean()) / (reward - value).std()
    values, memory = learned.propose(memory, stats | {"returns": reward[-16:]})
    state.hyperparams["learning_rate"], clip = values["stepsize"], values["clip_range"]

    def loss(params):
        ratio = jnp.exp(logpdf(action, seen @ params["gain"], jnp.exp(params["log_std"])) - before)
        divergence = (ratio - 1 - jnp.log(ratio)).mean()
        critic_loss = ((seen**2 @ params["critic"] - reward) ** 2).mean()
        policy_loss = -jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - clip, 1 + clip) * gain).mean()
        return policy_loss + 0.5 * critic_loss - values["entropy_weight"] * params["log_std"], {"approx_kl": divergence}

    def descend(_, carry):
        params, state, _ = carry
        slopes, stats = jax.grad(loss, has_aux=True)(params)
        steps, state = optimizer.update(slopes, state, params)
        steps["critic"] *= values["critic_rate"]
        return optax.apply_updates(params, steps), state, stats

    params, state, stats = jax.lax.fori_loop(0, values["gradient_steps"].astype(int), descend, (params, state, stats))
    return params, state, stats, reward.mean(), memory


params = {"gain": jnp.zeros(2), "log_std": jnp.zeros(()), "critic": jnp.zeros(2)}
state, stats, memory = optimizer.init(params), {"approx_kl": jnp.zeros(())}, learned.init(params)
for key in jax.random.split(jax.random.key(0), UPDATES):
    params, state, stats, mean, memory = update(params, state, stats, key, memory)
    print(f"mean return {mean:6.2f}, divergence {stats['approx_kl']:.1e}")
