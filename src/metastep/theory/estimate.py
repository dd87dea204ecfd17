"""Constants estimated from below: the largest ratio that sampled pairs show.

A Lipschitz constant is a supremum, so pairs can only witness that it is at least something. Whatever is computed here is
labelled as an estimate, never used as a bound, and grows towards the constant with the number of pairs. Pairs are taken at all
distances, from neighbours to strangers, on the segment between two sampled points (so they stay in any convex domain), and
moving the state alone, the action alone or both.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from metastep.contexts import ContextSpace
from metastep.envs.base import Env
from metastep.errors import InputError
from metastep.policies import Policy
from metastep.theory.wasserstein import paired_bounds

Floats = NDArray[np.float64]

# step(contexts (rows, coordinates), states (rows, .), actions (rows, .), noise (rows, .)) -> next states, rewards, endings
StepFunction = Callable[[Floats, Floats, Floats, Floats], tuple[Floats, Floats, NDArray[np.bool_]]]

# Closer neighbours than this share of the distance of two sampled points would measure rounding.
_NEAREST = 0.01


class Samples(NamedTuple):
    """Where pairs are taken from: contexts of interest, and states and actions that occur."""

    contexts: Floats  # (contexts, coordinates)
    states: Floats  # (points, states)
    actions: Floats  # (points, actions)


class EstimatedConstants(NamedTuple):
    """Largest ratios seen; each true constant is at least this, up to the noise of the means over draws."""

    L_P: float
    L_r: float
    L_omega_P: float
    L_omega_r: float
    R_max: float
    num_pairs: int
    num_draws: int
    ending_share: (
        float  # of the pairs that end the episode on one side only: there is no finite constant across an ending
    )


def estimate_constants(
    step: StepFunction, samples: Samples, num_pairs: int, num_noise: int, num_draws: int = 32, seed: int = 0
) -> EstimatedConstants:
    """Ratios over `num_pairs` pairs of state-action pairs, and as many pairs of contexts, with common noise.

    Args:
        step: the environment, vectorised over rows.
        samples: the domain.
        num_pairs: pairs for each of the two searches.
        num_noise: standard normals a step takes; where it is 0 one draw is enough.
        num_draws: noise vectors over which laws and mean rewards are compared.
        seed: of the pairs and the noise.
    """
    if num_pairs < 1 or num_draws < 1:
        raise InputError(f"num_pairs: {num_pairs} and num_draws: {num_draws} must both be at least 1.")
    if min(len(samples.contexts), len(samples.states)) < 2 or len(samples.states) != len(samples.actions):
        raise InputError(
            f"samples: {len(samples.contexts)} contexts, {len(samples.states)} states and {len(samples.actions)} actions; "
            "needed are two or more contexts and states, and one action a state."
        )
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(num_draws if num_noise else 1, num_noise))
    scale = np.exp(rng.uniform(np.log(_NEAREST), 0.0, size=(num_pairs, 1)))
    which = rng.integers(3, size=(num_pairs, 1))  # 0: state and action, 1: state, 2: action

    context = samples.contexts[rng.integers(len(samples.contexts), size=num_pairs)]
    here, there = rng.integers(len(samples.states), size=(2, num_pairs))
    state, action = samples.states[here], samples.actions[here]
    other_state = np.where(which == 2, state, state + scale * (samples.states[there] - state))
    other_action = np.where(which == 1, action, action + scale * (samples.actions[there] - action))
    gap = np.linalg.norm(other_state - state, axis=1) + np.linalg.norm(other_action - action, axis=1)
    near = _Outcome(*_simulate(step, context, state, action, noise))
    moved = _Outcome(*_simulate(step, context, other_state, other_action, noise))
    law, reward, split = _ratios(near, moved, gap)

    other_context = samples.contexts[rng.integers(len(samples.contexts), size=num_pairs)]
    other_context = context + scale * (other_context - context)
    shifted = _Outcome(*_simulate(step, other_context, state, action, noise))
    in_context = _ratios(near, shifted, np.linalg.norm(other_context - context, axis=1))
    return EstimatedConstants(
        L_P=law,
        L_r=reward,
        L_omega_P=in_context[0],
        L_omega_r=in_context[1],
        R_max=float(max(np.max(np.abs(outcome.reward)) for outcome in (near, moved, shifted))),
        num_pairs=num_pairs,
        num_draws=len(noise),
        ending_share=(split + in_context[2]) / 2.0,
    )


class _Outcome(NamedTuple):
    state: Floats  # (pairs, draws, states)
    reward: Floats  # (pairs, draws)
    ended: NDArray[np.bool_]  # (pairs, draws)


def _simulate(
    step: StepFunction, context: Floats, state: Floats, action: Floats, noise: Floats
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Every pair under every draw."""
    pairs, draws = len(state), len(noise)
    contexts, states, actions = (np.repeat(array, draws, axis=0) for array in (context, state, action))
    after, reward, ended = step(contexts, states, actions, np.tile(noise, (pairs, 1)))
    return (
        np.asarray(after, np.float64).reshape(pairs, draws, -1),
        np.asarray(reward, np.float64).reshape(pairs, draws),
        np.asarray(ended, bool).reshape(pairs, draws),
    )


def _ratios(left: _Outcome, right: _Outcome, gap: Floats) -> tuple[float, float, float]:
    """Largest ratio of laws, of mean rewards, and the share of pairs with different endings (left out of the laws)."""
    apart = gap > 1e-9
    split = np.any(left.ended != right.ended, axis=1)
    distance, _ = paired_bounds(left.state, right.state)
    reward = np.abs(left.reward.mean(axis=1) - right.reward.mean(axis=1))
    safe = np.where(apart, gap, 1.0)
    law = np.where(apart & ~split, distance / safe, 0.0)
    return float(law.max()), float(np.where(apart, reward / safe, 0.0).max()), float(split.mean())


def step_function(env: Env) -> StepFunction:
    """A registered environment as a function of rows; a state is the row of its fields."""
    space = env.context_space
    middle = np.asarray([(low + high) / 2 for low, high in zip(space.low, space.high, strict=True)], np.float32)
    example = env.reset(space.unpack(jnp.asarray(middle)), tuple(jnp.zeros(env.reset_noise, jnp.float32)))
    structure = jax.tree.structure(example)

    def one(context: Array, state: Array, action: Array, noise: Array) -> tuple[Array, Array, Array]:
        after = env.step(space.unpack(context), jax.tree.unflatten(structure, list(state)), tuple(action), tuple(noise))
        return jnp.stack(jax.tree.leaves(after.state)), after.reward, after.terminated

    batched = jax.jit(jax.vmap(one))

    def step(
        contexts: Floats, states: Floats, actions: Floats, noise: Floats
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        rows = (jnp.asarray(array, jnp.float32) for array in (contexts, states, actions, noise))
        after, reward, ended = batched(*rows)
        return np.asarray(after, np.float64), np.asarray(reward, np.float64), np.asarray(ended)

    return step


def in_box_widths(step: StepFunction, space: ContextSpace) -> StepFunction:
    """The same environment with contexts in [0, 1]: distances count widths of the box, whatever the units are."""
    low, width = np.asarray(space.low), np.subtract(space.high, space.low)

    def scaled(
        contexts: Floats, states: Floats, actions: Floats, noise: Floats
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        return step(low + width * contexts, states, actions, noise)

    return scaled


def visited_samples(env: Env, policy: Policy, theta: Floats, contexts: Floats, horizon: int, seed: int) -> Samples:
    """States and actions that one episode in each context meets while it lasts."""
    space, num = env.context_space, len(contexts)
    key_reset, key_step = jax.random.split(jax.random.key(seed))
    column = jnp.asarray(theta, jnp.float32)[:, None]

    def episode(context: Array, reset_noise: Array, noise: Array) -> tuple[Array, Array, Array]:
        named = space.unpack(context)

        def advance(carry: tuple[Any, Array], normals: Array) -> tuple[tuple[Any, Array], tuple[Array, Array, Array]]:
            state, alive = carry
            observation = tuple(jnp.reshape(value, (1, 1)) for value in env.observe(named, state))
            means = policy.mean(column, observation)
            action = tuple(mean[0, 0] + policy.sigma * normals[i] for i, mean in enumerate(means))
            after = env.step(named, state, action, tuple(normals[policy.num_actions :]))
            seen = jnp.stack(jax.tree.leaves(state)), jnp.stack(action), alive
            return (after.state, alive & ~after.terminated), seen

        start = env.reset(
            named, tuple(reset_noise[: env.reset_noise])
        )  # vmap had to see one normal, the environment not
        _, seen = lax.scan(advance, (start, jnp.bool_(True)), noise)
        return seen

    states, actions, alive = jax.jit(jax.vmap(episode))(
        jnp.asarray(contexts, jnp.float32),
        jax.random.normal(key_reset, (num, max(env.reset_noise, 1))),
        jax.random.normal(key_step, (num, horizon, policy.num_actions + env.step_noise)),
    )
    taken = np.asarray(alive)
    return Samples(np.asarray(contexts), np.asarray(states, np.float64)[taken], np.asarray(actions, np.float64)[taken])
