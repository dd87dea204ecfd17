"""The contract of policies."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep.policies import ActorCritic, LinearGaussian, Pieces, Policy, flatten
from metastep.testing.actor_critic import check_actor_critic_policy
from metastep.testing.subject import Subject

_SHAPE = (5, 3)  # episodes, learners
_TOLERANCE = 1e-3


def check_policy(policy: Policy | ActorCritic, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the policy keeps the contract of `metastep.policies.Policy`.

    Checked are: the declared fields; that it can select a compiled program; number, shapes and dtypes of mean and score in the
    batched layout; that the same input gives the same bits; that an episode depends neither on other episodes nor on other
    learners; that the score is the derivative of log pi; and that a policy that says so is linear.
    """
    if isinstance(policy, ActorCritic):
        check_actor_critic_policy(policy, seed)
        return
    subject = Subject(policy, f"policy {type(policy).__name__}")
    for field in ("num_observations", "num_actions", "num_parameters"):
        subject.count(field, getattr(policy, field, None))
    sigma: Any = getattr(policy, "sigma", None)
    positive = isinstance(sigma, (int, float)) and 0.0 < sigma < math.inf
    subject.require(positive, f"`sigma` must be a positive number, got {sigma!r}")
    subject.flag("is_linear")
    subject.methods("mean", "score")
    subject.hashable()
    keys = jax.random.split(jax.random.key(seed), 4)
    theta = jax.random.normal(keys[0], (policy.num_parameters, _SHAPE[1]), jnp.float32)
    observation = tuple(jax.random.normal(keys[1], (policy.num_observations, *_SHAPE), jnp.float32))
    noise = tuple(jax.random.normal(keys[2], (policy.num_actions, *_SHAPE), jnp.float32))
    _check_shapes(subject, theta, observation, noise)

    def evaluate(theta: Array, observation: Pieces) -> tuple[Pieces, Pieces]:
        return policy.mean(theta, observation), policy.score(theta, observation, noise)

    # The first learner has another policy; it and the first episode of every learner see something else.
    others = theta.at[:, 0].add(1.0), tuple(each.at[0].add(1.0).at[:, 0].add(1.0) for each in observation)
    inputs, methods = (theta, observation), ("mean", "score")
    mean, pieces = subject.apart(
        methods, evaluate, inputs, others, lambda piece: piece[..., 1:, 1:], "other learners or episodes"
    )
    # A random combination of the episodes' scores, and of their log densities.
    weight = jax.random.normal(keys[3], _SHAPE, jnp.float32)

    def log_density(theta: Array) -> Array:
        """Of the actions with these means and this noise; its constant does not matter."""
        apart = zip(mean, noise, policy.mean(theta, observation), strict=True)
        return sum(
            (-0.5 * jnp.sum(weight * (z + (m - now) / policy.sigma) ** 2) for m, z, now in apart), jnp.float32(0)
        )

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


def _check_shapes(subject: Subject, theta: Array, observation: Pieces, noise: Pieces) -> None:
    policy: Policy = subject.part
    mean = subject.trace("mean", policy.mean, theta, observation)
    score = subject.trace("score", policy.score, theta, observation, noise)
    for what, pieces, field in (("mean", mean, "num_actions"), ("score", score, "num_parameters")):
        kind, declared = type(pieces).__name__, getattr(policy, field)
        subject.require(isinstance(pieces, tuple), f"`{what}` returns a {kind}, it must return a tuple of arrays")
        for index, piece in enumerate(pieces):
            leading = piece.shape[:-2] if what == "score" else ()
            subject.array(f"array {index} of `{what}`", piece, (*leading, *_SHAPE))
        found = sum(math.prod(piece.shape[:-2]) for piece in pieces)
        subject.require(found == declared, f"`{what}` returns {found} numbers, but {field} is {declared}")
