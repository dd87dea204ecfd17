"""Each way to break the protocol of environments on the host gets its own sentence."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.envs.contexts import ContextSpace
from metastep.envs.host import HostStep
from metastep.testing import check_env, check_host_env


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


class WithoutStart(Walk):
    start_episodes = None


class MovesOn(Walks):
    def step(self, action, noise, alive):
        return super().step(action, noise, np.ones_like(alive))


class Herd(Walks):
    def step(self, action, noise, alive):
        return super().step(np.broadcast_to(action.mean(axis=0), action.shape), noise, alive)


class Flock(Walks):
    def step(self, action, noise, alive):
        return super().step(np.broadcast_to(action.mean(axis=1, keepdims=True), action.shape), noise, alive)


class SharesTheSlope(Walks):
    def __init__(self, env, context, noise):
        super().__init__(env, np.stack([np.full(len(context), context[:, 0].mean()), context[:, 1]], axis=1), noise)


class ObservesTooMuch(Walks):
    def observe(self):
        return np.repeat(super().observe(), 2, axis=-1)


class ObservesAList(Walks):
    def observe(self):
        return super().observe().tolist()


class ObservesObjects(Walks):
    def observe(self):
        return super().observe().astype(object)


class ObservesInfinity(Walks):
    def observe(self):
        return super().observe() / 0.0


class PaysNothingANumber(Walks):
    def step(self, action, noise, alive):
        after = super().step(action, noise, alive)
        return HostStep(np.full_like(after.reward, np.nan), after.terminated)


class PaysFlat(Walks):
    def step(self, action, noise, alive):
        after = super().step(action, noise, alive)
        return HostStep(after.reward.ravel(), after.terminated)


class PaysAList(Walks):
    def step(self, action, noise, alive):
        after = super().step(action, noise, alive)
        return HostStep(after.reward.tolist(), after.terminated)


class EndsInAList(Walks):
    def step(self, action, noise, alive):
        after = super().step(action, noise, alive)
        return HostStep(after.reward, after.terminated.tolist())


class ReturnsPlainTuple(Walks):
    def step(self, action, noise, alive):
        return tuple(super().step(action, noise, alive))


class WritesAction(Walks):
    def step(self, action, noise, alive):
        action *= 2.0
        return super().step(action, noise, alive)


class WritesStepNoise(Walks):
    def step(self, action, noise, alive):
        noise *= 2.0
        return super().step(action, noise, alive)


class WritesAlive(Walks):
    def step(self, action, noise, alive):
        alive[:] = True
        return super().step(action, noise, alive)


class WritesContext(Walks):
    def __init__(self, env, context, noise):
        context *= 2.0
        super().__init__(env, context, noise)


class WritesResetNoise(Walks):
    def __init__(self, env, context, noise):
        noise *= 2.0
        super().__init__(env, context, noise)


class WithoutObserve(Walks):
    observe = None


class EndsInNumbers(Walks):
    def step(self, action, noise, alive):
        after = super().step(action, noise, alive)
        return HostStep(after.reward, after.terminated.astype(np.float64))


class CutsOffInNumbers(Walks):
    def step(self, action, noise, alive):
        after = super().step(action, noise, alive)
        return after._replace(truncated=np.zeros_like(after.reward))


class Forgetful(Walks):
    calls = 0

    def step(self, action, noise, alive):
        Forgetful.calls += 1
        after = super().step(action, noise, alive)
        return HostStep(after.reward + Forgetful.calls, after.terminated)


class IgnoresBorder(Walks):
    def step(self, action, noise, alive):
        after = super().step(action, noise, alive)
        return HostStep(after.reward, np.zeros_like(after.terminated))


class Fails(Walks):
    def step(self, action, noise, alive):
        raise ZeroDivisionError("the wheel fell off\nand rolled away")


class Restarts(Walks):
    def restart(self, which, noise, seeds):
        self.place = np.where(which, noise[..., 0], self.place)


class RestartsAll(Restarts):
    def restart(self, which, noise, seeds):
        super().restart(np.ones_like(which), noise, seeds)


class RestartsElsewhere(Restarts):
    def restart(self, which, noise, seeds):
        super().restart(which, 0.5 * noise, seeds)


class StaysOver(Restarts):
    """Remembers that an episode is over, and forgets to forget it."""

    over = False

    def step(self, action, noise, alive):
        after = super().step(action, noise, alive)
        self.over = self.over | (after.terminated & alive)
        return HostStep(after.reward, self.over)


class MovesTheOthers(Restarts):
    """Shows in the steps to come alone what `restart` does to the others."""

    slowed = 1.0

    def step(self, action, noise, alive):
        return super().step(self.slowed * action, noise, alive)

    def restart(self, which, noise, seeds):
        super().restart(which, noise, seeds)
        self.slowed = np.where(which, np.float32(1.0), np.float32(0.5))[..., None]


class RestartWrites(Restarts):
    def restart(self, which, noise, seeds):
        which[:] = True


def test_episodes_that_begin_anew_pass():
    check_host_env(Walk(episodes=Restarts))


@pytest.mark.parametrize("check", [check_env, check_host_env])
def test_a_correct_environment_passes(check):
    check(Walk())


def test_a_fixed_task_passes():
    check_host_env(Walk(FIXED))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (object(), "env: object must have a `name`, a non-empty string, got None"),
        (WithoutStart(), "env 'walk': it has no method `start_episodes`"),
        (replace(Walk(), context_space=3), "env 'walk': `context_space` must be a metastep.envs.contexts.ContextSpace"),
        (Walk(num_actions=0), "env 'walk': `num_actions` must be a whole number of at least 1, got 0"),
        (Walk(step_noise=1.0), r"env 'walk': `step_noise` must be a whole number of at least 0, got 1\.0"),
        (Walk(packages=["mujoco"]), r"env 'walk': `packages` must be a tuple of strings, got \['mujoco'\]"),
        (Walk(name=["walk"]), r"env: Walk must have a `name`, a non-empty string, got \['walk'\]"),
        (Walk(episodes=[Walks]), "env 'walk': it must be hashable .* unhashable type: 'list'"),
        (Walk(episodes=MovesOn), "env 'walk': the state of an episode changes after `terminated`"),
        (Walk(episodes=Herd), "env 'walk': an episode changes with the actions of another one"),
        (Walk(episodes=Flock), "env 'walk': an episode changes with the task or the actions of another learner"),
        (Walk(FIXED, episodes=Flock), "env 'walk': an episode changes with the task or the actions of another learner"),
        (
            Walk(episodes=SharesTheSlope),
            "env 'walk': an episode changes with the task or the actions of another learner",
        ),
        (Walk(episodes=WithoutObserve), "env 'walk': what `start_episodes` returns has no method `observe`"),
        (Walk(episodes=ObservesTooMuch), r"the observation has shape \(2, 2, 4\), it must be \(2, 2, 2\)"),
        (Walk(episodes=ObservesAList), "env 'walk': the observation must be an array, got a list"),
        (Walk(episodes=ObservesObjects), "env 'walk': the observation has dtype object, it must be a number"),
        (
            Walk(episodes=ObservesInfinity),
            "env 'walk': observation 0 is inf at step 0 of an episode in the task slope = .*, border = ",
        ),
        (
            Walk(episodes=PaysNothingANumber),
            "env 'walk': the reward is nan at step 0 of an episode in the task slope = ",
        ),
        (Walk(episodes=PaysAList), "env 'walk': `reward` must be an array, got a list"),
        (Walk(episodes=EndsInAList), "env 'walk': `terminated` must be an array, got a list"),
        (
            Walk(episodes=ReturnsPlainTuple),
            "`step` must return a metastep.envs.host.HostStep, its result has no `reward`",
        ),
        (Walk(episodes=WritesAction), "env 'walk': `step` fails with ValueError: output array is read-only"),
        (Walk(episodes=WritesStepNoise), "env 'walk': `step` fails with ValueError: output array is read-only"),
        (Walk(episodes=WritesAlive), "env 'walk': `step` fails with ValueError: assignment destination is read-only"),
        (Walk(episodes=WritesContext), "`start_episodes` fails with ValueError: output array is read-only"),
        (Walk(episodes=WritesResetNoise), "`start_episodes` fails with ValueError: output array is read-only"),
        (Walk(episodes=PaysFlat), r"env 'walk': `reward` has shape \(4,\), it must be \(2, 2\)"),
        (Walk(episodes=EndsInNumbers), "env 'walk': `terminated` has dtype float64, it must be bool"),
        (Walk(episodes=CutsOffInNumbers), "env 'walk': `truncated` has dtype float64, it must be bool"),
        (Walk(episodes=Forgetful), "env 'walk': the same seeds, noise and actions give different episodes"),
        (Walk(episodes=IgnoresBorder), "env 'walk': border = 1 and border = 2 give the same episodes over 20 steps"),
        (Walk(episodes=Fails), "env 'walk': `step` fails with ZeroDivisionError: the wheel fell off$"),
        (Walk(episodes=RestartsAll), "env 'walk': `restart` changes episodes that should go on"),
        (Walk(episodes=RestartsElsewhere), "env 'walk': an episode that `restart` begins differs from one that starts"),
        (Walk(episodes=StaysOver), "env 'walk': an episode that `restart` begins differs from one that starts"),
        (Walk(episodes=MovesTheOthers), "env 'walk': `restart` changes episodes that should go on"),
        (Walk(episodes=RestartWrites), "`restart` fails with ValueError: assignment destination is read-only"),
        (Walk(reset_noise=0), "env 'walk': `start_episodes` fails with IndexError"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_broken_environment_gets_a_sentence(env, message):
    with pytest.raises(InputError, match=message):
        check_host_env(env)
