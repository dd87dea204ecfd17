"""Estimate return, policy gradient and natural gradient from batches of episodes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep._core.errors import InputError
from metastep._core.settings import Count, check_fields
from metastep.policies import Arrays, Policy, flatten
from metastep.simulation.engine import compiled, stream, trajectories
from metastep.simulation.rollouts import Rollout, Sums, Trajectories, sums_of

FisherSolver = Literal["closed", "cg", "truncated"]
DampingKind = Literal["relative", "absolute"]

DAMPING = 1e-3  # of the natural gradient, as a share of the mean of the Fisher matrix's diagonal
_Iteration = tuple[Array, Array, Array, Array]  # count, solution, residual, direction
Batch = Sums | Trajectories  # input of an estimate: sums over the episodes if they suffice, else the episodes


class Estimate(NamedTuple):
    """Estimates from one batch of episodes; learners first."""

    mean_return: Array  # (learners,): j
    return_error: Array  # (learners,): its standard error
    gradient: Array  # (learners, parameters)
    natural_gradient: Array  # (learners, parameters), with the first damping
    num_steps: Array  # (learners,): steps before termination
    more: tuple[Array, ...] = ()  # natural gradients with further dampings, each (learners, parameters)


def _fisher_block(rollout: Rollout, sums: Sums) -> Array:
    """Return the Fisher matrix of one action of a linear policy, `E[phi phi^T] / sigma^2`: (learners, 1 + s, 1 + s)."""
    assert sums.moments is not None  # `Estimator` checks that the policy is linear
    return jnp.moveaxis(sums.moments / (sums.num_steps * rollout.policy.sigma**2), -1, 0)


def _by_action(policy: Policy, vector: Array) -> Array:
    """Return vectors like theta = (b, W), (parameters, learners), by action: (learners, actions, 1 + s)."""
    biases = vector[: policy.num_actions, None]  # (actions, 1, learners)
    weights = vector[policy.num_actions :].reshape(policy.num_actions, policy.num_observations, -1)
    return jnp.moveaxis(jnp.concatenate([biases, weights], axis=1), -1, 0)


def _solve_linear(estimator: "Estimator", sums: Sums, damping: float) -> Array:
    """Return `(F + damping * tr(F)/size * I)^-1 gradient` for a linear policy: (parameters, learners).

    F repeats one block for every action, the mean over the steps taken: (learners, 1 + s, 1 + s).
    """
    fisher, size = _fisher_block(estimator.rollout, sums), 1 + estimator.rollout.policy.num_observations
    trace = jnp.trace(fisher, axis1=-2, axis2=-1)[:, None, None]
    ridge = (damping / size) * trace if estimator.damping_kind == "relative" else damping
    damped = fisher + ridge * jnp.eye(size, dtype=jnp.float32)
    right = jnp.swapaxes(_by_action(estimator.rollout.policy, sums.gradient), -1, -2)  # (learners, 1 + s, actions)

    def image(vector: Array) -> Array:
        return jnp.einsum("lij,lja->lia", damped, vector, precision=lax.Precision.HIGHEST)

    def dot(left: Array, right: Array) -> Array:
        return jnp.sum(left * right, axis=(1, 2), keepdims=True)

    if estimator.solver == "truncated":
        # Without a preconditioner, as in TRPO's first implementations: directions of large variance in the batch converge first.
        solved = conjugate_gradient(image, right, dot, estimator.cg_iterations)
    else:
        # Scaled to unit diagonal: of coordinates of very different size (metres, radians), float32 would lose most digits.
        scale = lax.rsqrt(jnp.diagonal(damped, axis1=-2, axis2=-1))  # (learners, size)
        factor = lax.linalg.cholesky(damped * scale[:, :, None] * scale[:, None, :])
        half = lax.linalg.triangular_solve(factor, right * scale[:, :, None], left_side=True, lower=True)
        solved = lax.linalg.triangular_solve(factor, half, left_side=True, lower=True, transpose_a=True)
        solved = solved * scale[:, :, None]
    solved = jnp.moveaxis(solved, 0, -1)
    return jnp.concatenate([solved[0], jnp.swapaxes(solved[1:], 0, 1).reshape(-1, solved.shape[-1])])


def conjugate_gradient(
    image: Callable[[Array], Array],
    right: Array,
    dot: Callable[[Array, Array], Array],
    iterations: int,
    preconditioner: Array | float = 1.0,
    tolerance: float | None = None,
) -> Array:
    """Solve image(x) = right from x = 0; with a tolerance, stop when every learner's residual is below this share of `right`."""

    def ratio(numerator: Array, denominator: Array) -> Array:
        """Return 0 where the denominator is 0, that is, where the iteration has converged."""
        return jnp.where(denominator > 0.0, numerator / jnp.where(denominator > 0.0, denominator, 1.0), 0.0)

    def is_unfinished(carry: _Iteration) -> Array:
        count, _, residual, _ = carry
        if tolerance is None:
            return count < iterations
        return (count < iterations) & jnp.any(dot(residual, residual) > tolerance**2 * dot(right, right))

    def iterate(carry: _Iteration) -> _Iteration:
        count, solution, residual, direction = carry
        ahead, energy = image(direction), dot(residual, preconditioner * residual)
        length = ratio(energy, dot(direction, ahead))
        solution, residual = solution + length * direction, residual - length * ahead
        scaled = preconditioner * residual
        return count + 1, solution, residual, scaled + ratio(dot(residual, scaled), energy) * direction

    start = (jnp.int32(0), jnp.zeros_like(right), right, preconditioner * right)
    return lax.while_loop(is_unfinished, iterate, start)[1]


def _visited(episodes: Trajectories) -> tuple[Arrays, Array]:
    """Return the observations, each (steps, learners), and weights of the steps of all episodes; weights sum to 1."""
    num_observations, num_learners = episodes.observation.shape[1], episodes.observation.shape[-1]
    observation = jnp.swapaxes(episodes.observation, 0, 1).reshape(num_observations, -1, num_learners)
    alive = episodes.alive.reshape(-1, num_learners).astype(jnp.float32)
    return tuple(observation), alive / jnp.sum(alive, axis=0)


def _solve_cg(estimator: "Estimator", theta: Array, episodes: Trajectories, gradient: Array, damping: float) -> Array:
    """Return the same as `_solve_linear` for any policy, by conjugate gradient with Fisher-vector products.

    `F v = E[J^T (J v)] / sigma^2` with J the Jacobian of the policy's mean: no matrix. Jacobi preconditioning.
    """
    policy, (observation, weight) = estimator.rollout.policy, _visited(episodes)

    def mean(parameters: Array) -> Arrays:
        return policy.mean(parameters, observation)

    _, pull_back = jax.vjp(mean, theta)
    # diag(F): for unit noise of one action, the score is a row of the mean's Jacobian divided by sigma.
    diagonal = jnp.zeros(theta.shape, jnp.float32)
    for action in range(policy.num_actions):
        unit = tuple(jnp.full(weight.shape, float(index == action), jnp.float32) for index in range(policy.num_actions))
        rows = policy.score(theta, observation, unit)
        diagonal = diagonal + flatten(tuple(jnp.sum(weight * row * row, axis=-2) for row in rows))
    ridge = damping * jnp.mean(diagonal, axis=0) if estimator.damping_kind == "relative" else jnp.float32(damping)

    def fisher_vector(vector: Array) -> Array:
        _, moved = jax.jvp(mean, (theta,), (vector,))
        return pull_back(tuple(weight * piece for piece in moved))[0] / policy.sigma**2 + ridge * vector

    def dot(left: Array, right: Array) -> Array:
        return jnp.sum(left * right, axis=0)

    scale = 1.0 / (diagonal + ridge)
    return conjugate_gradient(fisher_vector, gradient, dot, estimator.cg_iterations, scale, tolerance=1e-5)


@dataclass(frozen=True)
class Estimator:
    """Simulate policies in tasks and compute estimates; compiled once for each batch size.

    Args:
        rollout: what is simulated.
        fisher: how the natural gradient is solved for. "closed" solves the closed form of linear policies exactly;
            "truncated" stops after `cg_iterations` plain conjugate-gradient steps on it; "cg" serves any policy (it keeps the
            observations of the batch), and is what other policies have in place of "truncated"; None takes "closed" where
            there is a closed form. The paper leaves it open: its code is based on a toolkit whose natural gradient is 10
            steps of conjugate gradient with an absolute damping of 0.1 or 0.01.
        damping: added to the Fisher matrix's diagonal; by default what the update rule asks for, or `DAMPING`. Of several
            dampings each gives a natural gradient, all from one Fisher matrix.
        damping_kind: whether the damping is a share of the mean of the Fisher matrix's diagonal ("relative") or a number by
            itself ("absolute"). The paper does not say.
        cg_iterations: most conjugate-gradient steps to the natural gradient, where it is found with them.
    """

    rollout: Rollout
    fisher: FisherSolver | None = None
    damping: float | tuple[float, ...] | None = None
    damping_kind: DampingKind = "relative"
    cg_iterations: Count = 200

    def __post_init__(self) -> None:
        check_fields(self, "rollout")
        if self.fisher == "closed" and not self.rollout.policy.is_linear:
            raise InputError("rollout.fisher: 'closed' needs a linear policy, allowed here are 'truncated' and 'cg'.")
        if not self.dampings or not all(0.0 < value < 1.0 for value in self.dampings):
            raise InputError(f"rollout.damping: {self.damping} must lie in (0, 1).")

    @property
    def dampings(self) -> tuple[float, ...]:
        """The damping of each natural gradient."""
        damping = DAMPING if self.damping is None else self.damping
        return damping if isinstance(damping, tuple) else (damping,)

    @property
    def solver(self) -> FisherSolver:
        """The solver of the natural gradient; policies without a closed form need "cg"."""
        return self.fisher or "closed" if self.rollout.policy.is_linear else "cg"

    def batch(self, theta: Array, context: Array, key: Array) -> Batch:
        """Simulate the batch for an estimate."""
        return (trajectories if self.solver == "cg" else stream)(self.rollout, theta, context, key)

    def __call__(self, theta: Array, context: Array, key: Array) -> Estimate:
        """Return the estimate for theta (learners, parameters) in the tasks context (learners, coordinates)."""
        return compiled(estimate_of)(self, theta, self.batch(theta, context, key))

    def trajectories(self, theta: Array, context: Array, key: Array) -> Trajectories:
        """Return the episodes of the estimate with the same arguments."""
        return trajectories(self.rollout, theta, context, key)


def estimate_of(estimator: Estimator, theta: Array, batch: Batch) -> Estimate:
    """Return the estimate from a batch; here the axis of learners moves from last to first."""
    rollout = estimator.rollout
    sums = batch if isinstance(batch, Sums) else sums_of(rollout, theta, batch)

    def solve(damping: float) -> Array:
        if isinstance(batch, Sums):
            return _solve_linear(estimator, batch, damping).T
        return _solve_cg(estimator, theta.T, batch, sums.gradient, damping).T

    first, *others = map(solve, estimator.dampings)
    error = jnp.sqrt(sums.return_variance / rollout.num_episodes)
    return Estimate(sums.mean_return, error, sums.gradient.T, first, sums.num_steps, tuple(others))


def curvatures(estimator: Estimator, theta: Array, batch: Batch, vectors: Array) -> Array:
    """Return v'Fv of vectors (learners, vectors, parameters), F the Fisher matrix without damping: (learners, vectors).

    To second order, exactly for a linear policy, half of it is the mean KL between theta and theta + v over the states visited.
    """
    policy = estimator.rollout.policy
    moved = jnp.moveaxis(vectors, (1, 2), (0, 1))  # (vectors, parameters, learners)
    if isinstance(batch, Sums):
        fisher = _fisher_block(estimator.rollout, batch)
        rows = jax.vmap(partial(_by_action, policy))(moved)  # (vectors, learners, actions, 1 + s)
        return jnp.einsum("vlai,lij,vlaj->lv", rows, fisher, rows, precision=lax.Precision.HIGHEST)
    observation, weight = _visited(batch)

    def curvature(vector: Array) -> Array:
        _, shift = jax.jvp(lambda parameters: policy.mean(parameters, observation), (theta.T,), (vector,))
        return jnp.stack([jnp.sum(weight * piece**2, axis=0) for piece in shift]).sum(axis=0) / policy.sigma**2

    return jnp.stack([curvature(vector) for vector in moved], axis=1) if len(moved) else vectors[:, :, 0]
