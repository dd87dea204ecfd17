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

from metastep.envs.small import Nav2D
from paper.theory.constants import CmdpConstants, Constants, Floats, Number, PolicyConstants, ScoreConstants, times

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
        """The Lipschitz constant of the action law in the state: translating a law moves it by the translation."""
        return spectral_norm(self.weights)


def policy_from_theta(theta: ArrayLike, num_states: int, num_actions: int, sigma: float) -> LinearPolicy:
    """Split flat parameters (..., parameters) into bias and weights."""
    flat = np.asarray(theta, np.float64)
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
    num_actions, num_states = policy.weights.shape[-2:]
    steepness = np.repeat([0.0, 1.0], [num_actions, num_actions * num_states])
    size = np.where(steepness > 0.0, np.asarray(largest_coordinate, np.float64)[..., None], 1.0)
    per_noise = mean_absolute_noise / policy.sigma
    return (
        PolicyConstants(policy.L_pi, np.sqrt(1.0 + np.square(largest_norm))),
        ScoreConstants(times(per_noise, size), times(per_noise, steepness) / (1.0 + policy.L_pi[..., None])),
    )


def spectral_norm(matrix: Floats) -> Floats:
    """Return the largest singular value of (..., rows, columns)."""
    return np.asarray(np.linalg.norm(matrix, ord=2, axis=(-2, -1)))


def nav2d_constants(env: Nav2D, policy: LinearPolicy, gamma: float, horizon: int) -> Constants:
    """Return exact constants of Nav2D for all goals of the context space and episodes of `horizon` steps.

        s' = s + clip(a, ±v),    r = -|s' - omega|,    a ~ N(b + W s, sigma^2 I)

    - Clipping does not expand and the norm obeys the triangle inequality: L_P = L_r = 1 (attained), L_omegar = 1 (attained).
    - The dynamics do not know the goal: L_omegaP = 0, so L_delta(omega) = 0 and L_V is not needed. The paper's condition
      `gamma L_P (1 + L_pi) < 1` is out of reach at gamma = 0.99 for any policy that moves; the finite-horizon form needs none.
    - After t steps a coordinate is at most v t: features and rewards are bounded although the policy's noise is not.

    An episode that ends at the goal is a jump that no Lipschitz constant describes: the constants are those of the environment
    with `goal_radius = 0`, which never ends.
    """
    space, diagonal = env.context_space, float(np.sqrt(2.0))
    farthest_goal = np.linalg.norm(np.maximum(np.abs(space.low), np.abs(space.high)))
    largest_reward = float(diagonal * env.max_move * horizon + farthest_goal)
    farthest = env.max_move * (horizon - 1)  # a coordinate of the state in which the last action is taken
    of_policy, of_score = policy_constants(
        policy, largest_coordinate=farthest, largest_norm=diagonal * farthest, mean_absolute_noise=MEAN_ABSOLUTE_NORMAL
    )
    cmdp = CmdpConstants(L_P=1.0, L_r=1.0, L_omega_P=0.0, L_omega_r=1.0, gamma=gamma, R_max=largest_reward)
    return cmdp, of_policy, of_score
