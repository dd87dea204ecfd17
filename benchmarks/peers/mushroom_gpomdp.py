"""MushroomRL's GPOMDP through its Core, on the same CartPole and Nav2D written as its Environment class.

MushroomRL's own CartPole is another task (a continuous force, no track), so the dynamics are Gymnasium's, in plain Python
floats, which is the fastest a single episode can be stepped there. Its GPOMDP computes the return and the gradient with the
optimal baseline, and no natural gradient: the comparison is in its favour. Runs on one core.

Its baseline counts only the episodes that are still alive at a step. CartPole pays 1 in every step, so the baseline equals
the reward and the gradient it returns there is zero; the arithmetic behind it is done all the same.
"""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import Any

import numpy as np
from mushroom_rl.algorithms.policy_search import GPOMDP
from mushroom_rl.approximators import Regressor
from mushroom_rl.approximators.parametric import LinearApproximator
from mushroom_rl.core import Core, Environment, MDPInfo
from mushroom_rl.policy import GaussianPolicy
from mushroom_rl.utils.spaces import Box

from common import (
    DISCOUNT,
    SIGMA,
    SIZES,
    Estimates,
    Floats,
    Job,
    from_arguments,
    learners,
    measure_each,
    print_record,
    rollout_record,
)  # fmt: skip

MAX_ANGLE = 12.0 * 2.0 * math.pi / 360.0


class CartPole(Environment):
    """Gymnasium's CartPole; the state begins with a 1 for the policy's bias."""

    def __init__(self, horizon: int) -> None:
        high = np.full(5, np.inf)
        super().__init__(MDPInfo(Box(-high, high), Box(-high[:1], high[:1]), DISCOUNT, horizon))
        self.context = np.array([0.1, 0.5])
        self._state = (0.0, 0.0, 0.0, 0.0)
        self._rng = np.random.default_rng(0)

    def reset(self, state: Any = None) -> Floats:
        self._state = tuple(self._rng.uniform(-0.05, 0.05, 4).tolist())
        return np.array((1.0, *self._state))

    def step(self, action: Floats) -> tuple[Floats, float, bool, dict[str, Any]]:
        """Push right when the action exceeds 0.5, left otherwise."""
        x, x_dot, angle, angle_dot = self._state
        mass, length = self.context
        force = 10.0 if action[0] > 0.5 else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        total = 1.0 + mass
        push = (force + mass * length * angle_dot * angle_dot * sin) / total
        angle_acceleration = (9.8 * sin - cos * push) / (length * (4.0 / 3.0 - mass * cos * cos / total))
        acceleration = push - mass * length * angle_acceleration * cos / total
        self._state = (
            x + 0.02 * x_dot,
            x_dot + 0.02 * acceleration,
            angle + 0.02 * angle_dot,
            angle_dot + 0.02 * angle_acceleration,
        )
        ended = abs(self._state[0]) > 2.4 or abs(self._state[2]) > MAX_ANGLE
        return np.array((1.0, *self._state)), 1.0, ended, {}


class Nav2D(Environment):
    """A point that walks to a goal; the state begins with a 1 for the policy's bias."""

    def __init__(self, horizon: int) -> None:
        high = np.full(3, np.inf)
        super().__init__(MDPInfo(Box(-high, high), Box(-high[:2], high[:2]), DISCOUNT, horizon))
        self.context = np.zeros(2)
        self._x = self._y = 0.0

    def reset(self, state: Any = None) -> Floats:
        self._x = self._y = 0.0
        return np.array((1.0, 0.0, 0.0))

    def step(self, action: Floats) -> tuple[Floats, float, bool, dict[str, Any]]:
        self._x += min(max(action[0], -0.1), 0.1)
        self._y += min(max(action[1], -0.1), 0.1)
        distance = math.hypot(self.context[0] - self._x, self.context[1] - self._y)
        return np.array((1.0, self._x, self._y)), -distance, distance <= 0.01, {}


class KeepGradient:
    """In an optimiser's place: keeps the gradient and leaves the policy as it is, so that every fit is one estimate."""

    def __init__(self) -> None:
        self.gradient = np.zeros(0)

    def __call__(self, theta: Floats, gradient: Floats) -> Floats:
        self.gradient = gradient
        return theta


def main() -> None:
    job, _ = from_arguments(Job)
    size = SIZES[job.env]
    theta, context = learners(job.env, job.learners)
    mdp = (CartPole if job.env == "cartpole" else Nav2D)(job.horizon)
    regressor = Regressor(
        LinearApproximator, input_shape=(1 + size.num_observations,), output_shape=(size.num_actions,)
    )
    policy = GaussianPolicy(regressor, SIGMA**2 * np.eye(size.num_actions))
    keep = KeepGradient()
    episodes: list[tuple[float, int]] = []  # discounted return and length of each episode of the current estimate

    def note_returns(dataset: list[Any]) -> None:
        total, discount, steps = 0.0, 1.0, 0
        for _, _, reward, _, _, last in dataset:
            total, discount, steps = total + discount * reward, discount * DISCOUNT, steps + 1
            if last:
                episodes.append((total, steps))
                total, discount, steps = 0.0, 1.0, 0

    core = Core(GPOMDP(mdp.info, policy, keep), mdp, callbacks_fit=[note_returns])
    np.random.seed(0)  # noqa: NPY002 (MushroomRL draws from the global generator)

    def estimate(index: int) -> Estimates:
        mdp.context = context[index]
        bias, weights = theta[index, : size.num_actions], theta[index, size.num_actions :]
        # MushroomRL's weights are one row (bias, weights) for every action.
        rows = np.concatenate([bias[:, None], weights.reshape(size.num_actions, -1)], axis=1)
        policy.set_weights(rows.ravel())
        episodes.clear()
        core.learn(n_episodes=job.episodes, n_episodes_per_fit=job.episodes, quiet=True)
        gradient = keep.gradient.reshape(size.num_actions, -1)
        flat = np.concatenate([gradient[:, 0], gradient[:, 1:].ravel()])
        return Estimates(
            np.array([np.mean([total for total, _ in episodes])]), flat[None], None, sum(steps for _, steps in episodes)
        )

    rates, estimates = measure_each(job, estimate)
    note = "no natural gradient"
    if not np.abs(estimates.gradient).max() > 1e-9:
        note += "; its gradient is zero here (baseline over living episodes only)"
    print_record(rollout_record(version("mushroom-rl"), rates, estimates, note))


if __name__ == "__main__":
    main()
