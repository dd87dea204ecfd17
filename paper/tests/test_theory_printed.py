"""The paper's printed gradient constant can be exceeded; the corrected one cannot (docs/theory.md, "Slips")."""

import numpy as np
import pytest

from paper.theory.constants import Bounds, CmdpConstants, PolicyConstants, ScoreConstants, printed_gradient_constant


def _walk_gradient(gamma: float, omega: float, reach: int) -> float:
    """dJ/dtheta at 0 of the walk s' = s + a, a = ±1 with odds exp(2 theta), reward omega sign(s): central differences."""
    states = np.arange(-reach, reach + 1)

    def mean_return(theta: float) -> float:
        up = 1.0 / (1.0 + np.exp(-2.0 * theta))
        law = np.zeros(len(states))
        law[reach] = 1.0
        total, weight = 0.0, 1.0
        for _ in range(reach):  # the walk cannot leave the grid within `reach` steps
            total += weight * omega * float(law @ np.sign(states))
            weight *= gamma
            law = up * np.roll(law, 1) + (1.0 - up) * np.roll(law, -1)
        return total

    return (mean_return(1e-5) - mean_return(-1e-5)) / 2e-5


@pytest.mark.parametrize("gamma", [0.6, 0.8, 0.95])
def test_a_random_walk_exceeds_the_printed_constant(gamma: float) -> None:
    """L_P = 1, L_pi = 0, L_omegaP = 0, L_omegar = 1, |score| = 1: printed 1/(1-g), true g/((1-g) sqrt(1-g^2))."""
    cmdp = CmdpConstants(L_P=1.0, L_r=2.0, L_omega_P=0.0, L_omega_r=1.0, gamma=gamma, R_max=2.0)
    policy, score = PolicyConstants(L_pi=0.0, L_pi_theta=2.0), ScoreConstants(M=1.0, L=1.0)
    measured = _walk_gradient(gamma, 2.0, 600) - _walk_gradient(gamma, 1.0, 600)  # contexts 1 and 2, distance 1
    assert measured == pytest.approx(gamma / ((1 - gamma) * np.sqrt(1 - gamma**2)), rel=1e-6)
    assert printed_gradient_constant(cmdp, policy, score) == pytest.approx(1 / (1 - gamma))
    assert measured <= Bounds(cmdp, policy, score).L_gradient
    assert measured <= Bounds(cmdp, policy, score, horizon=600).L_gradient
    exceeds = bool(measured > printed_gradient_constant(cmdp, policy, score))
    assert exceeds == (gamma > np.sqrt(0.5))
