"""The formulas: by hand, against finite MDPs solved exactly, and their monotonicity."""

import numpy as np
import pytest

from metastep import InputError
from paper.tests import finite_cmdp as finite
from paper.theory.constants import Bounds, CmdpConstants, PolicyConstants, ScoreConstants

NAMES = ("L_Q", "L_V", "L_omega_Q", "L_delta_theta", "L_delta_omega", "L_zeta_omega", "L_eta", "L_gradient")
HAND_CMDP = CmdpConstants(L_P=0.5, L_r=1.0, L_omega_P=0.2, L_omega_r=0.3, gamma=0.8, R_max=1.0)
HAND_POLICY = PolicyConstants(L_pi=0.5, L_pi_theta=0.7)
HAND_SCORE = ScoreConstants(M=3.0, L=2.0)


def test_constants_by_hand() -> None:
    """gamma L_P (1 + L_pi) = 0.6; the rest follows with a pencil."""
    bounds = Bounds(HAND_CMDP, HAND_POLICY, HAND_SCORE)
    assert Bounds(HAND_CMDP, HAND_POLICY).contraction == pytest.approx(0.6)
    assert pytest.approx(2.5) == bounds.L_Q  # 1 / 0.4
    assert pytest.approx(3.75) == bounds.L_V  # 1.5 * 2.5
    assert bounds.L_omega_Q == pytest.approx(4.5)  # (0.3 + 0.8 * 0.2 * 3.75) / 0.2
    assert bounds.L_delta_theta == pytest.approx(0.7)  # 0.8 * 0.5 * 0.7 / 0.4
    assert bounds.L_delta_omega == pytest.approx(0.4)  # 0.8 * 0.2 / 0.4
    assert bounds.L_zeta_omega == pytest.approx(0.6)
    assert bounds.L_eta == pytest.approx(17.5)  # 5 * 2 + 3 * 2.5
    assert bounds.L_gradient == pytest.approx(120.0)  # (17.5 * 0.6 + 3 * 4.5) / 0.2


def test_two_steps_by_hand() -> None:
    """H = 2: L_Q = 1 + 0.6, Q_max = 1.8; the state moves by 0.2 once, between the steps."""
    bounds = Bounds(HAND_CMDP, HAND_POLICY, HAND_SCORE, horizon=2)
    assert pytest.approx(1.6) == bounds.L_Q
    assert pytest.approx(2.4) == bounds.L_V
    assert bounds.L_omega_Q == pytest.approx(0.3 + 0.8 * 0.2 * 1.5 + 0.8 * 0.3)
    assert bounds.L_delta_theta == pytest.approx(0.8 * 0.5 * 0.7 / 1.8)
    assert bounds.L_delta_omega == pytest.approx(0.8 * 0.2 / 1.8)
    assert bounds.L_eta == pytest.approx(1.8 * 2.0 + 3.0 * 1.6)
    last_step = (1.0 * 2.0 + 3.0 * 1.0) * 1.5 * 0.2 + 3.0 * 0.3
    assert bounds.L_gradient == pytest.approx(3.0 * 0.78 + 0.8 * last_step)


@pytest.mark.parametrize("horizon", [None, 1, 2, 7])
def test_bounds_hold_on_random_finite_cmdps(horizon: int | None) -> None:
    """Every constant against the exact quantity it bounds, to rounding."""
    rng = np.random.default_rng(11)
    tightest = dict.fromkeys(
        ("L_Q", "L_V", "L_omega_Q", "return", "delta_omega", "delta_theta", "zeta", "gradient"), 0.0
    )
    num_checked = 0
    for index in range(120):
        cmdp = finite.random_cmdp(rng)
        thetas = (rng.normal(size=2), rng.normal(size=2))
        constants, policy, score = finite.constants(cmdp, thetas)
        if horizon is None and Bounds(constants, policy).contraction >= 0.97:
            continue
        num_checked += 1
        bounds = Bounds(constants, policy, score, horizon)
        metric = finite.pair_metric(cmdp)
        apart = metric > 0
        q = [finite.q_function(cmdp, thetas[0], context, horizon) for context in (0, 1)]
        pi = finite.policy(cmdp, thetas[0])
        flat = q[0].ravel()
        value = np.sum(pi * q[0], axis=1)
        gaps = np.abs(cmdp.states[:, None] - cmdp.states)
        occupancies = [finite.occupancy(cmdp, thetas[0], context, horizon) for context in (0, 1)]
        elsewhere = finite.occupancy(cmdp, thetas[1], 0, horizon)
        measured = {
            "L_Q": np.max(np.abs(flat[:, None] - flat)[apart] / metric[apart]) / bounds.L_Q,
            "L_V": np.max(np.abs(value[:, None] - value)[gaps > 0] / gaps[gaps > 0]) / bounds.L_V,
            "L_omega_Q": np.max(np.abs(q[0] - q[1])) / cmdp.distance / bounds.L_omega_Q,
            "return": abs(float(cmdp.start @ np.sum(pi * (q[0] - q[1]), axis=1))) / cmdp.distance / bounds.L_omega_Q,
        }
        if horizon != 1:  # one step: the state has not moved yet
            in_theta = float(np.linalg.norm(thetas[0] - thetas[1]))
            measured["delta_omega"] = (
                finite.line_distance(cmdp.states, *occupancies) / cmdp.distance / bounds.L_delta_omega
            )
            measured["delta_theta"] = (
                finite.line_distance(cmdp.states, occupancies[0], elsewhere) / in_theta / bounds.L_delta_theta
            )
            if index % 15 == 0:  # a linear programme each
                joint = [(occupancy[:, None] * pi).ravel() for occupancy in occupancies]
                measured["zeta"] = finite.transport(metric, *joint) / cmdp.distance / bounds.L_zeta_omega
        gradients = [finite.gradient(cmdp, thetas[0], context, horizon) for context in (0, 1)]
        measured["gradient"] = np.max(np.abs(gradients[0] - gradients[1]) / cmdp.distance / bounds.L_gradient)
        for name, ratio in measured.items():
            assert ratio <= 1.0 + 1e-7, (name, index)
            tightest[name] = max(tightest[name], float(ratio))
    assert num_checked >= 80
    assert tightest["L_Q"] > 0.5
    assert tightest["L_omega_Q"] > 0.3


def test_violated_conditions_are_refused() -> None:
    steep = HAND_CMDP._replace(L_P=1.0)  # 0.8 * 1 * 1.5 = 1.2
    for name in NAMES:
        with pytest.raises(InputError, match=r"gamma L_P \(1 \+ L_pi\): 1\.2 must be below 1"):
            getattr(Bounds(steep, HAND_POLICY, HAND_SCORE), name)
        assert np.isfinite(getattr(Bounds(steep, HAND_POLICY, HAND_SCORE, horizon=10), name))
    for name in ("L_omega_Q", "L_eta", "L_gradient"):  # without a horizon the future must be discounted
        with pytest.raises(InputError, match="gamma: 1 must be below 1"):
            getattr(Bounds(HAND_CMDP._replace(gamma=1.0, L_P=0.1), HAND_POLICY, HAND_SCORE), name)


def test_infinite_constants_do_not_hurt_what_does_not_depend_on_them() -> None:
    """A discontinuous reward (L_r infinite) voids L_V; a context that leaves the dynamics alone does not need it."""
    free = HAND_CMDP._replace(L_r=np.inf, L_omega_P=0.0)
    bounds = Bounds(free, HAND_POLICY, horizon=5)
    assert bounds.L_V == bounds.L_gradient == np.inf  # nothing is known of the score
    assert bounds.L_omega_Q == pytest.approx(0.3 * (1 - 0.8**5) / 0.2)
    assert bounds.L_zeta_omega == 0.0


@pytest.mark.parametrize("horizon", [None, 1, 3])
def test_without_a_future_its_infinite_constants_do_not_matter(horizon: int | None) -> None:
    """gamma = 0: Q is the reward, so neither values nor laws of later states count; only the first state is occupied."""
    now = CmdpConstants(L_P=np.inf, L_r=np.inf, L_omega_P=np.inf, L_omega_r=0.3, gamma=0.0, R_max=np.inf)
    bounds = Bounds(now, HAND_POLICY, ScoreConstants(M=3.0, L=0.0), horizon)
    assert Bounds(now, HAND_POLICY).contraction == 0.0
    assert np.isinf(bounds.L_Q)
    assert bounds.L_omega_Q == pytest.approx(0.3)
    assert bounds.L_delta_omega == bounds.L_delta_theta == 0.0
    assert bounds.L_gradient == pytest.approx(0.9)


@pytest.mark.parametrize("seed", range(20))
def test_longer_horizons_cost_more_and_approach_the_infinite_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers, horizon = rng.uniform(0.0, 3.0, 10) * (rng.random(10) > 0.1), int(rng.integers(1, 9))
    cmdp, policy = CmdpConstants(*numbers[:6])._replace(gamma=rng.uniform(0.0, 0.66)), PolicyConstants(*numbers[6:8])
    cmdp = cmdp._replace(L_P=cmdp.L_P * 0.7 / max(Bounds(cmdp, policy).contraction, 0.7))
    short, long, nearly, infinite = (
        Bounds(cmdp, policy, ScoreConstants(*numbers[8:]), steps) for steps in (horizon, horizon + 1, 100, None)
    )
    for name in NAMES:
        assert getattr(short, name) <= getattr(long, name) * (1 + 1e-12) + 1e-300, name
        assert getattr(nearly, name) == pytest.approx(getattr(infinite, name), rel=1e-6, abs=1e-12), name


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
    printed = Bounds(cmdp, policy, score).L_gradient * (1 - gamma)
    assert printed == pytest.approx(1 / (1 - gamma))
    assert measured <= Bounds(cmdp, policy, score).L_gradient
    assert measured <= Bounds(cmdp, policy, score, horizon=600).L_gradient
    assert (measured > printed) == (gamma > np.sqrt(0.5))
