"""Lipschitz constants of value functions, occupancies, returns and gradients with respect to the context.

Everything here is arithmetic on constants (paper, section "Context Lipschitz Continuity" and the appendix of proofs). States,
actions, parameters and contexts carry a metric each, state-action pairs the sum of the two, laws the Kantorovich (Wasserstein-1)
distance. Arguments may be arrays, which broadcast: one call serves thousands of policies.

Every function has two forms. Without a `horizon` it is the paper's infinite sum, which exists only where
`gamma L_P (1 + L_pi) < 1`. With a `horizon` H it is the finite sum behind it, which always exists, is smaller, and is what an
experiment with episodes of H steps has to be compared with.

Two formulas differ from the printed ones:
- Recurrence for L_omegaQ: the paper prints `gamma L_pi L_V`; its own derivation below that line, and the theorem, have
  `gamma L_omegaP L_V`.
- Gradient: the policy gradient theorem holds with the unnormalised occupancy, the paper's L_delta with the normalised one (its
  proof uses that the occupancy has mass one). The printed constant therefore lacks a factor 1/(1 - gamma) and can be
  exceeded; `printed_gradient_constant` keeps it for comparison.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep.errors import InputError

Number = float | NDArray[np.float64]


class CmdpConstants(NamedTuple):
    """What is known of the family of tasks, over all contexts that are compared."""

    L_P: Number  # next-state law, in the state-action pair
    L_r: Number  # reward, in the state-action pair
    L_omega_P: Number  # next-state law, in the context, at any fixed state-action pair
    L_omega_r: Number  # reward, in the context, at any fixed state-action pair
    gamma: Number  # discount
    R_max: Number  # bound of the absolute reward


class PolicyConstants(NamedTuple):
    """What is known of the policy."""

    L_pi: Number  # action law, in the state
    L_pi_theta: Number  # action law, in the parameters


class ScoreConstants(NamedTuple):
    """What is known of the score d log pi / d theta_i, one entry a coordinate i where they are arrays.

    A Gaussian score is unbounded. `metastep.theory.scores` gives numbers that keep the theorem true for it.
    """

    M: Number  # bound of the absolute score
    L: Number  # its Lipschitz constant, in the state-action pair


class StepsToGo(NamedTuple):
    """Constants of the value functions with k = 0, 1, ..., H steps left; the first axis is k."""

    L_Q: NDArray[np.float64]  # (steps + 1, ...)
    L_V: NDArray[np.float64]
    L_omega_Q: NDArray[np.float64]
    Q_max: NDArray[np.float64]


class Bounds(NamedTuple):
    """All constants of the two theorems."""

    L_Q: Number
    L_V: Number
    L_omega_Q: Number  # of Q and, as the start is shared, of the return
    L_delta_theta: Number
    L_delta_omega: Number
    L_zeta_omega: Number
    L_eta: Number
    L_gradient: Number


def check_constants(
    cmdp: CmdpConstants, policy: PolicyConstants | None = None, score: ScoreConstants | None = None
) -> None:
    """Refuse negative or undefined constants and a discount outside [0, 1], naming the field."""
    for record in (cmdp, policy, score):
        if record is None:
            continue
        for name, value in zip(record._fields, record, strict=True):
            array = np.asarray(value, np.float64)
            if array.size and not np.all(array >= 0.0):
                raise InputError(f"{name}: {float(np.min(array)):g} must be a number that is at least 0.")
    if np.any(np.asarray(cmdp.gamma) > 1.0):
        raise InputError(f"gamma: {float(np.max(cmdp.gamma)):g} must lie in [0, 1].")


def per_coordinate(cmdp: CmdpConstants, policy: PolicyConstants) -> tuple[CmdpConstants, PolicyConstants]:
    """Add a last axis of length one, so that batched constants broadcast against scores of shape (..., parameters)."""
    return (
        CmdpConstants(*(np.asarray(value, np.float64)[..., None] for value in cmdp)),
        PolicyConstants(*(np.asarray(value, np.float64)[..., None] for value in policy)),
    )


def contraction(cmdp: CmdpConstants, policy: PolicyConstants) -> Number:
    """`gamma L_P (1 + L_pi)`: how much of a state difference one discounted step keeps at most."""
    return times(cmdp.gamma, growth(cmdp, policy))


def growth(cmdp: CmdpConstants, policy: PolicyConstants) -> Number:
    """`L_P (1 + L_pi)`: the Lipschitz constant of one step under the policy."""
    return times(cmdp.L_P, 1.0 + np.asarray(policy.L_pi, np.float64))


def q_constant(cmdp: CmdpConstants, policy: PolicyConstants, horizon: int | None = None) -> Number:
    """`L_Q = L_r / (1 - gamma L_P (1 + L_pi))`; with a horizon `L_r sum_{k<H} (gamma L_P (1 + L_pi))^k`."""
    if horizon is not None:
        return steps_to_go(cmdp, policy, horizon).L_Q[-1]
    _require_contraction(cmdp, policy)
    return cmdp.L_r / (1.0 - contraction(cmdp, policy))


def v_constant(cmdp: CmdpConstants, policy: PolicyConstants, horizon: int | None = None) -> Number:
    """`L_V = (1 + L_pi) L_Q`, in the state (the paper says "the joint space", but V has no action)."""
    return times(1.0 + np.asarray(policy.L_pi, np.float64), q_constant(cmdp, policy, horizon))


def context_q_constant(cmdp: CmdpConstants, policy: PolicyConstants, horizon: int | None = None) -> Number:
    """Theorem 1: `L_omegaQ = (L_omegar + gamma L_omegaP L_V) / (1 - gamma)`, of Q and of the return.

    With a horizon, the recurrence `L^(k+1) = L_omegar + gamma L_omegaP L_V^(k) + gamma L^(k)` from `L^(0) = 0`.
    """
    if horizon is not None:
        return steps_to_go(cmdp, policy, horizon).L_omega_Q[-1]
    _require_discount(cmdp)
    value = v_constant(cmdp, policy)
    through_states = times(cmdp.gamma, times(cmdp.L_omega_P, value))
    return (cmdp.L_omega_r + through_states) / (1.0 - np.asarray(cmdp.gamma))


def occupancy_theta_constant(cmdp: CmdpConstants, policy: PolicyConstants, horizon: int | None = None) -> Number:
    """`L_delta(theta) = gamma L_P L_pi(theta) / (1 - gamma L_P (1 + L_pi))`, of the normalised discounted occupancy."""
    return _occupancy(cmdp, policy, times(cmdp.L_P, policy.L_pi_theta), horizon)


def occupancy_context_constant(cmdp: CmdpConstants, policy: PolicyConstants, horizon: int | None = None) -> Number:
    """`L_delta(omega) = gamma L_omegaP / (1 - gamma L_P (1 + L_pi))`, of the normalised discounted occupancy."""
    return _occupancy(cmdp, policy, cmdp.L_omega_P, horizon)


def joint_context_constant(cmdp: CmdpConstants, policy: PolicyConstants, horizon: int | None = None) -> Number:
    """`L_zeta(omega) = (1 + L_pi) L_delta(omega)`, of the joint law of state and action."""
    return times(1.0 + np.asarray(policy.L_pi, np.float64), occupancy_context_constant(cmdp, policy, horizon))


def eta_constant(
    cmdp: CmdpConstants, policy: PolicyConstants, score: ScoreConstants, horizon: int | None = None
) -> Number:
    """`L_eta = R_max/(1 - gamma) L_score + M L_Q`, of eta = score * Q in the state-action pair."""
    check_constants(cmdp, policy, score)
    if horizon is not None:
        constants = steps_to_go(cmdp, policy, horizon)
        return times(constants.Q_max[-1], score.L) + times(score.M, constants.L_Q[-1])
    _require_discount(cmdp)
    largest_q = cmdp.R_max / (1.0 - np.asarray(cmdp.gamma))
    return times(largest_q, score.L) + times(score.M, q_constant(cmdp, policy))


def gradient_constant(
    cmdp: CmdpConstants, policy: PolicyConstants, score: ScoreConstants, horizon: int | None = None
) -> Number:
    """`L_gradJ = (L_eta (1 + L_pi) L_delta(omega) + M L_omegaQ) / (1 - gamma)` for every coordinate of the gradient.

    The paper prints it without the division (module docstring). With a horizon,
    `sum_t gamma^t [L_eta^(H-t) (1 + L_pi) L_t + M L_omegaQ^(H-t)]`, where the law of the state at step t is L_t-Lipschitz in
    the context: `L_0 = 0`, `L_{t+1} = L_P (1 + L_pi) L_t + L_omegaP`.
    """
    check_constants(cmdp, policy, score)
    reach = 1.0 + np.asarray(policy.L_pi, np.float64)
    if horizon is None:
        _require_discount(cmdp)
        through_states = times(eta_constant(cmdp, policy, score), joint_context_constant(cmdp, policy))
        through_values = times(score.M, context_q_constant(cmdp, policy))
        return (through_states + through_values) / (1.0 - np.asarray(cmdp.gamma))
    left = steps_to_go(cmdp, policy, horizon)
    drifts = state_law_constants(cmdp, policy, cmdp.L_omega_P, horizon)
    total: Number = 0.0
    weight = np.ones_like(np.asarray(cmdp.gamma, np.float64))
    for t in range(horizon):
        k = horizon - t
        eta = times(left.Q_max[k], score.L) + times(score.M, left.L_Q[k])
        total = total + times(weight, times(eta, times(reach, drifts[t])) + times(score.M, left.L_omega_Q[k]))
        weight = weight * cmdp.gamma
    return total


def printed_gradient_constant(cmdp: CmdpConstants, policy: PolicyConstants, score: ScoreConstants) -> Number:
    """`L_eta (1 + L_pi) L_delta(omega) + M L_omegaQ` as the paper prints it: a constant of `(1 - gamma) grad J`, not of `grad J`.

    A random walk whose reward is `omega * sign(s)` exceeds it (tests/theory/test_theory_printed.py).
    """
    return gradient_constant(cmdp, policy, score) * (1.0 - np.asarray(cmdp.gamma))


def all_bounds(
    cmdp: CmdpConstants, policy: PolicyConstants, score: ScoreConstants, horizon: int | None = None
) -> Bounds:
    """Every constant at once."""
    return Bounds(
        L_Q=q_constant(cmdp, policy, horizon),
        L_V=v_constant(cmdp, policy, horizon),
        L_omega_Q=context_q_constant(cmdp, policy, horizon),
        L_delta_theta=occupancy_theta_constant(cmdp, policy, horizon),
        L_delta_omega=occupancy_context_constant(cmdp, policy, horizon),
        L_zeta_omega=joint_context_constant(cmdp, policy, horizon),
        L_eta=eta_constant(cmdp, policy, score, horizon),
        L_gradient=gradient_constant(cmdp, policy, score, horizon),
    )


def steps_to_go(cmdp: CmdpConstants, policy: PolicyConstants, horizon: int) -> StepsToGo:
    """The recurrences behind Theorem 1, from nothing left to `horizon` steps left.

    L_Q^(k+1) = L_r + gamma L_P (1 + L_pi) L_Q^(k),    L_omegaQ^(k+1) = L_omegar + gamma L_omegaP L_V^(k) + gamma L_omegaQ^(k)
    """
    check_constants(cmdp, policy)
    _require_horizon(horizon)
    gamma, reach = np.asarray(cmdp.gamma, np.float64), 1.0 + np.asarray(policy.L_pi, np.float64)
    keeps = contraction(cmdp, policy)
    zero = np.zeros(np.broadcast_shapes(*(np.shape(value) for value in (*cmdp, *policy))))
    rows = [(zero, zero, zero, zero)]
    with np.errstate(over="ignore"):  # an infinite constant is a true answer: the bound is void
        for _ in range(horizon):
            of_q, of_v, in_context, largest = rows[-1]
            of_q = cmdp.L_r + times(keeps, of_q)
            in_context = cmdp.L_omega_r + times(gamma, times(cmdp.L_omega_P, of_v) + in_context)
            largest = cmdp.R_max + times(gamma, largest)
            rows.append((of_q + zero, times(reach, of_q) + zero, in_context + zero, largest + zero))
    return StepsToGo(*(np.stack(column) for column in zip(*rows, strict=True)))


def state_law_constants(
    cmdp: CmdpConstants, policy: PolicyConstants, one_step: Number, horizon: int
) -> list[NDArray[np.float64]]:
    """Lipschitz constants of the laws of s_0, ..., s_{H-1}: `L_0 = 0`, `L_{t+1} = L_P (1 + L_pi) L_t + one_step`."""
    _require_horizon(horizon)
    constants = [np.zeros(np.broadcast_shapes(np.shape(one_step), *(np.shape(value) for value in (*cmdp, *policy))))]
    with np.errstate(over="ignore"):
        for _ in range(horizon - 1):
            constants.append(times(growth(cmdp, policy), constants[-1]) + one_step)
    return constants


def times(left: Number, right: Number) -> NDArray[np.float64]:
    """A product in which zero wins over infinity: what does not depend on a thing is not hurt by its constant."""
    left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        product = left * right
    return np.where((left == 0.0) | (right == 0.0), 0.0, product)


def _occupancy(cmdp: CmdpConstants, policy: PolicyConstants, one_step: Number, horizon: int | None) -> Number:
    check_constants(cmdp, policy)
    if horizon is None:
        _require_contraction(cmdp, policy)
        return times(cmdp.gamma, one_step) / (1.0 - contraction(cmdp, policy))
    laws = state_law_constants(cmdp, policy, one_step, horizon)
    weights = [np.asarray(cmdp.gamma, np.float64) ** t for t in range(horizon)]
    return sum(times(weight, law) for weight, law in zip(weights, laws, strict=True)) / sum(weights)


def _require_contraction(cmdp: CmdpConstants, policy: PolicyConstants) -> None:
    check_constants(cmdp, policy)
    largest = float(np.max(contraction(cmdp, policy)))
    if not largest < 1.0:
        raise InputError(
            f"gamma L_P (1 + L_pi): {largest:g} must be below 1 for the infinite-horizon constants to exist; "
            "give a horizon to get the finite ones."
        )


def _require_discount(cmdp: CmdpConstants) -> None:
    if not np.all(np.asarray(cmdp.gamma) < 1.0):
        raise InputError(f"gamma: {float(np.max(cmdp.gamma)):g} must be below 1 without a horizon.")


def _require_horizon(horizon: int) -> None:
    if horizon < 1:
        raise InputError(f"horizon: {horizon} must be at least 1.")
