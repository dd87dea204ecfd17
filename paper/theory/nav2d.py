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

from metastep.envs.nav2d import Nav2D
from paper.theory.constants import CmdpConstants, Constants
from paper.theory.policy import MEAN_ABSOLUTE_NORMAL, LinearPolicy, policy_constants


def nav2d_constants(env: Nav2D, policy: LinearPolicy, gamma: float, horizon: int) -> Constants:
    """Constants for policies and all goals of the context space, for episodes of `horizon` steps."""
    space, diagonal = env.context_space, float(np.sqrt(2.0))
    farthest_goal = np.linalg.norm(np.maximum(np.abs(space.low), np.abs(space.high)))
    largest_reward = float(diagonal * env.max_move * horizon + farthest_goal)
    farthest = env.max_move * (horizon - 1)  # a coordinate of the state in which the last action is taken
    of_policy, of_score = policy_constants(
        policy, largest_coordinate=farthest, largest_norm=diagonal * farthest, mean_absolute_noise=MEAN_ABSOLUTE_NORMAL
    )
    cmdp = CmdpConstants(L_P=1.0, L_r=1.0, L_omega_P=0.0, L_omega_r=1.0, gamma=gamma, R_max=largest_reward)
    return cmdp, of_policy, of_score
