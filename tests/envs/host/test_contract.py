"""Each way to break the protocol of environments on the host gets its own sentence."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from metastep.envs.contexts import ContextSpace
from metastep.envs.host import HostStep
from metastep.testing import check_env, check_host_env
from tests.testing.variants import RNG, refused, then, variant


class Walks:
    """A number that moves by the clipped action, a normal and the slope, and ends beyond the border."""

    def __init__(self, env, context, noise):
        self.env, self.context = env, context
        self.place = noise[..., 0].astype(np.float64)

    def observe(self):
        return np.stack([self.place, self.place**2], axis=-1)

    def step(self, action, noise, alive):
        move = np.clip(action[..., 0], -0.5, 0.5) + 0.1 * noise[..., 0] - self.context[:, 0]
        self.place = np.where(alive, self.place + move, self.place)
        return HostStep(-np.abs(self.place), np.abs(self.place) > self.context[:, 1])


@dataclass(frozen=True)
class Walk:
    context_space: Any = ContextSpace(("slope", "border"), (0.0, 1.0), (0.1, 2.0))
    name: str = "walk"
    num_observations: Any = 2
    num_actions: Any = 1
    reset_noise: Any = 1
    step_noise: Any = 1
    packages: Any = ()
    episodes: Any = Walks

    def start_episodes(self, context, noise, seeds):
        return self.episodes(self, context, noise)


FIXED = Walk().context_space.fixed((0.05, 1.5))


class Restarts(Walks):
    def restart(self, which, noise, seeds):
        self.place = np.where(which, noise[..., 0], self.place)


class MovesTheOthers(Restarts):
    """Shows in the steps to come alone what `restart` does to the others."""

    slowed = 1.0

    def step(self, action, noise, alive):
        return super().step(self.slowed * action, noise, alive)

    def restart(self, which, noise, seeds):
        super().restart(which, noise, seeds)
        self.slowed = np.where(which, np.float32(1.0), np.float32(0.5))[..., None]


@pytest.mark.parametrize("env", [Walk(), Walk(episodes=Restarts), Walk(FIXED)])
@pytest.mark.parametrize("check", [check_env, check_host_env])
def test_a_correct_environment_passes(check, env):
    check(env)


def episodes(base=Walks, **members):
    """An environment whose episodes have these members."""
    return Walk(episodes=type("Broken", (base,), members))


def given(method, change):
    """Changes what a method of the episodes is given."""
    base = Restarts if method == "restart" else Walks
    return episodes(base, **{method: lambda self, *given: getattr(base, method)(self, *change(*given))})


def steps(part, change):
    """Changes a part of what `step` returns."""
    return episodes(step=then(Walks.step, lambda after: after._replace(**{part: change(after)})))


def writes(array):
    array *= 2
    return array


def shared(env, context, noise):
    return env, np.stack([np.full(len(context), context[:, 0].mean()), context[:, 1]], axis=1), noise


def herd(action, noise, alive):
    return np.broadcast_to(action.mean(axis=0), action.shape), noise, alive


def flock(action, noise, alive):
    return np.broadcast_to(action.mean(axis=1, keepdims=True), action.shape), noise, alive


LEARNERS = "env 'walk': an episode changes with the task or the actions of another learner"
READ_ONLY = "fails with ValueError: output array is read-only"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (variant(Walk, start_episodes=None), "^env 'walk': it has no method `start_episodes`"),
        (given("step", lambda a, z, alive: (a, z, np.ones_like(alive))), "the state of an episode changes after"),
        (given("step", herd), "an episode changes with the actions of another one"),
        (given("step", flock), LEARNERS),
        (given("__init__", shared), LEARNERS),
        (episodes(observe=None), "what `start_episodes` returns has no method `observe`"),
        (episodes(observe=lambda self: np.ones((2, 2, 4))), r"the observation has shape \(2, 2, 4\), it must be \(2, "),
        (steps("reward", lambda after: after.reward.ravel()), r"`reward` has shape \(4,\), it must be"),
        (steps("truncated", lambda after: after.reward), "`truncated` has dtype float64, it must be bool"),
        (
            steps("terminated", lambda after: after.reward > 9),
            "border = 1 and border = 2 give the same episodes over 20",
        ),
        (episodes(step=then(Walks.step, tuple)), "`step` must return a metastep.envs.host.HostStep, its result has no"),
        (given("step", lambda action, *rest: (writes(action), *rest)), f"`step` {READ_ONLY}"),
        (given("__init__", lambda env, context, noise: (env, writes(context), noise)), f"`start_episodes` {READ_ONLY}"),
        (steps("reward", lambda after: after.reward + RNG.normal()), "the same seeds, noise and actions give differ"),
        (given("step", lambda *_: 1 / 0), "`step` fails with ZeroDivisionError: division by zero$"),
        (given("restart", lambda which, *rest: (~which | which, *rest)), "`restart` changes episodes that should go"),
        (given("restart", lambda which, z, seeds: (which, 0.5 * z, seeds)), "that `restart` begins differs from"),
        (Walk(episodes=MovesTheOthers), "`restart` changes episodes that should go on"),
        (given("restart", lambda which, *rest: (writes(which), *rest)), f"`restart` {READ_ONLY}"),
        (Walk(reset_noise=0), "`start_episodes` fails with IndexError"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_broken_environment_gets_a_sentence(env, message):
    refused(check_host_env, env, message)
