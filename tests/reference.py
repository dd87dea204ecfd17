"""Plain float64 NumPy estimates from whole trajectories, and closed forms, that share no code with the package; their cases."""

from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from metastep import envs
from metastep.envs import LQR
from metastep.policies import LinearGaussian, MLPGaussian
from metastep.simulation.rollouts import Baseline, Rollout, Trajectories

Floats = NDArray[np.float64]


class Case(NamedTuple):
    """A policy on an environment, small enough for a loop and long enough for episodes to end."""

    sigma: float
    num_episodes: int
    horizon: int
    spread: float  # of theta


CASES = {
    "nav2d": Case(1.001, 40, 10, 0.3),
    "minigolf": Case(0.1, 60, 20, 0.5),
    "cartpole": Case(1.001, 30, 60, 0.1),
    "swingup": Case(1.001, 30, 60, 0.3),
    "lqr": Case(0.5, 40, 15, 0.3),
}


def make_rollout(name: str, baseline: Baseline = "optimal", hidden: tuple[int, ...] = (), **changes: Any) -> Rollout:
    """The rollout of a case, with a linear policy or, given layer sizes, a network."""
    env, case = envs.make(name), CASES[name]
    sizes = env.num_observations, env.num_actions, case.sigma
    policy = MLPGaussian(*sizes, hidden) if hidden else LinearGaussian(*sizes)
    fields = {"num_episodes": case.num_episodes, "horizon": case.horizon, "baseline": baseline} | changes
    return Rollout(env, policy, **fields)


def draw_learners(rollout: Rollout, num: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Random policies (num, parameters), tasks (num, coordinates), and a key."""
    keys = jax.random.split(jax.random.key(seed), 3)
    spread = jnp.float32(CASES[rollout.env.name].spread)
    theta = spread * jax.random.normal(keys[0], (num, rollout.policy.num_parameters), jnp.float32)
    if rollout.env.name == "minigolf":  # strokes that grow with the distance, so that all three outcomes occur
        theta = jnp.abs(theta) + jnp.asarray([2.0, 0.0], jnp.float32)
    return theta, rollout.env.context_space.sample(keys[1], num), keys[2]


def network_mean(policy: Any, theta: Floats, observation: Floats) -> Floats:
    """Mean actions (steps, actions) of one learner's policy on (steps, observations), independently."""
    if policy.is_linear:
        bias = theta[: policy.num_actions]
        weights = theta[policy.num_actions :].reshape(policy.num_actions, policy.num_observations)
        return bias + observation @ weights.T
    sizes, values, start = (policy.num_observations, *policy.hidden, policy.num_actions), observation, 0
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights = theta[start : start + inputs * outputs].reshape(outputs, inputs)
        bias = theta[start + inputs * outputs : start + (inputs + 1) * outputs]
        start += (inputs + 1) * outputs
        values = values @ weights.T + bias
        if layer + 2 < len(sizes):
            values = np.tanh(values)
    assert start == theta.size
    return values


def linear_scores(rollout: Rollout, episodes: Trajectories) -> Floats:
    """d log pi / d theta of every step for theta = (b, W): (horizon, parameters, episodes, learners)."""
    noise, observation = (np.asarray(array, np.float64) for array in (episodes.noise, episodes.observation))
    biases = noise / rollout.policy.sigma
    weights = biases[:, :, None] * observation[:, None]
    return np.concatenate([biases, weights.reshape(len(noise), -1, *noise.shape[2:])], axis=1)


class Reference(NamedTuple):
    """Learners first."""

    mean_return: Floats
    return_error: Floats
    gradient: Floats
    fisher: Floats  # (learners, parameters, parameters), of the linear policy
    num_steps: Floats


def estimate(rollout: Rollout, episodes: Trajectories) -> Reference:
    """GPOMDP and the Fisher matrix `mean over steps of J^T J / sigma^2`, learner by learner and step by step."""
    scores = linear_scores(rollout, episodes)
    reward, alive = np.asarray(episodes.reward, np.float64), np.asarray(episodes.alive)
    observation = np.asarray(episodes.observation, np.float64)
    horizon, num_parameters, num_episodes, num_learners = scores.shape
    rows = []
    for learner in range(num_learners):
        running = np.zeros((num_parameters, num_episodes))
        gradient, returns = np.zeros(num_parameters), np.zeros(num_episodes)
        block = np.zeros((1 + observation.shape[1],) * 2)
        for t in range(horizon):
            for episode in np.flatnonzero(alive[t, :, learner]):
                running[:, episode] += scores[t, :, episode, learner]
                features = np.concatenate([[1.0], observation[t, :, episode, learner]])
                block += np.outer(features, features)
            payoff = rollout.discount**t * reward[t, :, learner]
            returns += payoff
            if rollout.baseline == "none":
                level = np.zeros(num_parameters)
            elif rollout.baseline == "mean":
                level = np.full(num_parameters, payoff.mean())
            else:
                square = (running**2).mean(axis=1)
                level = (running**2 * payoff).mean(axis=1) / np.where(square > 0, square, 1.0)
            gradient += (running * (payoff - level[:, None])).mean(axis=1)
        num_steps = alive[..., learner].sum()
        # theta = (b, W): the same block for every action, its entries spread over the biases and the rows of W.
        num_actions, size = rollout.policy.num_actions, observation.shape[1]
        fisher = np.zeros((num_actions * (1 + size),) * 2)
        for action in range(num_actions):
            places = [action, *(num_actions + action * size + index for index in range(size))]
            fisher[np.ix_(places, places)] = block / (num_steps * rollout.policy.sigma**2)
        rows.append((returns.mean(), returns.std(ddof=1) / np.sqrt(num_episodes), gradient, fisher, num_steps))
    return Reference(*(np.asarray(column, np.float64) for column in zip(*rows, strict=True)))


def relative_error(actual: Any, expected: Any) -> Floats:
    """Distance over length, of each row."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(actual - expected, axis=-1) / np.linalg.norm(expected, axis=-1)


class Exact(NamedTuple):
    """What an infinite batch on LQR would estimate."""

    mean_return: float
    gradient: Floats  # (3,)
    natural_gradient: Floats  # (3,), without damping


def exact(env: LQR, theta: ArrayLike, scale: float, *, sigma: float, horizon: int, discount: float) -> Exact:
    """Closed-form return, gradient and natural gradient of the policy theta = (b, w_1, w_2) in the task `scale`.

    Forward: phi = (1, s) has second moment `M_t = E[phi phi^T]`, and the closed loop is linear in it. Backward: the value is
    quadratic, `V_t(s) = phi^T P_t phi`. As Q_t is quadratic in the action, the policy gradient theorem gives
    `grad = sum_t gamma^t E[phi dQ_t/da]` with the derivative taken at the policy's mean, which is linear in phi.
    The Fisher matrix is the mean of `M_t` over the steps, divided by sigma^2.
    """
    gain = np.asarray(theta, np.float64)  # mean action = gain . phi
    drift = np.zeros((3, 3))
    drift[0, 0] = 1.0
    drift[1:, 1:] = scale * np.asarray(env.dynamics)
    push = np.concatenate([[0.0], env.control])
    spread = np.diag([0.0, env.noise**2, env.noise**2])
    state_cost = np.diag([0.0, *env.state_cost])
    closed = drift + np.outer(push, gain)

    start = np.concatenate([[1.0], env.start])
    moment = np.outer(start, start) + np.diag([0.0, env.start_scale**2, env.start_scale**2])
    moments = [moment]
    for _ in range(horizon - 1):
        moment = closed @ moment @ closed.T + spread + sigma**2 * np.outer(push, push)
        moments.append(moment)

    cost = state_cost + env.action_cost * np.outer(gain, gain)
    mean_return = sum(
        -(discount**t) * (np.sum(cost * moment) + env.action_cost * sigma**2) for t, moment in enumerate(moments)
    )
    value = np.zeros((3, 3))
    gradient = np.zeros(3)
    for t in reversed(range(horizon)):
        slope = -2.0 * env.action_cost * gain + 2.0 * discount * push @ value @ closed  # dQ_t/da = slope . phi
        gradient += discount**t * moments[t] @ slope
        constant = -env.action_cost * sigma**2 + discount * np.sum(value * (spread + sigma**2 * np.outer(push, push)))
        value = -cost + discount * closed.T @ value @ closed
        value[0, 0] += constant
    return Exact(float(mean_return), gradient, np.linalg.solve(np.mean(moments, axis=0) / sigma**2, gradient))
