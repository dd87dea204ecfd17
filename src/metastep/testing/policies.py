"""The contract of policies, with and without a critic."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep.policies import ActorCritic, LinearGaussian, Pieces, Policy, flatten
from metastep.testing.subject import Subject, same

_SHAPE = (5, 3)  # episodes, learners
_TOLERANCE = 1e-3


def check_policy(policy: Policy | ActorCritic, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the policy keeps the contract of `metastep.policies.Policy`.

    Checked: the declared fields; that it is hashable and equal to its copies; number, shapes and dtypes of mean and score in
    the batched layout; that the same input gives the same bits; that an episode depends neither on other episodes nor on other
    learners; that the score is the derivative of log pi; and that a policy with `is_linear` is linear. Of an `ActorCritic`:
    sizes, first parameters, and shapes of values, samples and densities.
    """
    subject = Subject(policy, f"policy {type(policy).__name__}")
    subject.declares(num_observations=1, num_actions=1, num_parameters=1)
    if isinstance(policy, ActorCritic):
        _check_actor_critic(subject, policy, jax.random.key(seed))
        return
    sigma: Any = getattr(policy, "sigma", None)
    positive = isinstance(sigma, (int, float)) and 0.0 < sigma < math.inf
    subject.require(positive, f"`sigma` must be a positive number, got {sigma!r}")
    subject.declares(is_linear=bool)
    subject.has_methods("mean", "score")
    subject.is_hashable()
    keys = jax.random.split(jax.random.key(seed), 4)
    theta = jax.random.normal(keys[0], (policy.num_parameters, _SHAPE[1]), jnp.float32)
    observation = tuple(jax.random.normal(keys[1], (policy.num_observations, *_SHAPE), jnp.float32))
    noise = tuple(jax.random.normal(keys[2], (policy.num_actions, *_SHAPE), jnp.float32))
    for what, field, given in (
        ("mean", "num_actions", (theta, observation)),
        ("score", "num_parameters", (theta, observation, noise)),
    ):
        found = subject.trace(what, getattr(policy, what), *given)
        subject.is_tuple(what, found, "arrays")
        for index, piece in enumerate(found):
            leading = piece.shape[:-2] if what == "score" else ()
            subject.is_array(f"array {index} of `{what}`", piece, (*leading, *_SHAPE))
        num, declared = sum(math.prod(piece.shape[:-2]) for piece in found), getattr(policy, field)
        subject.require(num == declared, f"`{what}` returns {num} numbers, but {field} is {declared}")

    def evaluate(theta: Array, observation: Pieces) -> tuple[Pieces, Pieces]:
        return policy.mean(theta, observation), policy.score(theta, observation, noise)

    # The first learner has another policy; it and the first episode of every learner see something else.
    others = theta.at[:, 0].add(1.0), tuple(each.at[0].add(1.0).at[:, 0].add(1.0) for each in observation)
    mean, pieces = subject.independent(
        ("mean", "score"),
        evaluate,
        (theta, observation),
        others,
        lambda piece: piece[..., 1:, 1:],
        "other learners or episodes",
    )
    # A random combination of the episodes' scores, and of their log densities.
    weight = jax.random.normal(keys[3], _SHAPE, jnp.float32)

    def log_density(theta: Array) -> Array:
        """Of the actions with these means and this noise, up to a constant."""
        apart = zip(mean, noise, policy.mean(theta, observation), strict=True)
        squares = ((z + (m - now) / policy.sigma) ** 2 for m, z, now in apart)
        return sum((-0.5 * jnp.sum(weight * square) for square in squares), jnp.float32(0))

    score = jax.jit(lambda: flatten(tuple(jnp.sum(weight * piece, axis=-2) for piece in pieces)))()
    derivative = np.asarray(jax.jit(jax.grad(log_density))(theta))
    close = np.isclose(score, derivative, _TOLERANCE, _TOLERANCE * np.abs(derivative).max()).all(axis=1)
    wrong = f"`score` is not the derivative of log pi with respect to parameter {close.argmin()} of theta"
    subject.require(close.all(), wrong)
    if policy.is_linear:
        linear = LinearGaussian(policy.num_observations, policy.num_actions, policy.sigma)
        right = linear.num_parameters == policy.num_parameters and np.allclose(
            linear.mean(theta, observation), mean, _TOLERANCE, _TOLERANCE
        )
        subject.require(right, "`is_linear` is True, but the mean is not b + W s with theta = (b, W), W row by row")


def _check_actor_critic(subject: Subject, policy: ActorCritic, key: Array) -> None:
    subject.has_methods("split", "join", "initial", "act", "value")
    subject.is_hashable()
    first = subject.call("initial", policy.initial, key, 2)
    subject.is_array("what `initial` returns", first, (2, policy.num_parameters))
    subject.require(same(policy.join(policy.split(first)), first), "`join` must put together what `split` took apart")
    parts = policy.split(first[0])
    seen = jax.random.normal(key, (5, policy.num_observations), jnp.float32)
    subject.is_array("what `value` returns", subject.call("value", policy.value, parts, seen), (5,))
    distribution: Any = subject.call("act", policy.act, parts, seen)
    action = distribution.sample(jax.random.normal(key, (5, policy.num_actions), jnp.float32))
    subject.is_array("a sample", action, (5, policy.num_actions), np.int32 if policy.is_discrete else np.float32)
    subject.is_array("`log_density`", distribution.log_density(action), (5,))
    subject.is_array("`entropy`", distribution.entropy(), (5,))
    zero = np.abs(np.asarray(distribution.divergence(distribution))).max()
    subject.require(bool(zero < 1e-5), "the divergence of a distribution from itself must be 0")
