"""Small finite contextual MDPs on two lines, with every constant by enumeration and every quantity by linear algebra.

States and actions are points of the real line, so Kantorovich distances are sums of differences of distribution functions.
Nothing here uses the code under test: it is the independent reference.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from paper.theory.constants import CmdpConstants, PolicyConstants, ScoreConstants

Floats = NDArray[np.float64]


class FiniteCmdp(NamedTuple):
    states: Floats  # (S,), sorted
    actions: Floats  # (A,), sorted
    laws: Floats  # (2, S, A, S): one law a context
    rewards: Floats  # (2, S, A)
    start: Floats  # (S,)
    features: Floats  # (S, A, parameters)
    gamma: float
    distance: float  # between the two contexts


def random_cmdp(
    rng: np.random.Generator, num_states: int = 5, num_actions: int = 3, num_parameters: int = 2
) -> FiniteCmdp:
    shape = (num_states, num_actions)
    common = rng.dirichlet(np.ones(num_states))
    own = rng.dirichlet(np.ones(num_states), size=shape)
    other = rng.dirichlet(np.ones(num_states), size=(2, *shape))
    mixing = rng.uniform(0.02, 0.4)
    tilt = rng.uniform(0.0, 0.3)
    laws = (1 - mixing) * common + mixing * ((1 - tilt) * own + tilt * other)
    rewards = rng.normal(size=shape) + rng.uniform(0.0, 0.5) * rng.normal(size=(2, *shape))
    return FiniteCmdp(
        np.cumsum(rng.uniform(0.3, 1.0, num_states)),
        np.cumsum(rng.uniform(0.3, 1.0, num_actions)),
        laws,
        rewards,
        rng.dirichlet(np.ones(num_states)),
        rng.uniform(0.1, 1.0) * rng.normal(size=(*shape, num_parameters)),
        rng.uniform(0.3, 0.95),
        rng.uniform(0.1, 1.0),
    )


def line_distance(points: Floats, left: Floats, right: Floats) -> Floats:
    """Kantorovich distance of laws on sorted points of the line (last axis)."""
    return np.sum(np.abs(np.cumsum(left - right, axis=-1))[..., :-1] * np.diff(points), axis=-1)


def pair_metric(cmdp: FiniteCmdp) -> Floats:
    """Distances of state-action pairs: (S A, S A), the sum metric."""
    s = np.abs(cmdp.states[:, None] - cmdp.states)
    a = np.abs(cmdp.actions[:, None] - cmdp.actions)
    size = s.shape[0] * a.shape[0]
    return (s[:, None, :, None] + a[None, :, None, :]).reshape(size, size)


def policy(cmdp: FiniteCmdp, theta: Floats) -> Floats:
    logits = cmdp.features @ theta
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def q_function(cmdp: FiniteCmdp, theta: Floats, context: int, horizon: int | None) -> Floats:
    pi, law, reward = policy(cmdp, theta), cmdp.laws[context], cmdp.rewards[context]
    if horizon is None:
        step = np.einsum("sa,sat->st", pi, law)
        value = np.linalg.solve(np.eye(len(pi)) - cmdp.gamma * step, np.sum(pi * reward, axis=1))
        return reward + cmdp.gamma * law @ value
    q = np.zeros_like(reward)
    for _ in range(horizon):
        q = reward + cmdp.gamma * law @ np.sum(pi * q, axis=1)
    return q


def mean_return(cmdp: FiniteCmdp, theta: Floats, context: int, horizon: int | None) -> float:
    return float(cmdp.start @ np.sum(policy(cmdp, theta) * q_function(cmdp, theta, context, horizon), axis=1))


def occupancy(cmdp: FiniteCmdp, theta: Floats, context: int, horizon: int | None) -> Floats:
    """The normalised discounted occupancy, (S,)."""
    step = np.einsum("sa,sat->st", policy(cmdp, theta), cmdp.laws[context])
    if horizon is None:
        return (1 - cmdp.gamma) * np.linalg.solve((np.eye(len(step)) - cmdp.gamma * step).T, cmdp.start)
    laws = [cmdp.start]
    for _ in range(horizon - 1):
        laws.append(laws[-1] @ step)
    weights = cmdp.gamma ** np.arange(horizon)
    return weights @ np.stack(laws) / weights.sum()


def gradient(cmdp: FiniteCmdp, theta: Floats, context: int, horizon: int | None) -> Floats:
    """dJ/dtheta by central differences of the exact return."""
    slopes = []
    for move in 1e-5 * np.eye(len(theta)):
        up, down = (mean_return(cmdp, theta + sign * move, context, horizon) for sign in (1, -1))
        slopes.append((up - down) / 2e-5)
    return np.array(slopes)


def transport(metric: Floats, left: Floats, right: Floats) -> float:
    """Kantorovich distance on a finite metric space by its dual linear programme."""
    size = len(left)
    i, j = np.nonzero(~np.eye(size, dtype=bool))
    rows = np.zeros((len(i), size))
    rows[np.arange(len(i)), i] = 1.0
    rows[np.arange(len(i)), j] = -1.0
    result = linprog(-(left - right), A_ub=rows, b_ub=metric[i, j], bounds=[(0.0, 0.0)] + [(None, None)] * (size - 1))
    return float(-result.fun)


def constants(cmdp: FiniteCmdp, thetas: tuple[Floats, Floats]) -> tuple[CmdpConstants, PolicyConstants, ScoreConstants]:
    """Every constant by looking at every pair."""
    metric = pair_metric(cmdp)
    size = len(metric)
    apart = ~np.eye(size, dtype=bool)
    laws = cmdp.laws.reshape(2, size, -1)
    rewards = cmdp.rewards.reshape(2, size)
    law_distance = line_distance(cmdp.states, laws[:, :, None], laws[:, None, :])
    pis = [policy(cmdp, theta) for theta in thetas]
    state_metric = np.abs(cmdp.states[:, None] - cmdp.states) + np.eye(len(cmdp.states))  # equal states have equal laws
    in_theta = np.max(line_distance(cmdp.actions, *pis)) / np.linalg.norm(thetas[0] - thetas[1])
    features = cmdp.features
    scores = np.stack([(features - np.einsum("sa,sap->sp", pi, features)[:, None]).reshape(size, -1) for pi in pis])
    steps = np.abs(scores[:, :, None] - scores[:, None, :])[:, apart] / metric[apart][:, None]
    return (
        CmdpConstants(
            L_P=float(np.max(law_distance[:, apart] / metric[apart])),
            L_r=float(np.max(np.abs(rewards[:, :, None] - rewards[:, None, :])[:, apart] / metric[apart])),
            L_omega_P=float(np.max(line_distance(cmdp.states, laws[0], laws[1]))) / cmdp.distance,
            L_omega_r=float(np.max(np.abs(rewards[0] - rewards[1]))) / cmdp.distance,
            gamma=cmdp.gamma,
            R_max=float(np.max(np.abs(rewards))),
        ),
        PolicyConstants(
            L_pi=max(np.max(line_distance(cmdp.actions, pi[:, None], pi[None]) / state_metric) for pi in pis),
            L_pi_theta=in_theta,
        ),
        ScoreConstants(M=np.max(np.abs(scores), axis=(0, 1)), L=np.max(steps, axis=(0, 1))),
    )
