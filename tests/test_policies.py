from collections.abc import Callable
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from metastep._core.errors import InputError
from metastep.policies import LinearGaussian, MLPGaussian, Policy

NUM_EPISODES, NUM_LEARNERS = 7, 3

POLICIES = [
    LinearGaussian(1, 1, 0.1),
    LinearGaussian(4, 1, 1.001),
    LinearGaussian(2, 2, 0.5),
    LinearGaussian(17, 6, 1.001),  # so many parameters that the score comes in larger pieces
    MLPGaussian(4, 1, 1.001, (8,)),
    MLPGaussian(2, 2, 0.7, (5, 3)),
    MLPGaussian(3, 2, 0.4, (1, 4, 2)),
]


def draw(policy: Policy) -> tuple[Array, tuple[Array, ...], tuple[Array, ...]]:
    keys = jax.random.split(jax.random.key(11), 3)
    theta = 0.7 * jax.random.normal(keys[0], (policy.num_parameters, NUM_LEARNERS), jnp.float32)
    shape = (NUM_EPISODES, NUM_LEARNERS)
    observation = jax.random.normal(keys[1], (policy.num_observations, *shape), jnp.float32)
    noise = jax.random.normal(keys[2], (policy.num_actions, *shape), jnp.float32)
    return theta, tuple(observation), tuple(noise)


def reference_mean(policy: Policy, theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """The mean action of one learner at one observation, from the layout of theta that the classes document."""
    if isinstance(policy, LinearGaussian):
        bias, weights = theta[: policy.num_actions], theta[policy.num_actions :]
        return bias + weights.reshape(policy.num_actions, policy.num_observations) @ observation
    assert isinstance(policy, MLPGaussian)
    sizes = (policy.num_observations, *policy.hidden, policy.num_actions)
    value, start = observation, 0
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights = theta[start : start + inputs * outputs].reshape(outputs, inputs)
        bias = theta[start + inputs * outputs : start + (inputs + 1) * outputs]
        start += (inputs + 1) * outputs
        value = weights @ value + bias
        if layer + 1 < len(sizes) - 1:
            value = np.tanh(value)
    assert start == theta.size
    return value


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_mean_is_that_of_a_plain_loop(policy: Policy) -> None:
    theta, observation, _ = draw(policy)
    means = np.stack(jax.jit(policy.mean)(theta, observation))
    assert means.shape == (policy.num_actions, NUM_EPISODES, NUM_LEARNERS)
    assert means.dtype == np.float32
    stacked = np.stack(observation).astype(np.float64)
    for episode in range(NUM_EPISODES):
        for learner in range(NUM_LEARNERS):
            expected = reference_mean(policy, np.asarray(theta[:, learner], np.float64), stacked[:, episode, learner])
            np.testing.assert_allclose(means[:, episode, learner], expected, atol=2e-6)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_score_is_the_derivative_of_the_log_density(policy: Policy) -> None:
    theta, observation, noise = draw(policy)
    action = np.stack(jax.jit(policy.mean)(theta, observation)) + policy.sigma * np.stack(noise)

    def log_density(parameters: Array, seen: Array, taken: Array) -> Array:
        mean = jnp.stack(policy.mean(parameters[:, None], tuple(seen[:, None, None])))[:, 0, 0]
        return -0.5 * jnp.sum(((taken - mean) / policy.sigma) ** 2)

    over_learners = jax.vmap(jax.grad(log_density), in_axes=(-1, -1, -1), out_axes=-1)
    over_episodes = jax.jit(jax.vmap(over_learners, in_axes=(None, 1, 1), out_axes=1))
    expected = over_episodes(theta, jnp.stack(observation), jnp.asarray(action))  # (parameters, episodes, learners)

    pieces = [np.asarray(piece) for piece in jax.jit(policy.score)(theta, observation, noise)]
    flat = np.concatenate([piece.reshape(-1, NUM_EPISODES, NUM_LEARNERS) for piece in pieces])
    np.testing.assert_allclose(flat, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LinearGaussian(0, 1, 1.0), "policy.num_observations: 0 must be greater than or equal to 1"),
        (lambda: LinearGaussian(1, 0, 1.0), "policy.num_actions: 0 must be greater than or equal to 1"),
        (lambda: LinearGaussian(1, 1, 0.0), "policy.sigma: 0.0 must be greater than 0"),
        (lambda: LinearGaussian(1, 1, float("nan")), "policy.sigma: nan must be"),
        (lambda: MLPGaussian(1, 1, float("inf")), "policy.sigma: inf must be"),
        (lambda: MLPGaussian(1, 1, 1.0, ()), r"policy.hidden: \[\] must have at least 1 item"),
        (lambda: MLPGaussian(1, 1, 1.0, (4, 0)), r"policy.hidden: \[4, 0\] must be greater than"),
    ],
)
def test_a_bad_policy_is_refused_with_a_sentence(make: Callable[[], Policy], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()
