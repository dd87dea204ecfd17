"""The contract of environments, in JAX and on the host."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.numerics import to_uniform
from metastep.envs.base import Context, Env, State, Step, Wrapper, choices_of, range_of
from metastep.envs.contexts import ContextSpace
from metastep.envs.host import Bools, HostEnv, HostStep
from metastep.policies import LinearGaussian
from metastep.simulation.engine import engine_of
from metastep.simulation.rollouts import Rollout, trajectories
from metastep.testing.subject import Subject, named, read_only, same

_NUM_PROBES = 64  # single moves from as many first states
_HOST_EPISODES = 2

Contexts = NDArray[np.float32]  # (learners, coordinates)


class Played(NamedTuple):
    """Episodes, time first and learners last."""

    observation: NDArray[Any]  # (steps, observations, episodes, learners)
    reward: NDArray[Any]  # (steps, episodes, learners), zero after termination
    alive: NDArray[np.bool_]  # (steps, episodes, learners): the step was taken


class Driven(Wrapper):
    """An environment driven by a standard normal policy: draws discrete actions with equal chances, clips others."""

    num_choices = None

    def step(self, context: Context, state: State, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        if (choices := choices_of(self.env)) is not None:
            index = jnp.floor(to_uniform(action[0], 0.0, float(choices)))
            action = (jnp.clip(index, 0.0, choices - 1.0).astype(jnp.int32),)
        else:
            action = tuple(jnp.clip(each, *(range_of(self.env) or (-np.inf, np.inf))) for each in action)
        return self.env.step(context, state, action, noise)


def declared(env: Any) -> Subject:
    """Return the environment as a subject, after checking the fields of `TaskFamily`."""
    subject = named("env", env)
    is_space = isinstance(getattr(env, "context_space", None), ContextSpace)
    subject.require(is_space, "`context_space` must be a metastep.envs.contexts.ContextSpace")
    subject.declares(num_observations=1, num_actions=1, reset_noise=0, step_noise=0)
    if choices_of(env) is not None:
        subject.declares(num_choices=2)
        wrong = f"`num_actions` is {env.num_actions}, it must be 1 where `num_choices` is declared"
        subject.require(env.num_actions == 1, wrong)
    subject.declares(packages=tuple)
    subject.is_hashable()
    return subject


def check_env(
    env: Env | HostEnv,
    *,
    num_episodes: int = 32,
    horizon: int = 50,
    sigma: float = 1.0,
    seed: int = 0,
    thorough: bool = True,
) -> None:
    """Raise `InputError` unless `env` keeps the contract of `metastep.envs.Env`, or of `metastep.envs.HostEnv`.

    Checked: the declared fields; that it is hashable and equal to its copies; that state, observation, reward and `terminated`
    are scalars of the right dtype and number; that the same input gives the same bits; that every declared action and normal
    has an effect; that random episodes stay finite; that `terminated` freezes the state and the reward; and that every
    coordinate of the context changes the episodes.

    Args:
        num_episodes, horizon, seed: of the simulations; longer ones where the context matters late in an episode.
        sigma: standard deviation of the random actions, around a mean of zero; discrete actions are equally likely.
        thorough: False skips repeating inputs and looking for effects of all that is declared, and clips actions to their
            declared range. `metastep run` and `metastep collect` check environments of your own this way.
    """
    subject = declared(env)
    if not engine_of(env).is_compiled:
        check_host_env(subject.part, horizon=horizon, sigma=sigma, seed=seed, thorough=thorough)
        return
    subject.has_methods("reset", "observe", "step")
    part: Env = subject.part

    # Trace the three methods for one lane; nothing is computed.
    def scalars(num: int, dtype: Any = jnp.float32) -> tuple[jax.ShapeDtypeStruct, ...]:
        return tuple(jax.ShapeDtypeStruct((), dtype) for _ in range(num))

    context = part.context_space.unpack(jnp.asarray(part.context_space.low, jnp.float32))
    state = subject.trace(f"reset with {part.reset_noise} normals", part.reset, context, scalars(part.reset_noise))
    for leaf in jax.tree.leaves(state):
        subject.is_array("a field of the state that `reset` returns", leaf, (), leaf.dtype)
    seen = subject.trace("observe", part.observe, context, state)
    kind = type(seen).__name__
    subject.require(isinstance(seen, tuple), f"`observe` returns a {kind}, it must return a tuple of scalars")
    wrong = f"`observe` returns {len(seen)} numbers, but num_observations is {part.num_observations}"
    subject.require(len(seen) == part.num_observations, wrong)
    for index, value in enumerate(seen):
        subject.is_array(f"observation {index}", value, ())
    what = f"step with {part.num_actions} actions and {part.step_noise} normals"
    actions = scalars(part.num_actions, jnp.float32 if choices_of(part) is None else jnp.int32)
    after = subject.trace(what, part.step, context, state, actions, scalars(part.step_noise))
    subject.has_fields("step", after, "metastep.envs.Step", Step._fields)
    subject.same_state("what `step` returns", after.state, state)
    subject.is_array("the reward", after.reward, ())
    subject.is_array("`terminated`", after.terminated, (), np.bool_)
    if (is_discrete := choices_of(env) is not None) or not thorough:
        part, sigma = Driven(part), 1.0 if is_discrete else sigma
    if thorough:
        # Single moves from first states: the same twice, and every declared action and normal changes some result.
        def move(context: Array, action: Array, reset_noise: Array, step_noise: Array) -> tuple[Any, ...]:
            task = part.context_space.unpack(context)
            start = part.reset(task, tuple(reset_noise))
            after = part.step(task, start, tuple(action), tuple(step_noise))
            return start, part.observe(task, start), after

        names = {"num_actions": "action", "reset_noise": "normal of the reset", "step_noise": "normal of the step"}
        first, *keys = jax.random.split(jax.random.key(seed), 4)
        context = part.context_space.sample(first, _NUM_PROBES)
        inputs = {
            field: (sigma if field == "num_actions" else 1.0)
            * jax.random.normal(key, (_NUM_PROBES, getattr(part, field)), jnp.float32)
            for key, field in zip(keys, names, strict=True)
        }
        program = jax.jit(jax.vmap(move))
        usual = subject.repeat(("reset", "observe", "step"), program, context, *inputs.values())
        for field, values in inputs.items():
            for index in range(values.shape[1]):
                changed = values.at[:, index].set(jnp.roll(values[:, index], 1))
                matters = not same(usual, program(context, *(inputs | {field: changed}).values()))
                what = f"{names[field]} number {index}"
                subject.require(matters, f"{field} is {values.shape[1]}, but {what} changes nothing")
    rollout = Rollout(part, LinearGaussian(env.num_observations, env.num_actions, sigma), num_episodes, horizon)
    theta = jnp.zeros((len(_corners(env.context_space)[0]), rollout.policy.num_parameters), jnp.float32)
    simulate = jax.jit(partial(trajectories, rollout))

    def play(tasks: Contexts) -> Played:
        result = subject.call("step", simulate, theta, jnp.asarray(tasks), jax.random.key(seed))
        return Played(*(np.asarray(array) for array in (result.observation, result.reward, result.alive)))

    _check_episodes(subject, play, seed, thorough=thorough)


def check_host_env(
    env: HostEnv, *, horizon: int = 20, sigma: float = 1.0, seed: int = 0, thorough: bool = True
) -> None:
    """Raise `InputError` with one sentence unless `env` keeps the contract of `metastep.envs.HostEnv`.

    Checked, with the arguments of `check_env`: what that checks of episodes; that the arguments are not written to (they are
    read-only, here as in a run); that an episode depends on no other episode or learner; and, where episodes have `restart`,
    that it restarts those it should, also after their end, and no others. Not `thorough`, neighbours and `restart` are left out.
    """
    subject = declared(env)
    subject.has_methods("start_episodes")
    tasks, _ = _corners(env.context_space)
    shape = (horizon, _HOST_EPISODES, len(tasks), env.num_actions)
    rng, choices = np.random.default_rng(seed), choices_of(env)
    actions: NDArray[Any]
    if choices is not None:
        actions = rng.integers(choices, size=shape, dtype=np.int32)
        opposite = np.int32(choices - 1) - actions
    else:
        actions = (sigma * rng.standard_normal(shape)).astype(np.float32)
        opposite = -actions
        actions = actions if thorough else np.clip(actions, *(range_of(env) or (-np.inf, np.inf)))

    def play(tasks: Contexts, actions: NDArray[Any] = actions, alive: Bools | None = None) -> Played:
        return _HostPlay(subject, tasks, seed).played(actions, alive)

    _check_episodes(subject, play, seed, thorough=thorough)
    if not thorough:
        return
    # Other neighbours; the shapes stay, so that an environment that ignores neighbours computes the same bits.
    usual, alike = play(tasks), np.repeat(tasks[:1], len(tasks), axis=0)
    for given, own, wrong in (
        (tasks, np.s_[..., :1, :], "an episode changes with the actions of another one"),
        (alike, np.s_[..., :1], "an episode changes with the task or the actions of another learner"),
    ):
        others = opposite.copy()
        others[(*own, np.s_[:])] = actions[(*own, np.s_[:])]
        beside = play(given, others)
        subject.require(same([each[own] for each in usual], [each[own] for each in beside]), wrong)
    # One episode of each learner has ended before it begins, so that the others cannot.
    alive = np.arange(_HOST_EPISODES)[:, None].repeat(len(tasks), axis=1) > 0
    _check_frozen(subject, play(tasks, np.ones_like(actions[:2]), alive))
    # Play until an episode ends, restart the ended ones (every other one where none ends), and play on. Restarted ones must be
    # like ones that start with the same numbers, the others as if nothing had happened. A simulator may know one batch only:
    # none is played beside another.
    first = _HostPlay(subject, tasks, seed)
    if not callable(getattr(first.episodes, "restart", None)):
        return  # whole episodes do without it
    num_steps = 0
    while num_steps < len(actions) and first.alive.all():
        first.played(actions[num_steps : num_steps + 1])
        num_steps += 1
    which = np.indices(first.shape).sum(axis=0) % 2 == 0 if first.alive.all() else ~first.alive

    def play_on(begun: _HostPlay, alive: Bools) -> Played:
        begun.rng = np.random.default_rng([seed, 1])
        return begun.played(actions, alive)

    undisturbed = play_on(first, first.alive)
    fresh = _HostPlay(subject, tasks, seed + 2)
    begins = play_on(fresh, np.ones_like(which))
    restarted = _HostPlay(subject, tasks, seed)
    restarted.played(actions[:num_steps])
    subject.call("restart", restarted.episodes.restart, *read_only(which, fresh.noise, fresh.seeds))
    mixed = play_on(restarted, restarted.alive | which)
    for lanes, expected, wrong in (
        (~which, undisturbed, "`restart` changes episodes that should go on"),
        (which, begins, "an episode that `restart` begins differs from one that starts with the same seed and noise"),
    ):
        subject.require(same([each[..., lanes] for each in mixed], [each[..., lanes] for each in expected]), wrong)


class _HostPlay:
    """Episodes of a host environment that begin with the noise and seeds of a `seed`; all that it returns is checked."""

    def __init__(self, subject: Subject, tasks: Contexts, seed: int) -> None:
        self.subject, self.env = subject, subject.part
        self.shape = _HOST_EPISODES, len(tasks)
        self.rng = np.random.default_rng(seed)
        num = math.prod(self.shape)
        self.noise = self.rng.standard_normal((*self.shape, self.env.reset_noise), np.float32)
        self.seeds = np.arange(seed, seed + num, dtype=np.uint32).reshape(self.shape)
        given = read_only(tasks, self.noise, self.seeds)
        self.episodes = subject.call("start_episodes", self.env.start_episodes, *given)
        for method in ("observe", "step"):
            there = callable(getattr(self.episodes, method, None))
            subject.require(there, f"what `start_episodes` returns has no method `{method}`")
        self.alive = np.ones(self.shape, np.bool_)

    def played(self, actions: NDArray[Any], alive: Bools | None = None) -> Played:
        """Take actions (steps, episodes, learners, numbers); `alive` are the episodes that go on, all by default."""
        subject, env, steps = self.subject, self.env, []
        alive = self.alive if alive is None else alive
        for action in actions:
            seen = subject.call("observe", self.episodes.observe)
            subject.is_array("the observation", seen, (*self.shape, env.num_observations), np.number)
            seen = np.moveaxis(np.array(seen), -1, 0)
            noise = self.rng.standard_normal((*self.shape, env.step_noise), np.float32)
            after = subject.call("step", self.episodes.step, *read_only(action, noise, alive))
            subject.has_fields("step", after, "metastep.envs.host.HostStep", HostStep._fields)
            for field, dtype in (("reward", np.number), ("terminated", np.bool_), ("truncated", np.bool_)):
                if field != "truncated" or after.truncated is not None:
                    subject.is_array(f"`{field}`", getattr(after, field), self.shape, dtype)
            steps.append((seen, np.where(alive, after.reward, 0.0), alive))
            alive = alive & ~after.over
        self.alive = alive
        return Played(*(np.stack(arrays) for arrays in zip(*steps, strict=True)))


def _corners(space: ContextSpace) -> tuple[Contexts, Contexts]:
    """Return tasks where learner i has coordinate i at its lower, then at its upper bound, and the others in the middle.

    At least two learners: each must have a neighbour.
    """
    low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    lower = np.tile((low + high) / np.float32(2), (max(len(low), 2), 1))
    upper, diagonal = lower.copy(), np.arange(len(low))
    lower[diagonal, diagonal], upper[diagonal, diagonal] = low, high
    return lower, upper


def _check_episodes(subject: Subject, play: Callable[[Contexts], Played], seed: int, *, thorough: bool) -> None:
    """Check episodes in random tasks and, where it is `thorough`, in tasks that differ by one coordinate.

    `play` gives the episodes of some tasks, always with the same random numbers.
    """
    space: ContextSpace = subject.part.context_space
    lower, upper = _corners(space)
    played = []
    for tasks in (lower, np.asarray(space.sample(jax.random.key(seed), len(lower))), upper):
        seen, reward, _ = episodes = play(tasks)
        # All numbers must be finite, also of the state that ends an episode: it stays in the batch, with weight zero.
        named_values = [("the reward", reward), *((f"observation {i}", seen[:, i]) for i in range(seen.shape[1]))]
        for what, values in named_values:
            for step, episode, learner in np.argwhere(~np.isfinite(values))[:1]:
                task = ", ".join(f"{name} = {value:g}" for name, value in zip(space.names, tasks[learner], strict=True))
                value = values[step, episode, learner]
                subject.require(False, f"{what} is {value} at step {step} of an episode in the task {task}")
        _check_frozen(subject, episodes)
        played.append(episodes)
    if not thorough:
        return
    left, _, right = played
    wrong = "the same seeds, noise and actions give different episodes; randomness must come from what it is given"
    subject.require(same(play(upper), right), wrong)
    for index, (name, low, high) in enumerate(zip(space.names, space.low, space.high, strict=True)):
        # A fixed task has nothing to vary.
        matters = low == high or any(not same(a[..., index], b[..., index]) for a, b in zip(left, right, strict=True))
        alike = f"{name} = {low:g} and {name} = {high:g} give the same episodes over {len(left.alive)} steps"
        subject.require(matters, f"{alike}; every coordinate of the context must matter")


def _check_frozen(subject: Subject, episodes: Played) -> None:
    """Check that nothing happens to an episode after its end."""
    seen, reward, alive = episodes
    subject.require(not (alive[1:] & ~alive[:-1]).any(), "an episode goes on after `terminated`")
    subject.require((reward[~alive] == 0.0).all(), "an episode earns a reward after `terminated`")
    moves = (seen[1:] != seen[:-1]).any(axis=1) & ~alive[:-1]
    subject.require(not moves.any(), "the state of an episode changes after `terminated`")
