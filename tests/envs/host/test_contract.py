"""Each way to break the protocol of environments on the host gets its own sentence."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from metastep.envs.contexts import ContextSpace
from metastep.envs.host import HostStep
from metastep.testing import check_env, check_host_env
from tests.testing.variants import refused, then, variant


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


class Forgetful(Walks):
    calls = 0

    def step(self, action, noise, alive):
        Forgetful.calls += 1
        after = super().step(action, noise, alive)
        return HostStep(after.reward + Forgetful.calls, after.terminated)


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


def sees(change):
    return episodes(observe=then(Walks.observe, change))


def steps(change):
    return episodes(step=then(Walks.step, change))


def acts(change):
    """Changes what a step is given."""
    return episodes(step=lambda self, *given: Walks.step(self, *change(*given)))


def starts(change):
    return episodes(__init__=lambda self, env, *given: Walks.__init__(self, env, *change(*given)))


def writes(array):
    array *= 2
    return array


def restarts(change):
    return episodes(Restarts, restart=lambda self, *given: Restarts.restart(self, *change(*given)))


def shared(context, noise):
    return np.stack([np.full(len(context), context[:, 0].mean()), context[:, 1]], axis=1), noise


def flock(action, noise, alive):
    return np.broadcast_to(action.mean(axis=1, keepdims=True), action.shape), noise, alive


LEARNERS = "env 'walk': an episode changes with the task or the actions of another learner"
READ_ONLY = "fails with ValueError: output array is read-only"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (object(), "^env: object must have a `name`, a non-empty string, got None"),
        (variant(Walk, start_episodes=None), "^env 'walk': it has no method `start_episodes`"),
        (replace(Walk(), context_space=3), "`context_space` must be a metastep.envs.contexts.ContextSpace"),
        (Walk(packages=["mujoco"]), r"`packages` must be a tuple of strings, got \['mujoco'\]"),
        (Walk(episodes=[Walks]), "it must be hashable .* unhashable type: 'list'"),
        (acts(lambda a, noise, alive: (a, noise, np.ones_like(alive))), "the state of an episode changes after"),
        (
            acts(lambda action, *rest: (np.broadcast_to(action.mean(axis=0), action.shape), *rest)),
            "an episode changes with the actions of another one",
        ),
        (acts(flock), LEARNERS),
        (starts(shared), LEARNERS),
        (episodes(observe=None), "what `start_episodes` returns has no method `observe`"),
        (
            sees(lambda seen: np.repeat(seen, 2, axis=-1)),
            r"the observation has shape \(2, 2, 4\), it must be \(2, 2, 2\)",
        ),
        (
            sees(lambda seen: seen / 0.0),
            "observation 0 is inf at step 0 of an episode in the task slope = .*, border = ",
        ),
        (
            steps(lambda after: after._replace(reward=after.reward * np.nan)),
            "the reward is nan at step 0 of an episode",
        ),
        (steps(lambda after: after._replace(reward=after.reward.tolist())), "`reward` must be an array, got a list"),
        (steps(lambda after: after._replace(reward=after.reward.ravel())), r"`reward` has shape \(4,\), it must be"),
        (
            steps(lambda after: after._replace(terminated=after.reward)),
            "`terminated` has dtype float64, it must be bool",
        ),
        (steps(lambda after: after._replace(truncated=after.reward)), "`truncated` has dtype float64, it must be bool"),
        (steps(tuple), "`step` must return a metastep.envs.host.HostStep, its result has no `reward`"),
        (acts(lambda action, *rest: (writes(action), *rest)), f"`step` {READ_ONLY}"),
        (starts(lambda context, noise: (writes(context), noise)), f"`start_episodes` {READ_ONLY}"),
        (Walk(episodes=Forgetful), "the same seeds, noise and actions give different episodes"),
        (
            steps(lambda after: after._replace(terminated=np.zeros_like(after.terminated))),
            "border = 1 and border = 2 give the same episodes over 20 steps",
        ),
        (acts(lambda *_: 1 / 0), "`step` fails with ZeroDivisionError: division by zero$"),
        (restarts(lambda which, *rest: (np.ones_like(which), *rest)), "`restart` changes episodes that should go on"),
        (
            restarts(lambda which, noise, seeds: (which, 0.5 * noise, seeds)),
            "an episode that `restart` begins differs from one that starts",
        ),
        (Walk(episodes=MovesTheOthers), "`restart` changes episodes that should go on"),
        (restarts(lambda which, *rest: (writes(which), *rest)), f"`restart` {READ_ONLY}"),
        (Walk(reset_noise=0), "`start_episodes` fails with IndexError"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_broken_environment_gets_a_sentence(env, message):
    refused(check_host_env, env, message)
