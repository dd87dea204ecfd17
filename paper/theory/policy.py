"""The linear Gaussian policy, and constants of its score that keep the gradient theorem true although it is unbounded.

The theorem asks for a bound M of the score and for its Lipschitz constant L, and uses them in two places only:

1. E|score * (Q_omega - Q_omega')| <= M sup|Q_omega - Q_omega'|. A bound of the *mean* absolute score at every state is enough.
2. s -> E[score * Q | s] is Lipschitz with constant (1 + L_pi)(Q_max L + M L_Q). Couple the actions of two states by the same
   noise z. The score at state s is z phi(s) / sigma, so it moves by |z| L_phi / sigma for a unit of state, and
   `(1 + L_pi) L = E|z| L_phi / sigma` does.

So M and L below take the mean of |z| where the paper takes a supremum. Truncating the noise at a quantile instead would not be
rigorous: the support of the truncated law moves with theta, and the score identity loses its boundary terms.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from metastep import InputError
from paper.theory.constants import Floats, Number, PolicyConstants, ScoreConstants, times

# E|z| of a standard normal, and of the two-point law z = ±1 that stands in for it on LQR (paper.theory.lqr).
MEAN_ABSOLUTE_NORMAL = float(np.sqrt(2.0 / np.pi))
MEAN_ABSOLUTE_TWO_POINT = 1.0


class LinearPolicy(NamedTuple):
    """a ~ N(b + W s, sigma^2 I); any number of leading batch axes."""

    bias: Floats  # (..., actions)
    weights: Floats  # (..., actions, states)
    sigma: float

    @property
    def L_pi(self) -> Floats:
        """The Lipschitz constant of the action law in the state: a law that is moved is as far away as it was moved."""
        return spectral_norm(self.weights)


def policy_from_theta(theta: ArrayLike, num_states: int, num_actions: int, sigma: float) -> LinearPolicy:
    """Split flat parameters (..., parameters) into bias and weights."""
    flat = np.asarray(theta, np.float64)
    if flat.shape[-1] != num_actions * (1 + num_states):
        raise InputError(f"theta: {flat.shape[-1]} numbers, expected {num_actions * (1 + num_states)}.")
    weights = flat[..., num_actions:].reshape(*flat.shape[:-1], num_actions, num_states)
    return LinearPolicy(flat[..., :num_actions], weights, sigma)


def policy_constants(
    policy: LinearPolicy, *, largest_coordinate: Number, largest_norm: Number, mean_absolute_noise: float
) -> tuple[PolicyConstants, ScoreConstants]:
    """Constants of the policy and of its score, `M_i = E|z| max|phi_i| / sigma`, `L_i = E|z| L_phi_i / (sigma (1 + L_pi))`.

    The features phi = (1, s), in theta's order (b, W row by row), have Lipschitz constants 0 for a bias and 1 for a weight.

    Args:
        policy: one or a batch (...).
        largest_coordinate, largest_norm: bounds of |s_j| and |s| where actions are taken, (...).
        mean_absolute_noise: E|z|.

    Returns:
        Policy constants of shape (...), score constants of shape (..., parameters).
    """
    if not policy.sigma > 0.0:
        raise InputError(f"sigma: {policy.sigma} must be a positive number.")
    num_actions, num_states = policy.weights.shape[-2:]
    steepness = np.repeat([0.0, 1.0], [num_actions, num_actions * num_states])
    size = np.where(steepness > 0.0, np.asarray(largest_coordinate, np.float64)[..., None], 1.0)
    per_noise = mean_absolute_noise / policy.sigma
    return (
        PolicyConstants(policy.L_pi, np.sqrt(1.0 + np.square(largest_norm))),
        ScoreConstants(times(per_noise, size), times(per_noise, steepness) / (1.0 + policy.L_pi[..., None])),
    )


def spectral_norm(matrix: Floats) -> Floats:
    """The largest singular value of (..., rows, columns)."""
    return np.asarray(np.linalg.norm(matrix, ord=2, axis=(-2, -1)))
