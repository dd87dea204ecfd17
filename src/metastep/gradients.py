"""Estimates from batches of episodes: return, policy gradient, natural gradient."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep import host_rollouts
from metastep.envs.host.base import HostEnv
from metastep.errors import InputError
from metastep.policies import Pieces, Policy, flatten
from metastep.rollouts import Rollout, Trajectories, trajectories
from metastep.sums import Sums, stream, sums_of

FisherSolver = Literal["closed", "cg"]

# Of conjugate gradient: count, solution, residual, direction, energy.
_Iteration = tuple[Array, Array, Array, Array, Array]
# Conjugate gradient stops where the residual is this share of the gradient.
_CG_TOLERANCE = 1e-5


class Estimate(NamedTuple):
    """What one batch of episodes says about each learner; learners first."""

    mean_return: Array  # (learners,): j
    return_error: Array  # (learners,): its standard error
    gradient: Array  # (learners, parameters)
    natural_gradient: Array  # (learners, parameters)
    num_steps: Array  # (learners,): steps before termination


def fisher_matrix(rollout: Rollout, sums: Sums) -> Array:
    """Fisher matrix of one action of a linear policy, `E[phi phi^T] / sigma^2`: (learners, 1 + s, 1 + s).

    The mean is over the steps taken in the batch. The full matrix repeats this block for every action.
    """
    if sums.moments is None:
        raise InputError("fisher: the closed form needs a linear policy; use fisher='cg'.")
    return jnp.moveaxis(sums.moments / (sums.num_steps * rollout.policy.sigma**2), -1, 0)


def solve_closed(rollout: Rollout, sums: Sums, damping: float) -> Array:
    """`(F + damping * tr(F)/size * I)^-1 gradient` for a linear policy: (parameters, learners).

    The matrix is brought to unit diagonal first: coordinates of very different size (metres and radians) would cost
    a float32 factorisation most of its digits.
    """
    policy = rollout.policy
    fisher = fisher_matrix(rollout, sums)
    size = fisher.shape[-1]
    trace = jnp.trace(fisher, axis1=-2, axis2=-1)
    damped = fisher + (damping / size) * trace[:, None, None] * jnp.eye(size, dtype=jnp.float32)
    scale = lax.rsqrt(jnp.diagonal(damped, axis1=-2, axis2=-1))  # (learners, size)
    factor = lax.linalg.cholesky(damped * scale[:, :, None] * scale[:, None, :])
    # theta = (b, W): gather each action's bias and weights into one right-hand side.
    biases = sums.gradient[: policy.num_actions, None]  # (actions, 1, learners)
    weights = sums.gradient[policy.num_actions :].reshape(policy.num_actions, policy.num_observations, -1)
    right = jnp.moveaxis(jnp.concatenate([biases, weights], axis=1), -1, 0)  # (learners, actions, size)
    right = jnp.swapaxes(right * scale[:, None, :], -1, -2)
    half = lax.linalg.triangular_solve(factor, right, left_side=True, lower=True)
    solved = lax.linalg.triangular_solve(factor, half, left_side=True, lower=True, transpose_a=True)
    solved = jnp.moveaxis(solved * scale[:, :, None], 0, -1)  # (size, actions, learners)
    return jnp.concatenate([solved[0], jnp.swapaxes(solved[1:], 0, 1).reshape(-1, solved.shape[-1])])


def _visited(episodes: Trajectories) -> tuple[Pieces, Array]:
    """Observations and weights of all steps as one long batch: pieces (steps, learners), weights that sum to 1."""
    horizon, num_observations, num_episodes, num_learners = episodes.observation.shape
    observation = jnp.swapaxes(episodes.observation, 0, 1).reshape(
        num_observations, horizon * num_episodes, num_learners
    )
    alive = episodes.alive.reshape(horizon * num_episodes, num_learners).astype(jnp.float32)
    return tuple(observation), alive / jnp.sum(alive, axis=0)


def _fisher_diagonal(policy: Policy, theta: Array, observation: Pieces, weight: Array) -> Array:
    """diag(F): the score at unit noise of one action after the other is a row of the mean's Jacobian over sigma."""
    total = jnp.zeros(theta.shape, jnp.float32)
    for action in range(policy.num_actions):
        unit = tuple(jnp.full(weight.shape, float(index == action), jnp.float32) for index in range(policy.num_actions))
        rows = policy.score(theta, observation, unit)
        total = total + flatten(tuple(jnp.sum(weight * row * row, axis=-2) for row in rows))
    return total


def solve_cg(
    policy: Policy, theta: Array, episodes: Trajectories, gradient: Array, damping: float, iterations: int
) -> Array:
    """The same natural gradient for any policy: conjugate gradient on Fisher-vector products, (parameters, learners).

    `F v = E[J^T (J v)] / sigma^2` with J the Jacobian of the policy's mean: one forward and one backward derivative on the
    batch, no matrix. Jacobi preconditioning; every learner runs its own iteration in lockstep, until the residual of each is
    small or `iterations` are made.
    """
    observation, weight = _visited(episodes)

    def mean(parameters: Array) -> Pieces:
        return policy.mean(parameters, observation)

    _, pull_back = jax.vjp(mean, theta)
    diagonal = _fisher_diagonal(policy, theta, observation, weight)
    ridge = damping * jnp.mean(diagonal, axis=0)
    preconditioner = 1.0 / (diagonal + ridge)

    def fisher_vector(vector: Array) -> Array:
        _, moved = jax.jvp(mean, (theta,), (vector,))
        return pull_back(tuple(weight * piece for piece in moved))[0] / policy.sigma**2 + ridge * vector

    def dot(left: Array, right: Array) -> Array:
        return jnp.sum(left * right, axis=0)

    def safe_ratio(numerator: Array, denominator: Array) -> Array:
        return jnp.where(denominator > 0.0, numerator / jnp.where(denominator > 0.0, denominator, 1.0), 0.0)

    def unfinished(carry: _Iteration) -> Array:
        count, _, residual, _, _ = carry
        return (count < iterations) & jnp.any(dot(residual, residual) > _CG_TOLERANCE**2 * dot(gradient, gradient))

    def iterate(carry: _Iteration) -> _Iteration:
        count, solution, residual, direction, energy = carry
        image = fisher_vector(direction)
        length = safe_ratio(energy, dot(direction, image))
        solution, residual = solution + length * direction, residual - length * image
        scaled = preconditioner * residual
        new_energy = dot(residual, scaled)
        return count + 1, solution, residual, scaled + safe_ratio(new_energy, energy) * direction, new_energy

    scaled = preconditioner * gradient
    start = (jnp.int32(0), jnp.zeros_like(gradient), gradient, scaled, dot(gradient, scaled))
    return lax.while_loop(unfinished, iterate, start)[1]


@dataclass(frozen=True)
class Estimator:
    """From policies and tasks to estimates; compiled once for each batch size.

    Args:
        rollout: what is simulated.
        fisher: "closed" for linear policies (streaming), "cg" for any (keeps the observations of the batch);
            None takes the closed form where it exists.
        damping: added to the Fisher matrix's diagonal, as a share of the mean of that diagonal. It decides how far directions
            that hardly vary in the batch (a cart that has not moved yet) are stretched: too little, and their noise is.
        cg_iterations: most conjugate-gradient steps.
    """

    rollout: Rollout
    fisher: FisherSolver | None = None
    damping: float = 1e-3
    cg_iterations: int = 200

    def __post_init__(self) -> None:
        if self.fisher not in (None, *get_args(FisherSolver)):
            raise InputError(f"rollout.fisher: {self.fisher!r} must be one of {', '.join(get_args(FisherSolver))}.")
        if self.fisher == "closed" and not self.rollout.policy.is_linear:
            raise InputError("rollout.fisher: 'closed' needs a linear policy, allowed here is 'cg'.")
        if not 0.0 < self.damping < 1.0:
            raise InputError(f"rollout.damping: {self.damping} must lie in (0, 1).")
        if self.cg_iterations < 1:
            raise InputError(f"rollout.cg_iterations: {self.cg_iterations} must be at least 1.")

    @property
    def solver(self) -> FisherSolver:
        """How the natural gradient is computed."""
        return self.fisher or ("closed" if self.rollout.policy.is_linear else "cg")

    @property
    def on_host(self) -> bool:
        """Whether the environment is simulated on the host, so that only what comes after the episodes is compiled."""
        return isinstance(self.rollout.env, HostEnv)

    def __call__(self, theta: Array, context: Array, key: Array) -> Estimate:
        """Estimate for theta (learners, parameters) in the tasks context (learners, coordinates)."""
        if self.on_host:
            return estimate_on_host(self, theta, context, key)
        return estimate(self, theta, context, key)

    def trajectories(self, theta: Array, context: Array, key: Array) -> Trajectories:
        """The episodes behind the estimate with the same arguments."""
        if self.on_host:
            return host_rollouts.trajectories(self.rollout, theta, context, key)
        return _compiled_trajectories(self.rollout, theta, context, key)


_compiled_trajectories = jax.jit(trajectories, static_argnums=0)


def _from_sums(estimator: Estimator, sums: Sums) -> Estimate:
    """The estimate of a linear policy."""
    natural = solve_closed(estimator.rollout, sums, estimator.damping)
    return _complete(estimator, sums, natural)


def _from_episodes(estimator: Estimator, theta: Array, episodes: Trajectories) -> Estimate:
    """The estimate of any policy."""
    rollout = estimator.rollout
    sums = sums_of(rollout, theta, episodes)
    natural = solve_cg(rollout.policy, theta.T, episodes, sums.gradient, estimator.damping, estimator.cg_iterations)
    return _complete(estimator, sums, natural)


def _complete(estimator: Estimator, sums: Sums, natural: Array) -> Estimate:
    return Estimate(
        mean_return=sums.mean_return,
        return_error=jnp.sqrt(sums.return_variance / estimator.rollout.num_episodes),
        gradient=sums.gradient.T,
        natural_gradient=natural.T,
        num_steps=sums.num_steps,
    )


@partial(jax.jit, static_argnums=0)
def estimate(estimator: Estimator, theta: Array, context: Array, key: Array) -> Estimate:
    """The jitted body of `Estimator.__call__`."""
    if estimator.solver == "closed":
        return _from_sums(estimator, stream(estimator.rollout, theta, context, key))
    return _from_episodes(estimator, theta, trajectories(estimator.rollout, theta, context, key))


_compiled_from_sums = jax.jit(_from_sums, static_argnums=0)
_compiled_from_episodes = jax.jit(_from_episodes, static_argnums=0)


def estimate_on_host(estimator: Estimator, theta: Array, context: Array, key: Array) -> Estimate:
    """The body of `Estimator.__call__` for environments on the host."""
    if estimator.solver == "closed":
        return _compiled_from_sums(estimator, host_rollouts.stream(estimator.rollout, theta, context, key))
    episodes = host_rollouts.trajectories(estimator.rollout, theta, context, key)
    return _compiled_from_episodes(estimator, theta, episodes)
