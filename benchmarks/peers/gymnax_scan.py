"""gymnax's CartPole in a jitted scan, vmapped over episodes and learners, computing the same estimate in JAX.

Two variants. `step` is what gymnax's documentation shows: `env.step`, which splits a key, draws a reset and selects it where
an episode has ended, in every step. `step_env` leaves the resets out, as one episode each is wanted. For Nav2D gymnax's
PointRobot moves the same way (clipped to ±0.1, added to the position): the goal is written into its state, its own goal
radius is set to zero so that it never restarts, and the reward and the end are computed from the position it moved to.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

# The CPU, unless asked otherwise: the table compares on the machine that runs the other peers.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from common import (
    DAMPING,
    DISCOUNT,
    SIGMA,
    SIZES,
    Estimates,
    Job,
    from_arguments,
    learners,
    measure,
    print_record,
    rollout_record,
)  # fmt: skip

GOAL_RADIUS = 0.01
Transition = Callable[[Array, Any, Array, Array], tuple[Any, Array, Array]]


def cartpole(variant: str) -> tuple[Callable[[Array, Array], Any], Callable[[Any], Array], Transition]:
    """CartPole as functions reset(key, context), observe(state) and step(key, state, action, context)."""
    env, defaults = gymnax.make("CartPole-v1")
    move = env.step if variant == "step" else env.step_env

    def params(context: Array) -> Any:
        mass, length = context[0], context[1]
        # The derived fields are stored, not computed: they have to follow the context by hand.
        return defaults.replace(
            masspole=mass, length=length, total_mass=defaults.masscart + mass, polemass_length=mass * length
        )

    def reset(key: Array, context: Array) -> Any:
        return env.reset_env(key, params(context))[1]

    def step(key: Array, state: Any, action: Array, context: Array) -> tuple[Any, Array, Array]:
        _, after, reward, terminated, *_ = move(key, state, jnp.where(action[0] > 0.5, 1, 0), params(context))
        return after, reward, terminated

    return reset, env.get_obs, step


def nav2d(variant: str) -> tuple[Callable[[Array, Array], Any], Callable[[Any], Array], Transition]:
    """PointRobot as Nav2D."""
    env, defaults = gymnax.make("PointRobot-misc")
    params = defaults.replace(center_init=True, dense_reward=True, goal_radius=0.0)
    move = env.step if variant == "step" else env.step_env

    def reset(key: Array, context: Array) -> Any:
        return env.reset_env(key, params)[1].replace(goal=context)

    def step(key: Array, state: Any, action: Array, context: Array) -> tuple[Any, Array, Array]:
        after = move(key, state, action, params)[1]
        distance = jnp.linalg.norm(context - after.pos)
        return after, -distance, distance <= GOAL_RADIUS

    return reset, lambda state: state.pos, step


def episode(job: Job, functions: Any, theta: Array, context: Array, key: Array) -> tuple[Array, Array, Array, Array]:
    """One episode: cumulated scores (horizon, parameters), discounted rewards, features and whether each step was live."""
    size = SIZES[job.env]
    reset, observe, step = functions
    bias, weights = theta[: size.num_actions], theta[size.num_actions :].reshape(size.num_actions, -1)
    key_reset, key_noise, key_steps = jax.random.split(key, 3)
    noise = jax.random.normal(key_noise, (job.horizon, size.num_actions))
    # CartPole's own dynamics are deterministic: only the resets of `step` want keys. PointRobot draws in every step.
    wants_keys = job.variant == "step" or job.env == "nav2d"
    keys = jax.random.split(key_steps, job.horizon) if wants_keys else None

    def body(carry: Any, inputs: Any) -> tuple[Any, tuple[Array, ...]]:
        state, alive, total, discount = carry
        normal, key_step = inputs
        seen = observe(state)
        action = bias + weights @ seen + SIGMA * normal
        after, reward, terminated = step(key_step, state, action, context)
        score = alive * normal / SIGMA
        total = total + jnp.concatenate([score, (score[:, None] * seen).ravel()])
        carry = (after, alive * (1.0 - terminated), total, discount * DISCOUNT)
        return carry, (total, alive * discount * reward, jnp.concatenate([jnp.ones(1), seen]), alive)

    start = (reset(key_reset, context), jnp.float32(1.0), jnp.zeros(size.num_parameters), jnp.float32(1.0))
    _, (sums, rewards, features, alive) = jax.lax.scan(body, start, (noise, keys))
    return sums, rewards, features, alive


def learner(job: Job, functions: Any, theta: Array, context: Array, key: Array) -> tuple[Array, Array, Array, Array]:
    """One learner's return, gradient, natural gradient and live steps."""
    num_actions = SIZES[job.env].num_actions
    keys = jax.random.split(key, job.episodes)
    sums, rewards, features, alive = jax.vmap(partial(episode, job, functions, theta, context))(keys)
    squares = sums**2
    below = squares.sum(0)
    above = (squares * rewards[..., None]).sum(0)
    baseline = jnp.where(below > 0.0, above / jnp.where(below > 0.0, below, 1.0), 0.0)
    gradient = (sums * (rewards[..., None] - baseline)).sum(1).mean(0)
    live = alive.sum()
    fisher = jnp.einsum("eti,etj,et->ij", features, features, alive) / (live * SIGMA**2)
    damped = fisher + DAMPING * jnp.trace(fisher) / fisher.shape[0] * jnp.eye(fisher.shape[0])
    rows = jnp.concatenate([gradient[:num_actions, None], gradient[num_actions:].reshape(num_actions, -1)], axis=1)
    solved = jnp.linalg.solve(damped, rows.T).T
    natural = jnp.concatenate([solved[:, 0], solved[:, 1:].ravel()])
    return rewards.sum(1).mean(), gradient, natural, live


def main() -> None:
    job, _ = from_arguments(Job)
    functions = (cartpole if job.env == "cartpole" else nav2d)(job.variant)
    theta, context = (jnp.asarray(array, jnp.float32) for array in learners(job.env, job.learners))

    @jax.jit
    def run(key: Array) -> tuple[Array, Array, Array, Array]:
        return jax.vmap(partial(learner, job, functions))(theta, context, jax.random.split(key, job.learners))

    calls = 0

    def work() -> tuple[int, int]:
        nonlocal calls
        calls += 1
        live = jax.block_until_ready(run(jax.random.key(calls)))[3]
        return job.learners, int(np.asarray(live).sum())

    rates = measure(job, work)
    mean_return, gradient, natural, live = (np.asarray(part, np.float64) for part in run(jax.random.key(0)))
    note = "" if job.env == "cartpole" else "PointRobot with the goal, reward and end of Nav2D"
    estimates = Estimates(mean_return, gradient, natural, int(live.sum()))
    print_record(rollout_record(version("gymnax"), rates, estimates, note))


if __name__ == "__main__":
    main()
