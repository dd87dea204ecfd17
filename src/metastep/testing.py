"""Contract checks for environments and controllers of your own.

    from metastep.testing import check_controller, check_env
    check_env(MyEnv())
    check_controller(MyController(), mdp)

A check that fails raises `InputError` with one sentence that names what is wrong.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.contexts import ContextSpace
from metastep.contracts import check_controller
from metastep.envs.base import Env
from metastep.envs.declared import check_declared
from metastep.envs.host import HostEnv, check_host_env
from metastep.errors import InputError
from metastep.policies import LinearGaussian
from metastep.simulation.rollouts import Rollout, Trajectories, trajectories

__all__ = ["check_controller", "check_env"]

_NUM_PROBES = 64  # single moves from as many first states


class _Move(NamedTuple):
    """What one lane does in one move; every leaf is a scalar, or one array over the probes."""

    start: Any
    observation: Any
    state: Any
    reward: Any
    terminated: Any


def check_env(
    env: Env | HostEnv, *, num_episodes: int = 32, horizon: int = 50, sigma: float = 1.0, seed: int = 0
) -> None:
    """Raise `InputError` unless `env` keeps the contract of `metastep.envs.Env`, or of `metastep.envs.HostEnv`.

    Checked are: the declared fields; that the environment can select a compiled program (hashable, equal copies equal); that
    state, observation, reward and `terminated` are scalars of the right dtype and number; that the same input gives the same
    bits; that every declared action and normal has an effect; that random episodes stay finite; that `terminated` freezes
    the state and the reward; and that every coordinate of the context changes the episodes.

    Args:
        env: the environment.
        num_episodes, horizon: size of the simulations; longer ones where the context matters late in an episode. On the host
            two episodes a task are enough (see `check_host_env`).
        sigma: standard deviation of the random actions, around a mean of zero; choose it to match the actions' scale.
        seed: of the simulations.
    """
    if isinstance(env, HostEnv):
        check_host_env(env, horizon=horizon, sigma=sigma, seed=seed)
        return
    name = check_declared(env, ("reset", "observe", "step"))
    _check_shapes(env, name)
    probe = _Probe(env, seed, sigma)
    _check_determinism(probe, name)
    _check_inputs_matter(probe, name)
    rollout = Rollout(env, LinearGaussian(env.num_observations, env.num_actions, sigma), num_episodes, horizon)
    _check_episodes(rollout, name, seed)


def _run(name: str, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of the environment on behalf of the user: whatever goes wrong becomes a sentence."""
    try:
        return function(*arguments)
    except jax.errors.ConcretizationTypeError:
        raise InputError(
            f"env {name!r}: `{what}` depends on a value in Python (an `if`, `float()` or `int()`); use jnp.where."
        ) from None
    except InputError:
        raise
    except Exception as error:
        text = str(error).split("\n", maxsplit=1)[0]
        raise InputError(f"env {name!r}: `{what}` fails with {type(error).__name__}: {text}") from error


def _scalars(num: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct((), jnp.float32) for _ in range(num))


def _check_scalar(name: str, what: str, value: Any, dtype: Any) -> None:
    if value.shape != ():
        raise InputError(f"env {name!r}: {what} has shape {value.shape}, it must be a scalar.")
    if dtype is not None and value.dtype != dtype:
        raise InputError(f"env {name!r}: {what} has dtype {value.dtype}, it must be {jnp.dtype(dtype).name}.")


def _check_shapes(env: Env, name: str) -> None:
    """Trace the three methods for one lane; nothing is computed."""
    space = env.context_space
    context = jax.eval_shape(space.unpack, jax.ShapeDtypeStruct((space.num_coordinates,), jnp.float32))
    reset, step = env.reset_noise, env.step_noise
    state = _run(name, f"reset with {reset} normals", jax.eval_shape, env.reset, context, _scalars(reset))
    leaves, structure = jax.tree.flatten(state)
    if not leaves:
        raise InputError(f"env {name!r}: the state that `reset` returns holds no numbers.")
    for leaf in leaves:
        _check_scalar(name, "a field of the state that `reset` returns", leaf, None)

    seen = _run(name, "observe", jax.eval_shape, env.observe, context, state)
    if not isinstance(seen, tuple):
        raise InputError(f"env {name!r}: `observe` returns a {type(seen).__name__}, it must return a tuple of scalars.")
    if len(seen) != env.num_observations:
        raise InputError(
            f"env {name!r}: `observe` returns {len(seen)} numbers, but num_observations is {env.num_observations}."
        )
    for index, value in enumerate(seen):
        _check_scalar(name, f"observation {index}", value, jnp.float32)

    what = f"step with {env.num_actions} actions and {step} normals"
    after = _run(name, what, jax.eval_shape, env.step, context, state, _scalars(env.num_actions), _scalars(step))
    for field in ("state", "reward", "terminated"):
        if not hasattr(after, field):
            raise InputError(f"env {name!r}: `step` must return a metastep.envs.Step, its result has no `{field}`.")
    new_structure: Any = jax.tree.structure(after.state)
    if new_structure != structure:
        raise InputError(f"env {name!r}: `step` returns the state {new_structure}, but `reset` returns {structure}.")
    for leaf, before in zip(jax.tree.leaves(after.state), leaves, strict=True):
        _check_scalar(name, "a field of the state that `step` returns", leaf, before.dtype)
    _check_scalar(name, "the reward", after.reward, jnp.float32)
    _check_scalar(name, "`terminated`", after.terminated, jnp.bool_)


class _Probe:
    """Single moves from first states, many at once."""

    def __init__(self, env: Env, seed: int, sigma: float):
        self.env = env
        keys = jax.random.split(jax.random.key(seed), 4)
        self.context = env.context_space.sample(keys[0], _NUM_PROBES)
        self.reset_noise = jax.random.normal(keys[1], (_NUM_PROBES, env.reset_noise), jnp.float32)
        self.action = sigma * jax.random.normal(keys[2], (_NUM_PROBES, env.num_actions), jnp.float32)
        self.step_noise = jax.random.normal(keys[3], (_NUM_PROBES, env.step_noise), jnp.float32)

    def trace(self) -> Callable[..., _Move]:
        """A newly traced program for the moves."""
        env = self.env

        def move(context: Array, reset_noise: Array, action: Array, step_noise: Array) -> _Move:
            named = env.context_space.unpack(context)
            start = env.reset(named, tuple(reset_noise))
            after = env.step(named, start, tuple(action), tuple(step_noise))
            return _Move(start, env.observe(named, start), after.state, after.reward, after.terminated)

        return jax.jit(jax.vmap(move))

    def inputs(self) -> dict[str, Array]:
        """By the names of the arguments of `move`."""
        return {key: getattr(self, key) for key in ("context", "reset_noise", "action", "step_noise")}


def _differ(left: Any, right: Any) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return any(not np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def _check_determinism(probe: _Probe, name: str) -> None:
    """The same program twice, for calls back to Python; traced again, for numbers drawn while tracing."""
    inputs = tuple(probe.inputs().values())
    program = probe.trace()
    first = _run(name, "step", program, *inputs)
    for again in (program, probe.trace()):
        second = _run(name, "step", again, *inputs)
        for field in _Move._fields:
            if _differ(getattr(first, field), getattr(second, field)):
                what = {"start": "`reset`", "observation": "`observe`"}.get(field, "`step`")
                raise InputError(
                    f"env {name!r}: {what} gives different results for the same input; "
                    "randomness must come from the normals it is given."
                )


def _check_inputs_matter(probe: _Probe, name: str) -> None:
    """Every declared action and normal changes some result of some move."""
    program, inputs = probe.trace(), probe.inputs()
    usual = program(*inputs.values())
    for key, declared, what in (
        ("action", "num_actions", "action"),
        ("reset_noise", "reset_noise", "normal of the reset"),
        ("step_noise", "step_noise", "normal of the step"),
    ):
        for index in range(inputs[key].shape[1]):
            column = jnp.roll(inputs[key][:, index], 1)
            changed = program(*(inputs | {key: inputs[key].at[:, index].set(column)}).values())
            if not _differ(usual, changed):
                raise InputError(
                    f"env {name!r}: {declared} is {inputs[key].shape[1]}, but {what} number {index} changes nothing."
                )


def _check_episodes(rollout: Rollout, name: str, seed: int) -> None:
    """Random episodes in random tasks, then in tasks that differ by one coordinate."""
    space, key = rollout.env.context_space, jax.random.key(seed)
    low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    num_learners = max(space.num_coordinates, 2)
    theta = jnp.zeros((num_learners, rollout.policy.num_parameters), jnp.float32)
    simulate = jax.jit(partial(trajectories, rollout))

    def episodes_of(context: Array | NDArray[np.float32]) -> Trajectories:
        result = _run(name, "step", simulate, theta, jnp.asarray(context), key)
        episodes = Trajectories(*(np.asarray(array) for array in result))  # type: ignore[arg-type]
        _check_finite(space, name, np.asarray(context), episodes)
        _check_frozen(name, episodes)
        return episodes

    episodes_of(space.sample(key, num_learners))
    # Learner i has coordinate i at its lower, then at its upper bound, the others in the middle, and the same noise.
    middle = np.tile((low + high) / np.float32(2), (num_learners, 1))
    lower, upper = middle.copy(), middle.copy()
    coordinates = np.arange(space.num_coordinates)
    lower[coordinates, coordinates], upper[coordinates, coordinates] = low, high
    left, right = episodes_of(lower), episodes_of(upper)
    for index, coordinate in enumerate(space.names):
        if low[index] == high[index]:  # a fixed task has nothing to vary
            continue
        if not any(_differ(a[..., index], b[..., index]) for a, b in zip(left, right, strict=True)):
            raise InputError(
                f"env {name!r}: {coordinate} = {low[index]:g} and {coordinate} = {high[index]:g} give the same episodes "
                f"over {rollout.horizon} steps; every coordinate of the context must matter."
            )


def _check_finite(space: ContextSpace, name: str, context: NDArray[np.float32], episodes: Trajectories) -> None:
    """Also of the state that ends an episode: it stays in the batch, with weight zero."""
    observations = np.moveaxis(np.asarray(episodes.observation), 1, 0)
    named = [("the reward", episodes.reward), *((f"observation {i}", values) for i, values in enumerate(observations))]
    for what, values in named:
        wrong = np.argwhere(~np.isfinite(values))
        if len(wrong):
            step, episode, learner = (int(index) for index in wrong[0])
            value = np.asarray(values)[step, episode, learner]
            task = ", ".join(f"{n} = {v:g}" for n, v in zip(space.names, context[learner], strict=True))
            raise InputError(f"env {name!r}: {what} is {value} at step {step} of an episode in the task {task}.")


def _check_frozen(name: str, episodes: Trajectories) -> None:
    alive, reward = np.asarray(episodes.alive), np.asarray(episodes.reward)
    if (alive[1:] & ~alive[:-1]).any():
        raise InputError(f"env {name!r}: an episode goes on after `terminated`.")
    if (reward[~alive] != 0.0).any():
        raise InputError(f"env {name!r}: an episode earns a reward after `terminated`.")
    still = np.asarray(episodes.observation)
    ended = np.broadcast_to(~alive[:-1, None], still[1:].shape)
    if (still[1:] != still[:-1])[ended].any():
        raise InputError(f"env {name!r}: the state of an episode changes after `terminated`.")
