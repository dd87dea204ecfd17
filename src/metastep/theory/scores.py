"""Constants of a Gaussian score, which is unbounded, that keep the gradient theorem true.

The theorem asks for a bound M of the score and for its Lipschitz constant L, and uses them in two places only:

1. E|score * (Q_omega - Q_omega')| <= M sup|Q_omega - Q_omega'|. A bound of the *mean* absolute score at every state is enough.
2. s -> E[score * Q | s] is Lipschitz with constant (1 + L_pi)(Q_max L + M L_Q). Couple the actions of two states by the same
   noise z. The score at state s is z phi(s) / sigma, so it moves by |z| L_phi / sigma a unit of state, and
   `(1 + L_pi) L = E|z| L_phi / sigma` does.

So M and L below take the mean of |z| where the paper takes a supremum. Truncating the noise at a quantile instead would not be
rigorous: the support of the truncated law moves with theta, and the score identity loses its boundary terms.
"""

import numpy as np
from numpy.typing import NDArray

from metastep.errors import InputError
from metastep.theory.constants import Number, ScoreConstants, times

# E|z| of a standard normal, and of the two-point law z = ±1 that stands in for it on LQR (metastep.theory.lqr).
MEAN_ABSOLUTE_NORMAL = float(np.sqrt(2.0 / np.pi))
MEAN_ABSOLUTE_TWO_POINT = 1.0


def gaussian_score_constants(
    sigma: float, feature_bound: Number, feature_lipschitz: Number, L_pi: Number, mean_absolute_noise: float
) -> ScoreConstants:
    """`M_i = E|z| max|phi_i| / sigma` and `L_i = E|z| L_phi_i / (sigma (1 + L_pi))`.

    Args:
        sigma: standard deviation of the policy.
        feature_bound: largest |phi_i|, phi = (1, s) for the linear policy; one entry a coordinate of theta.
        feature_lipschitz: Lipschitz constant of phi_i in the state: 0 for a bias, 1 for a weight.
        L_pi: Lipschitz constant of the policy in the state.
        mean_absolute_noise: E|z|.
    """
    if not sigma > 0.0:
        raise InputError(f"sigma: {sigma} must be a positive number.")
    reach = 1.0 + np.asarray(L_pi, np.float64)
    return ScoreConstants(
        M=times(mean_absolute_noise / sigma, feature_bound),
        L=times(mean_absolute_noise / sigma, feature_lipschitz) / reach,
    )


def linear_features(
    state_radius: Number, num_states: int, num_actions: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds and Lipschitz constants of phi = (1, s) in theta's order (b, W row by row), on a ball of states.

    Returns arrays of shape (..., parameters), where (...) is the shape of `state_radius`.
    """
    radius = np.asarray(state_radius, np.float64)[..., None]
    one = np.ones((*radius.shape[:-1], num_actions))
    weights = np.ones((*radius.shape[:-1], num_actions * num_states))
    bound = np.concatenate([one, weights * radius], axis=-1)
    return bound, np.concatenate([np.zeros(num_actions), np.ones(num_actions * num_states)])
