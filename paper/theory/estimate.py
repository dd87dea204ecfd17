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

from metastep.envs.base import Env
from metastep.policies import Policy
from paper.theory.constants import Floats
from paper.theory.measure import state_structure

Moved = tuple[Floats, Floats, NDArray[np.bool_]]
"""Next states, rewards and endings, for rows or (pairs, draws)."""
StepFunction = Callable[[Floats, Floats, Floats, Floats], Moved]
"""An environment as a function of contexts, states, actions and noise, (rows, .) each."""

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
    # Share of the pairs that end the episode on one side only: there is no finite constant across an ending.
    ending_share: float


def estimate_constants(
    step: StepFunction, samples: Samples, num_pairs: int, num_noise: int, num_draws: int = 32, seed: int = 0
) -> EstimatedConstants:
    """Return the largest ratios over pairs of state-action pairs, and over as many pairs of contexts, with common noise.

    Args:
        step: the environment, vectorised over rows.
        samples: the domain, with two or more contexts and points.
        num_pairs: pairs for each of the two searches.
        num_noise: standard normals a step takes; where it is 0 one draw is enough.
        num_draws: noise vectors over which laws and mean rewards are compared.
        seed: of the pairs and the noise.
    """
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(num_draws if num_noise else 1, num_noise))
    scale = np.exp(rng.uniform(np.log(_NEAREST), 0.0, size=(num_pairs, 1)))
    which = rng.integers(3, size=(num_pairs, 1))  # 0: state and action, 1: state, 2: action

    context = samples.contexts[rng.integers(len(samples.contexts), size=num_pairs)]
    here, there = rng.integers(len(samples.states), size=(2, num_pairs))
    state, action = samples.states[here], samples.actions[here]
    other_state = np.where(which == 2, state, state + scale * (samples.states[there] - state))
    other_action = np.where(which == 1, action, action + scale * (samples.actions[there] - action))
    other_context = samples.contexts[rng.integers(len(samples.contexts), size=num_pairs)]
    other_context = context + scale * (other_context - context)

    def moved(contexts: Floats, states: Floats, actions: Floats) -> Moved:
        """Take every pair under every draw: (pairs, draws, states), (pairs, draws), (pairs, draws)."""
        rows = [np.repeat(array, len(noise), axis=0) for array in (contexts, states, actions)]
        after, reward, ended = step(rows[0], rows[1], rows[2], np.tile(noise, (num_pairs, 1)))
        shape = (num_pairs, len(noise))
        return after.reshape(*shape, -1), reward.reshape(shape), ended.reshape(shape)

    near = moved(context, state, action)
    in_state, in_context = moved(context, other_state, other_action), moved(other_context, state, action)
    gap = np.linalg.norm(other_state - state, axis=1) + np.linalg.norm(other_action - action, axis=1)
    L_P, L_r, split = _ratios(near, in_state, gap)
    L_omega_P, L_omega_r, also_split = _ratios(near, in_context, np.linalg.norm(other_context - context, axis=1))
    R_max = float(max(np.max(np.abs(reward)) for _, reward, _ in (near, in_state, in_context)))
    return EstimatedConstants(L_P, L_r, L_omega_P, L_omega_r, R_max, (split + also_split) / 2.0)


def _ratios(left: Moved, right: Moved, gap: Floats) -> tuple[float, float, float]:
    """Return the largest ratio of laws, of mean rewards, and the share of pairs with different endings (not among the laws)."""
    (states, rewards, endings), (other_states, other_rewards, other_endings) = left, right
    apart, safe = gap > 1e-9, np.maximum(gap, 1e-9)
    split = np.any(endings != other_endings, axis=1)
    law = np.where(apart & ~split, law_distances(states, other_states) / safe, 0.0)
    reward = np.where(apart, np.abs(rewards.mean(axis=1) - other_rewards.mean(axis=1)) / safe, 0.0)
    return float(law.max()), float(reward.max()), float(split.mean())


def law_distances(left: Floats, right: Floats) -> Floats:
    """Return Kantorovich distances of pairs of samples (pairs, draws, coordinates), from below.

    A projection on a unit vector is 1-Lipschitz, so the distance of projections (on the line that of the sorted numbers) is a
    lower bound. Of the coordinate axes and the direction between the means the best is taken: (pairs,). It is exact on the
    line, and where noise is added to the state.
    """
    shift = np.mean(right - left, axis=1)
    length = np.linalg.norm(shift, axis=-1, keepdims=True)
    along = shift / np.where(length > 0.0, length, 1.0)
    projected = [np.einsum("pdc,pc->pd", sample, along) for sample in (left, right)]
    lower = np.mean(np.abs(np.sort(projected[1], axis=1) - np.sort(projected[0], axis=1)), axis=1)
    by_axis = np.mean(np.abs(np.sort(right, axis=1) - np.sort(left, axis=1)), axis=1)
    return np.maximum(lower, np.max(by_axis, axis=-1))


def step_function(env: Env, *, in_box_widths: bool = False) -> StepFunction:
    """Return a registered environment as a function of rows; a state is the row of its fields.

    With `in_box_widths` its contexts are in [0, 1]: distances count widths of the context box, whatever the units are.
    """
    space, structure = env.context_space, state_structure(env)
    low, width = (np.asarray(space.low), np.subtract(space.high, space.low)) if in_box_widths else (0.0, 1.0)

    def one(context: Array, state: Array, action: Array, noise: Array) -> tuple[Array, Array, Array]:
        after = env.step(space.unpack(context), jax.tree.unflatten(structure, list(state)), tuple(action), tuple(noise))
        return jnp.stack(jax.tree.leaves(after.state)), after.reward, after.terminated

    batched = jax.jit(jax.vmap(one))

    def step(contexts: Floats, states: Floats, actions: Floats, noise: Floats) -> Moved:
        rows = (jnp.asarray(array, jnp.float32) for array in (low + width * contexts, states, actions, noise))
        after, reward, ended = batched(*rows)
        return np.asarray(after, np.float64), np.asarray(reward, np.float64), np.asarray(ended)

    return step


def visited_samples(env: Env, policy: Policy, theta: Floats, contexts: Floats, horizon: int, seed: int) -> Samples:
    """Return the states and actions of one episode in each context, while it lasts."""
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

        return lax.scan(advance, (env.reset(named, tuple(reset_noise)), jnp.bool_(True)), noise)[1]

    states, actions, alive = jax.jit(jax.vmap(episode))(
        jnp.asarray(contexts, jnp.float32),
        jax.random.normal(key_reset, (num, env.reset_noise)),
        jax.random.normal(key_step, (num, horizon, policy.num_actions + env.step_noise)),
    )
    taken = np.asarray(alive)
    return Samples(np.asarray(contexts), np.asarray(states, np.float64)[taken], np.asarray(actions, np.float64)[taken])
