"""Exact constants of Nav2D, where the context is the goal and enters the reward alone.

    s' = s + clip(a, ±v),    r = -|s' - omega|,    a ~ N(b + W s, sigma^2 I)

- Clipping does not expand and the norm obeys the triangle inequality: L_P = L_r = 1 (attained), L_omegar = 1 (attained).
- The dynamics do not know the goal: L_omegaP = 0, so L_delta(omega) = 0 and L_V is not needed. The paper's condition
  `gamma L_P (1 + L_pi) < 1` is out of reach at gamma = 0.99 for any policy that moves; the finite-horizon form needs none.
- After t steps a coordinate is at most v t: features and rewards are bounded although the policy's noise is not.

An episode that ends at the goal is a jump that no Lipschitz constant describes: the constants are those of the environment with
`goal_radius = 0`, which never ends.
"""

import numpy as np
from numpy.typing import ArrayLike

from metastep.envs.nav2d import Nav2D
from metastep.errors import InputError
from metastep.theory.constants import CmdpConstants, PolicyConstants, ScoreConstants
from metastep.theory.scores import MEAN_ABSOLUTE_NORMAL, gaussian_score_constants, linear_features

_PLANE = 2


def nav2d_constants(
    env: Nav2D, theta: ArrayLike, *, sigma: float, gamma: float, horizon: int
) -> tuple[CmdpConstants, PolicyConstants, ScoreConstants]:
    """Constants for policies theta (..., 6) and all goals of the context space, for episodes of `horizon` steps."""
    flat = np.asarray(theta, np.float64)
    if flat.shape[-1] != _PLANE * (1 + _PLANE):
        raise InputError(f"theta: {flat.shape[-1]} numbers, expected {_PLANE * (1 + _PLANE)}.")
    weights = flat[..., _PLANE:]
    weights = weights.reshape(*weights.shape[:-1], _PLANE, _PLANE)
    L_pi = np.linalg.norm(weights, ord=2, axis=(-2, -1))
    space = env.context_space
    farthest_goal = np.linalg.norm(np.maximum(np.abs(space.low), np.abs(space.high)))
    farthest = env.max_move * (horizon - 1)  # a coordinate of the state in which the last action is taken
    cmdp = CmdpConstants(
        L_P=1.0,
        L_r=1.0,
        L_omega_P=0.0,
        L_omega_r=1.0,
        gamma=gamma,
        R_max=float(np.sqrt(_PLANE) * env.max_move * horizon + farthest_goal),
    )
    policy = PolicyConstants(L_pi=L_pi, L_pi_theta=float(np.sqrt(1.0 + _PLANE * farthest**2)))
    bound, lipschitz = linear_features(farthest, _PLANE, _PLANE)
    return cmdp, policy, gaussian_score_constants(sigma, bound, lipschitz, L_pi[..., None], MEAN_ABSOLUTE_NORMAL)
