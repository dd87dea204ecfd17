"""Lipschitz constants of value functions, occupancies, returns and gradients with respect to the context.

Everything here is arithmetic on constants (paper, section "Context Lipschitz Continuity" and the appendix of proofs). States,
actions, parameters and contexts carry a metric each, state-action pairs the sum of the two, laws the Kantorovich (Wasserstein-1)
distance. Constants may be arrays, which broadcast: one call serves thousands of policies.

Every bound has two forms. Without a `horizon` it is the paper's infinite sum, which exists only where
`gamma L_P (1 + L_pi) < 1`. With a `horizon` H it is the finite sum behind it, which always exists, is smaller, and is what an
experiment with episodes of H steps has to be compared with.

Two formulas differ from the printed ones:
- Recurrence for L_omegaQ: the paper prints `gamma L_pi L_V`; its own derivation below that line, and the theorem, have
  `gamma L_omegaP L_V`.
- Gradient: the policy gradient theorem holds with the unnormalised occupancy, the paper's L_delta with the normalised one (its
  proof uses that the occupancy has mass one). The printed constant therefore lacks a factor 1/(1 - gamma): it is one of
  `(1 - gamma) grad J`, and a random walk whose reward is `omega * sign(s)` exceeds it (paper/tests/test_theory_constants.py).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep import InputError

Floats = NDArray[np.float64]
Number = float | Floats


class CmdpConstants(NamedTuple):
    """Constants of the family of tasks, over all contexts that are compared."""

    L_P: Number  # next-state law, in the state-action pair
    L_r: Number  # reward, in the state-action pair
    L_omega_P: Number  # next-state law, in the context, at any fixed state-action pair
    L_omega_r: Number  # reward, in the context, at any fixed state-action pair
    gamma: Number  # discount
    R_max: Number  # bound of the absolute reward


class PolicyConstants(NamedTuple):
    """Constants of the policy."""

    L_pi: Number  # action law, in the state
    L_pi_theta: Number  # action law, in the parameters


class ScoreConstants(NamedTuple):
    """Constants of the score d log pi / d theta_i; the last axis of arrays is the coordinate i.

    A Gaussian score is unbounded. `paper.theory.policy` gives numbers that keep the theorem true for it.
    """

    M: Number = np.inf  # bound of the absolute score
    L: Number = np.inf  # its Lipschitz constant, in the state-action pair


Constants = tuple[CmdpConstants, PolicyConstants, ScoreConstants]


@dataclass(frozen=True, eq=False)
class Bounds:
    """The constants of the two theorems; each is computed, and its condition checked, on first use.

    Args:
        cmdp, policy: constants of the tasks and of the policy.
        score: constants of the score, for `L_eta` and `L_gradient`; unknown by default.
        horizon: H of the finite sums; None for the infinite ones.
    """

    cmdp: CmdpConstants
    policy: PolicyConstants
    score: ScoreConstants = ScoreConstants()
    horizon: int | None = None

    @cached_property
    def growth(self) -> Floats:
        """`L_P (1 + L_pi)`: the Lipschitz constant of one step under the policy."""
        return times(self.cmdp.L_P, self._reach)

    @cached_property
    def contraction(self) -> Floats:
        """`gamma L_P (1 + L_pi)`: how much of a state difference one discounted step keeps at most."""
        return times(self.cmdp.gamma, self.growth)

    @cached_property
    def L_Q(self) -> Number:
        """`L_r / (1 - gamma L_P (1 + L_pi))`; with a horizon `L_r sum_{k<H} (gamma L_P (1 + L_pi))^k`."""
        return self.cmdp.L_r / self._lost_share if self.horizon is None else self.steps_to_go[-1][0]

    @property
    def L_V(self) -> Number:
        """`(1 + L_pi) L_Q`, in the state (the paper says "the joint space", but V has no action)."""
        return times(self._reach, self.L_Q)

    @cached_property
    def L_omega_Q(self) -> Number:
        """Theorem 1: `(L_omegar + gamma L_omegaP L_V) / (1 - gamma)`, of Q and, as the start is shared, of the return.

        With a horizon, the recurrence `L^(k+1) = L_omegar + gamma L_omegaP L_V^(k) + gamma L^(k)` from `L^(0) = 0`.
        """
        if self.horizon is not None:
            return self.steps_to_go[-1][1]
        through_states = times(self.cmdp.gamma, times(self.cmdp.L_omega_P, self.L_V))
        return (self.cmdp.L_omega_r + through_states) / self._forgotten_share

    @property
    def L_delta_theta(self) -> Number:
        """`gamma L_P L_pi(theta) / (1 - gamma L_P (1 + L_pi))`, of the normalised discounted occupancy."""
        return self._occupancy(times(self.cmdp.L_P, self.policy.L_pi_theta))

    @property
    def L_delta_omega(self) -> Number:
        """`gamma L_omegaP / (1 - gamma L_P (1 + L_pi))`, of the normalised discounted occupancy."""
        return self._occupancy(self.cmdp.L_omega_P)

    @property
    def L_zeta_omega(self) -> Number:
        """`(1 + L_pi) L_delta(omega)`, of the joint law of state and action."""
        return times(self._reach, self.L_delta_omega)

    @property
    def L_eta(self) -> Number:
        """`R_max/(1 - gamma) L_score + M L_Q`, of eta = score * Q in the state-action pair."""
        is_infinite = self.horizon is None
        largest = self.cmdp.R_max / self._forgotten_share if is_infinite else self.steps_to_go[-1][2]
        return self._eta(largest, self.L_Q)

    @cached_property
    def L_gradient(self) -> Number:
        """`(L_eta (1 + L_pi) L_delta(omega) + M L_omegaQ) / (1 - gamma)` for every coordinate of the gradient.

        The paper prints it without the division (module docstring). With a horizon,
        `sum_t gamma^t [L_eta^(H-t) (1 + L_pi) L_t + M L_omegaQ^(H-t)]`, where the law of the state at step t is L_t-Lipschitz
        in the context: `L_0 = 0`, `L_{t+1} = L_P (1 + L_pi) L_t + L_omegaP`.
        """
        if self.horizon is None:
            through_states = times(self.L_eta, self.L_zeta_omega)
            return (through_states + times(self.score.M, self.L_omega_Q)) / self._forgotten_share
        total, weight = np.zeros(()), np.ones_like(np.asarray(self.cmdp.gamma, np.float64))
        for t, drift in enumerate(self._state_laws(self.cmdp.L_omega_P, self.horizon)):
            of_q, in_context, largest = self.steps_to_go[self.horizon - t]
            through_states = times(self._eta(largest, of_q), times(self._reach, drift))
            total = total + times(weight, through_states + times(self.score.M, in_context))
            weight = weight * self.cmdp.gamma
        return total

    @cached_property
    def steps_to_go(self) -> list[tuple[Floats, Floats, Floats]]:
        """The recurrences behind Theorem 1: L_Q, L_omegaQ and Q_max with k = 0, ..., H steps left.

        L_Q^(k+1) = L_r + gamma L_P (1 + L_pi) L_Q^(k),  L_omegaQ^(k+1) = L_omegar + gamma L_omegaP L_V^(k) + gamma L_omegaQ^(k)
        """
        cmdp, rows = self.cmdp, [(self._zero, self._zero, self._zero)]
        with np.errstate(over="ignore"):  # an infinite constant is a true answer: the bound is void
            for _ in range(self.horizon or 0):
                of_q, in_context, largest = rows[-1]
                through_states = times(cmdp.L_omega_P, times(self._reach, of_q))
                of_q = cmdp.L_r + times(self.contraction, of_q)
                in_context = cmdp.L_omega_r + times(cmdp.gamma, through_states + in_context)
                rows.append((of_q, in_context, cmdp.R_max + times(cmdp.gamma, largest)))
        return rows

    @property
    def _reach(self) -> Floats:
        return 1.0 + np.asarray(self.policy.L_pi, np.float64)

    @property
    def _zero(self) -> Floats:
        return np.zeros(np.broadcast_shapes(*(np.shape(value) for value in (*self.cmdp, *self.policy))))

    def _eta(self, largest_q: Number, of_q: Number) -> Floats:
        return times(largest_q, self.score.L) + times(self.score.M, of_q)

    def _occupancy(self, one_step: Number) -> Number:
        gamma = np.asarray(self.cmdp.gamma, np.float64)
        if self.horizon is None:
            return times(gamma, one_step) / self._lost_share
        weights = [gamma**t for t in range(self.horizon)]
        laws = self._state_laws(one_step, self.horizon)
        return sum(times(weight, law) for weight, law in zip(weights, laws, strict=True)) / sum(weights)

    def _state_laws(self, one_step: Number, horizon: int) -> list[Floats]:
        """Constants of the laws of s_0, ..., s_{H-1}: `L_0 = 0`, `L_{t+1} = L_P (1 + L_pi) L_t + one_step`."""
        laws = [self._zero]
        with np.errstate(over="ignore"):
            for _ in range(horizon - 1):
                laws.append(times(self.growth, laws[-1]) + one_step)
        return laws

    @property
    def _lost_share(self) -> Floats:
        """`1 - gamma L_P (1 + L_pi)`, which must be positive without a horizon."""
        largest = float(np.max(self.contraction))
        if not largest < 1.0:
            raise InputError(
                f"gamma L_P (1 + L_pi): {largest:g} must be below 1 for the infinite-horizon constants to exist; "
                "give a horizon to get the finite ones."
            )
        return 1.0 - self.contraction

    @property
    def _forgotten_share(self) -> Floats:
        """`1 - gamma`, which must be positive without a horizon."""
        gamma = np.asarray(self.cmdp.gamma, np.float64)
        if not np.all(gamma < 1.0):
            raise InputError(f"gamma: {float(np.max(gamma)):g} must be below 1 without a horizon.")
        return 1.0 - gamma


def per_coordinate(cmdp: CmdpConstants, policy: PolicyConstants) -> tuple[CmdpConstants, PolicyConstants]:
    """Add a last axis of length one, so that batched constants broadcast against scores of shape (..., parameters)."""
    return (
        CmdpConstants(*(np.asarray(value, np.float64)[..., None] for value in cmdp)),
        PolicyConstants(*(np.asarray(value, np.float64)[..., None] for value in policy)),
    )


def times(left: Number, right: Number) -> Floats:
    """Multiply, with zero winning over infinity: what does not depend on something is not hurt by its constant."""
    left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        product = left * right
    return np.where((left == 0.0) | (right == 0.0), 0.0, product)
