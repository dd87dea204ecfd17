from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from metastep import envs
from metastep.envs import Step
from metastep.envs.contexts import ContextSpace
from metastep.testing import check_env
from tests.testing.variants import RNG, refused, then, variant


class Place(NamedTuple):
    position: Array
    steps: Array


@dataclass(frozen=True)
class Walk:
    """A walk on a line with wind and a slope: the smallest environment that has everything the contract speaks of."""

    context_space: ContextSpace = ContextSpace(("slope", "goal"), (0.0, 2.0), (0.1, 3.0))
    num_observations: int = 2
    num_actions: int = 1
    reset_noise: int = 1
    step_noise: int = 1

    name: ClassVar[str] = "walk"
    packages: ClassVar[Any] = ()

    def reset(self, context: Any, noise: tuple[Array, ...]) -> Any:
        return Place(0.1 * noise[0], jnp.int32(0))

    def observe(self, context: Any, state: Any) -> Any:
        return state.position, state.steps.astype(jnp.float32)

    def step(self, context: Any, state: Any, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Any:
        position = state.position + jnp.clip(action[0], -0.5, 0.5) + 0.1 * noise[0] - context.slope
        return Step(Place(position, state.steps + 1), -jnp.abs(position), jnp.abs(position) > context.goal)


@pytest.mark.parametrize("name", envs.names())
def test_registered_environments_pass(name: str) -> None:
    env = envs.make(name)
    assert env.name == name
    check_env(env)


class Hop(Walk):
    """The same by discrete actions: left, nothing, right."""

    num_choices: ClassVar[Any] = 3

    def step(self, context: Any, state: Any, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Any:
        assert action[0].dtype == jnp.int32
        return super().step(context, state, (0.5 * (action[0] - 1).astype(jnp.float32),), noise)


@pytest.mark.parametrize("env", [Walk(), Hop(), Walk(Walk.context_space.fixed((0.05, 2.5)))])
def test_correct_environments_pass(env: Any) -> None:
    """Also where the task is fixed: nothing can vary, so nothing has to matter."""
    check_env(env)


class Branches(Walk):
    def step(self, context: Any, state: Any, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Any:
        if action[0] > 0:
            action = (2.0 * action[0],)
        return super().step(context, state, action, noise)


class DrawsWhileRunning(Walk):
    def reset(self, context: Any, noise: tuple[Array, ...]) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        extra = jax.pure_callback(lambda _: np.float32(RNG.normal()), shape, noise[0], vmap_method="sequential")
        return Place(noise[0] + extra, jnp.int32(0))


@dataclass(frozen=True)
class HoldsList(Walk):
    goals: list[float] = field(default_factory=lambda: [1.0])


class PlainClass:
    """Hashable by identity: two equal environments are two programs."""

    name, packages = "plain", ()
    context_space = Walk.context_space
    num_observations, num_actions, reset_noise, step_noise = 2, 1, 1, 1
    reset, observe, step = Walk.reset, Walk.observe, Walk.step


def sees(change: Callable[[Any], Any]) -> Any:
    return variant(Walk, observe=then(Walk.observe, change))


def steps(change: Callable[[Any], Any]) -> Any:
    return variant(Walk, step=then(Walk.step, change))


def rewards(change: Callable[[Any], Any]) -> Any:
    return steps(lambda after: after._replace(reward=change(after)))


def with_step(step: Callable[..., Any]) -> Any:
    """Call the step with changed arguments."""
    return variant(Walk, step=lambda self, *given: Walk.step(self, *step(*given)))


def end_in_infinity(after: Any) -> Any:
    position = jnp.where(after.terminated, jnp.inf, after.state.position)
    return after._replace(state=after.state._replace(position=position))


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (variant(Walk, name=None), r"^env: Broken must have a `name`, a non-empty string, got None"),
        (variant(Walk, packages="mujoco"), r"^env 'walk': `packages` must be a tuple of strings, got 'mujoco'"),
        (replace(Walk(), context_space=None), r"`context_space` must be a metastep.envs.contexts.ContextSpace"),
        (Walk(num_actions=0), r"`num_actions` must be a whole number of at least 1, got 0"),
        (variant(Hop, num_choices=1), r"`num_choices` must be a whole number of at least 2, got 1"),
        (Hop(num_actions=2), r"`num_actions` is 2, it must be 1 where `num_choices` is declared"),
        (variant(Hop, step=Walk.step), r"`step with 1 actions and 1 normals` fails with TypePromotionError"),
        (HoldsList(), r"it must be hashable .* unhashable type: 'list'; make it a frozen dataclass"),
        (PlainClass(), r"env 'plain': a copy is not equal to the original"),
        (
            variant(Walk, reset=lambda self, context, noise: Place(jnp.ones(2, jnp.float32), jnp.int32(0))),
            r"a field of the state that `reset` returns has shape \(2,\), it must be a scalar",
        ),
        (sees(list), r"`observe` returns a list, it must return a tuple of arrays"),
        (sees(lambda seen: (*seen, seen[0])), r"`observe` returns 3 numbers, but num_observations is 2"),
        (sees(lambda seen: (seen[0], seen[1].astype(jnp.int32))), r"array 1 of `observe` has dtype int32"),
        (steps(tuple), r"`step` must return a metastep.envs.Step, its result has no `state`"),
        (
            rewards(lambda after: jnp.sqrt(1.5 - after.state.position)),  # only now and then of a negative number
            r"the reward is nan at step \d+ of an episode in the task slope = .*, goal = ",
        ),
        (steps(end_in_infinity), r"observation 0 is inf at step \d+ of an episode in the task slope = "),
        (
            steps(lambda after: after._replace(terminated=after.terminated.astype(jnp.float32))),
            r"`terminated` has dtype float32, it must be bool",
        ),
        (
            steps(lambda after: after._replace(state=tuple(after.state))),
            r"what `step` returns is the state PyTreeDef.*, but the first state is PyTreeDef",
        ),
        (Branches(), r"`step with 1 actions and 1 normals` depends on a value in Python .*; use jnp.where"),
        (Walk(reset_noise=2), r"reset_noise is 2, but normal of the reset number 1 changes nothing"),
        (Walk(step_noise=3), r"step_noise is 3, but normal of the step number 1 changes nothing"),
        (
            with_step(lambda context, state, action, noise: (context, state, (0.0 * action[0],), noise)),
            r"num_actions is 1, but action number 0 changes nothing",
        ),
        (
            with_step(lambda context, *given: (context._replace(goal=jnp.float32(2.5)), *given)),
            r"goal = 2 and goal = 3 give the same episodes over 50 steps",
        ),
        # NumPy's generator runs once, when the program is traced, and its number is baked in.
        (
            rewards(lambda after: after.reward + jnp.float32(RNG.normal())),
            r"`step` gives different results for the same input",
        ),
        (DrawsWhileRunning(), r"`reset` gives different results for the same input"),
    ],
)
def test_a_broken_environment_is_caught_with_a_sentence(env: Any, sentence: str) -> None:
    refused(check_env, env, sentence)
