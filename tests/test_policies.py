"""Means of Gaussian policies, first weights and draws of an actor and a critic; scores are checked in `tests/testing`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.policies import ActorCritic, LinearGaussian, MLPGaussian
from tests.reference import network_mean

SHAPE = 7, 3  # episodes, learners
KEYS = jax.random.split(jax.random.key(11), 2)


@pytest.mark.parametrize(
    "policy",
    [
        LinearGaussian(4, 1, 1.001),
        LinearGaussian(17, 6, 1.001),
        MLPGaussian(4, 1, 1.0, (8,)),
        MLPGaussian(3, 2, 0.4, (5, 3)),
    ],
    ids=repr,
)
def test_the_mean_is_that_of_a_plain_loop(policy):
    """From the layout of theta that the classes document."""
    theta = 0.7 * jax.random.normal(KEYS[0], (policy.num_parameters, SHAPE[1]), jnp.float32)
    seen = jax.random.normal(KEYS[1], (policy.num_observations, *SHAPE), jnp.float32)
    means = np.stack(jax.jit(policy.mean)(theta, tuple(seen)))
    for learner in range(SHAPE[1]):
        own, observed = (np.asarray(array[..., learner], np.float64) for array in (theta, seen))
        np.testing.assert_allclose(means[..., learner].T, network_mean(policy, own, observed.T), atol=3e-6)


def test_first_weights_are_orthogonal_with_the_usual_gains():
    policy = ActorCritic(3, 2, hidden=(5, 4), log_std=-0.5)
    parts = policy.split(policy.initial(KEYS[0], 2))
    for network, last in (("actor", 0.01), ("critic", 1.0)):
        for index, gain in enumerate((np.sqrt(2.0), np.sqrt(2.0), last)):
            weight = np.asarray(parts[f"{network}.{index}.weight"][1])
            small = weight.T @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.T
            np.testing.assert_allclose(small, gain**2 * np.eye(len(small)), atol=1e-5)
            assert not np.any(parts[f"{network}.{index}.bias"])
    np.testing.assert_allclose(parts["log_std"], -0.5)
    assert np.any(parts["actor.0.weight"][0] != parts["actor.0.weight"][1])


def test_choices_are_drawn_as_often_as_they_should_be():
    policy, shares = ActorCritic(1, 1, num_choices=3, hidden=(2,)), np.asarray([0.2, 0.5, 0.3])
    parts = policy.split(policy.initial(KEYS[0], 1)[0]) | {"actor.1.bias": jnp.log(jnp.asarray(shares))}
    distribution = policy.act(parts, jnp.zeros((20_000, 1)))
    drawn = distribution.sample(jax.random.normal(KEYS[1], (20_000, 1)))
    np.testing.assert_allclose(np.bincount(drawn[:, 0]) / 20_000, shares, atol=0.015)
    np.testing.assert_allclose(distribution.entropy()[0], -np.sum(shares * np.log(shares)), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LinearGaussian(0, 1, 1.0), "policy.num_observations: 0 must be greater than or equal to 1"),
        (lambda: LinearGaussian(1, 1, 0.0), "policy.sigma: 0.0 must be greater than 0"),
        (lambda: MLPGaussian(1, 1, float("nan")), "policy.sigma: nan must be"),
        (lambda: MLPGaussian(1, 1, 1.0, (4, 0)), r"policy.hidden: \[4, 0\] must be greater than"),
        (lambda: ActorCritic(3, 1, hidden=()), r"policy.hidden: \[\] must have at least 1 item"),
    ],
)
def test_a_bad_policy_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
