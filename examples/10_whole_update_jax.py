"""PPO in JAX: training runs of several seeds are one compiled program, in which a model sets the hyperparameters of every update.

The environment is a task of the library's CartPole-v1. A model that chooses the rate only leaves the rest at USUAL.
METASTEP_EXAMPLE_QUICK=1 makes small updates.
"""

import os

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

import metastep
from metastep.integrations.optax import learned_update

QUICK = bool(os.environ.get("METASTEP_EXAMPLE_QUICK"))
SEEDS, ENVS, STEPS, UPDATES, MINIBATCH, DISCOUNT = 2, 8, 16 if QUICK else 128, 3 if QUICK else 60, 128, 0.99
USUAL = {"stepsize": 3e-4, "gradient_steps": 32, "clip_range": 0.2, "gae_lambda": 0.95}
USUAL |= {"entropy_weight": 0.01, "critic_rate": 1.0}
MEASURED = ("approx_kl", "last_clip_fraction", "clip_fraction", "gradient_norm", "actor_gradient_norm")
EPOCH, SIZES = ENVS * STEPS // MINIBATCH, (4, 64, 64)

env = metastep.make_env("cartpole-v1")
TASK = env.context_space.unpack(jnp.array([1.0, 0.1, 0.5, 10.0]))  # masses of cart and pole, half its length, force
model = metastep.load("ppo")
# Values of one's own, for a loop or a feature that is unlike those that the model was trained on.
own = {name: USUAL[name] for name in model.record.hyperparameters}
loop = {"actions": "discrete", "num_envs": ENVS, "discount": DISCOUNT}
learned = learned_update(model, UPDATES, fallback=own, loop=loop)
optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam(eps=1e-5))


def network(outputs, last):
    """Return the scale of every parameter at the start."""
    pairs = zip(SIZES, (*SIZES[1:], outputs), (2**0.5, 2**0.5, last), strict=True)
    return [(jnp.full((size, after), gain / size**0.5), jnp.zeros(after)) for size, after, gain in pairs]


SCALES, unravel = ravel_pytree({"actor": network(2, 0.01), "critic": network(1, 1.0)})
IS_CRITIC = jnp.arange(SCALES.size) >= ravel_pytree(network(2, 0.01))[0].size


def apply(layers, seen):
    for weights, bias in layers[:-1]:
        seen = jnp.tanh(seen @ weights + bias)
    return seen @ layers[-1][0] + layers[-1][1]


def policy(params, seen):
    chances = jax.nn.log_softmax(apply(unravel(params)["actor"], seen))
    return chances, -(jnp.exp(chances) * chances).sum(-1).mean()


def critic(params, seen):
    return apply(unravel(params)["critic"], seen)[..., 0]


def act(params, carry, key):
    """Make a step of one environment; an episode that is over begins again."""
    state, age, paid, last = carry
    seen = jnp.stack(env.observe(TASK, state))
    chances, _ = policy(params, seen)
    action = jax.random.categorical(key, chances)
    after = env.step(TASK, state, (action,), ())
    over, paid = after.terminated | (age >= 499), paid + after.reward
    first = env.reset(TASK, jax.random.normal(key, (4,)))
    state = jax.tree.map(lambda new, old: jnp.where(over, new, old), first, after.state)
    carry = state, jnp.where(over, 0, age + 1), jnp.where(over, 0.0, paid), jnp.where(over, paid, last)
    return carry, (seen, action, chances[action], after.reward, over)


def advantages(rewards, over, values, gae_lambda):
    def back(later, now):
        reward, ends, value, following = now
        later = reward + DISCOUNT * (1 - ends) * (following + gae_lambda * later) - value
        return later, later

    return jax.lax.scan(back, jnp.zeros(ENVS), (rewards, over, values[:-1], values[1:]), reverse=True)[1]


def loss(params, minibatch, chosen):
    seen, action, before, gain, target = minibatch
    chances, entropy = policy(params, seen)
    log_ratio, clip = chances[jnp.arange(MINIBATCH), action] - before, chosen["clip_range"]
    ratio, gain = jnp.exp(log_ratio), (gain - gain.mean()) / (gain.std() + 1e-8)
    found = -jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - clip, 1 + clip) * gain).mean()
    found += 0.5 * ((critic(params, seen) - target) ** 2).mean() - chosen["entropy_weight"] * entropy
    return found, jnp.stack([(ratio - 1 - log_ratio).mean(), (abs(ratio - 1) > clip).mean()])


def update(carry, key):
    params, moments, state, envs, last_update = carry
    keys = jax.random.split(key, (STEPS, ENVS))
    envs, batch = jax.lax.scan(lambda now, each: jax.vmap(act, (None, 0, 0))(params, now, each), envs, keys)
    seen, action, before, rewards, over = batch
    values = critic(params, jnp.concatenate([seen, jnp.stack(env.observe(TASK, envs[0]), -1)[None]]))

    # The model sees the batch and what the last update did, and sets everything for this one.
    report = {"returns": jnp.where(envs[3] > 0, envs[3], envs[2]), "entropy": policy(params, seen)[1]}
    report |= {"values": values[:-1], "targets": values[:-1] + advantages(rewards, over, values, USUAL["gae_lambda"])}
    found, state = learned.propose(state, report | last_update, params)
    # Traced, also those that are constant: on two cores, XLA hung in a loop of constant length.
    chosen = {name: value + 0 * found["stepsize"] for name, value in (USUAL | found).items()}

    gain = advantages(rewards, over, values, chosen["gae_lambda"])
    rows = [each.reshape(ENVS * STEPS, *each.shape[2:]) for each in (seen, action, before, gain, gain + values[:-1])]
    rates = chosen["stepsize"] * jnp.where(IS_CRITIC, chosen["critic_rate"], 1.0)
    number = jnp.int32(chosen["gradient_steps"])

    def descend(step, carry):
        params, moments, sums = carry
        order = jax.random.permutation(jax.random.fold_in(key, step // EPOCH), ENVS * STEPS)
        own = jax.lax.dynamic_slice(order, (step % EPOCH * MINIBATCH,), (MINIBATCH,))
        slope, stats = jax.grad(loss, has_aux=True)(params, [each[own] for each in rows], chosen)
        moved, moments = optimizer.update(slope, moments)
        norms = jnp.stack([jnp.linalg.norm(slope), jnp.linalg.norm(jnp.where(IS_CRITIC, 0.0, slope))])
        is_last = step >= (number - 1) // EPOCH * EPOCH  # of the last epoch
        return (
            params - rates * moved,
            moments,
            sums + jnp.concatenate([is_last * stats, stats[1:], norms, is_last[None]]),
        )

    params, moments, sums = jax.lax.fori_loop(0, number, descend, (params, moments, jnp.zeros(6)))
    means = jnp.concatenate([sums[:2] / sums[5], sums[2:5] / number])
    last_update = dict(zip(MEASURED, means, strict=True)) | {"gradient_steps": number}
    return (params, moments, state, envs, last_update), (report["returns"].mean(), chosen)


def train(key):
    params = SCALES * jax.random.normal(key, SCALES.shape)
    states = env.reset(TASK, jax.random.normal(jax.random.fold_in(key, 1), (4, ENVS)))
    envs = states, jnp.zeros(ENVS, int), jnp.zeros(ENVS), jnp.zeros(ENVS)
    nothing = dict.fromkeys(MEASURED, jnp.zeros(())) | {"gradient_steps": jnp.int32(0)}
    first = params, optimizer.init(params), learned.init(params), envs, nothing
    return jax.lax.scan(update, first, jax.random.split(key, UPDATES))[1]


returns, chosen = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), SEEDS))
for place in range(0, UPDATES, max(1, UPDATES // 10)):
    logged = ", ".join(f"{name} {value[:, place].mean():.3g}" for name, value in chosen.items())
    print(f"update {place + 1}: mean return {returns[:, place].mean():.0f}, {logged}")
