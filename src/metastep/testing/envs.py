"""The contract of environments, in JAX and on the host."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.envs.base import Env, Step, choices_of, range_of
from metastep.envs.contexts import ContextSpace
from metastep.envs.host import Bools, HostEnv, HostStep
from metastep.testing.subject import Subject, named, read_only, same

_HOST_EPISODES = 2

AnyEnv = Env | HostEnv
Contexts = NDArray[np.float32]  # (learners, coordinates)


class Played(NamedTuple):
    """Episodes, time first and learners last."""

    observation: NDArray[Any]  # (steps, observations, episodes, learners)
    reward: NDArray[Any]  # (steps, episodes, learners), zero after termination
    alive: NDArray[np.bool_]  # (steps, episodes, learners): the step was taken


def declared(env: Any) -> Subject:
    """Return the environment as a subject, after checking the fields of `TaskFamily`."""
    subject, actions = named("env", env), getattr(env, "num_actions", None)
    is_space = isinstance(getattr(env, "context_space", None), ContextSpace)
    subject.require(is_space, "`context_space` must be a metastep.envs.contexts.ContextSpace")
    subject.declares(num_observations=1, num_actions=1, reset_noise=0, step_noise=0, packages=tuple)
    if choices_of(env) is not None:
        subject.declares(num_choices=2)
        subject.require(actions == 1, f"`num_actions` is {actions}, it must be 1 where `num_choices` is declared")
    subject.is_hashable()
    return subject


def check_env(
    env: AnyEnv, *, num_episodes: int = 32, horizon: int = 50, sigma: float = 1.0, seed: int = 0, thorough: bool = True
) -> None:
    """Raise `InputError` unless `env` keeps the contract of `metastep.envs.Env`, or of `metastep.envs.HostEnv`.

    Checked: declared fields; that it is hashable and equal to its copies; that state, observation, reward and `terminated` are
    scalars of the right dtype and number; that the same input gives the same bits; that every declared action and normal has an
    effect; that random episodes stay finite; and that every coordinate of the context changes the episodes.

    Args:
        num_episodes, horizon, seed: of the simulations; longer ones where the context matters late in an episode.
        sigma: standard deviation of the random actions, around a mean of zero; discrete actions are equally likely.
        thorough: False skips repeating inputs and looking for effects of all that is declared, and clips actions to their
            declared range. `metastep run` and `metastep collect` check environments of your own this way.
    """
    subject = declared(env)
    if isinstance(env, HostEnv):
        check_host_env(env, horizon=horizon, sigma=sigma, seed=seed, thorough=thorough)
        return
    subject.has_methods("reset", "observe", "step")
    space = env.context_space

    # Trace the three methods for one lane; nothing is computed.
    def scalars(num: int, dtype: Any = jnp.float32) -> tuple[jax.ShapeDtypeStruct, ...]:
        return tuple(jax.ShapeDtypeStruct((), dtype) for _ in range(num))

    context = space.unpack(jnp.asarray(space.low, jnp.float32))
    state = subject.trace(f"reset with {env.reset_noise} normals", env.reset, context, scalars(env.reset_noise))
    for leaf in jax.tree.leaves(state):
        subject.is_array("a field of the state that `reset` returns", leaf, (), leaf.dtype)
    subject.is_tuple("observe", subject.trace("observe", env.observe, context, state), "num_observations", ())
    what = f"step with {env.num_actions} actions and {env.step_noise} normals"
    actions = scalars(env.num_actions, jnp.float32 if choices_of(env) is None else jnp.int32)
    after = subject.trace(what, env.step, context, state, actions, scalars(env.step_noise))
    subject.has_fields("step", after, "metastep.envs.Step", Step._fields)
    subject.same_state("what `step` returns", after.state, state)
    subject.is_array("the reward", after.reward, ())
    subject.is_array("`terminated`", after.terminated, (), np.bool_)

    def episode(context: Array, actions: Array, first: Array, noise: Array) -> tuple[Any, ...]:
        """Play one episode: its first state, what is seen, and (reward, alive) of every step."""
        task = space.unpack(context)
        start = env.reset(task, tuple(first))

        def step(carry: tuple[Any, Array], given: tuple[Array, Array]) -> tuple[Any, Any]:
            state, alive = carry
            after = env.step(task, state, *map(tuple, given))
            kept = jax.tree.map(lambda new, old: jnp.where(alive, new, old), after.state, state)
            moved = jnp.where(alive, after.reward, 0.0), alive
            return (kept, alive & ~after.terminated), (env.observe(task, state), moved)

        return start, *jax.lax.scan(step, (start, jnp.bool_(True)), (actions, noise))[1]

    lower, upper = _corners(space)
    rng, shape = np.random.default_rng(seed), (horizon, num_episodes, len(lower))
    inputs = {
        ("num_actions", "action"): _random_actions(env, rng, shape, sigma, thorough=thorough),
        ("reset_noise", "normal of the reset"): rng.standard_normal((*shape[1:], env.reset_noise), np.float32),
        ("step_noise", "normal of the step"): rng.standard_normal((*shape, env.step_noise), np.float32),
    }
    by_learner = jax.vmap(episode, in_axes=(0, 1, 0, 1), out_axes=-1)
    program = jax.jit(jax.vmap(by_learner, in_axes=(None, 1, 0, 1), out_axes=-2))

    def play(tasks: Contexts) -> Played:
        _, seen, moved = subject.call("step", program, tasks, *inputs.values())
        return Played(np.stack(seen, axis=1), *map(np.asarray, moved))

    if thorough:
        usual = subject.repeat(("reset", "observe", "step"), program, upper, *inputs.values())
        for (field, what), values in inputs.items():
            for index in range(values.shape[-1]):
                changed = values.copy()
                changed[..., index] = np.roll(values[..., index], 1, axis=-2)  # that of another episode
                matters = not same(usual, program(upper, *(inputs | {(field, what): changed}).values()))
                subject.require(matters, f"{field} is {values.shape[-1]}, but {what} number {index} changes nothing")
    _check_episodes(subject, play, seed, thorough=thorough)


def check_host_env(
    env: HostEnv, *, horizon: int = 20, sigma: float = 1.0, seed: int = 0, thorough: bool = True
) -> None:
    """Raise `InputError` with one sentence unless `env` keeps the contract of `metastep.envs.HostEnv`.

    Checked, with the arguments of `check_env`: what that checks of episodes; that an ended episode stays as it is; that no
    argument is written to; and, if `thorough`, that an episode depends on no other episode or learner, and that `restart`, where
    episodes have it, restarts those it should, also after their end, and no others.
    """
    subject = declared(env)
    subject.has_methods("start_episodes")
    tasks, _ = _corners(env.context_space)
    rng, shape = np.random.default_rng(seed), (horizon, _HOST_EPISODES, len(tasks))
    actions, others = (_random_actions(env, rng, shape, sigma, thorough=thorough) for _ in range(2))
    noise = rng.standard_normal((*shape, env.step_noise), np.float32)

    def play(tasks: Contexts, actions: NDArray[Any] = actions, alive: Bools | None = None) -> Played:
        return _HostPlay(subject, tasks, seed, noise).take(actions, alive)

    _check_episodes(subject, play, seed, thorough=thorough)
    if not thorough:
        return
    usual = play(tasks)
    wrong = "the same seeds, noise and actions give different episodes; randomness must come from what it is given"
    subject.require(same(usual, play(tasks)), wrong)
    # Other neighbours; the shapes stay, so that an environment that ignores neighbours computes the same bits.
    alike = np.repeat(tasks[:1], len(tasks), axis=0)
    for given, own, wrong in (
        (tasks, np.s_[..., :1, :], "an episode changes with the actions of another one"),
        (alike, np.s_[..., :1], "an episode changes with the task or the actions of another learner"),
    ):
        mixed = others.copy()
        mixed[(*own, np.s_[:])] = actions[(*own, np.s_[:])]
        subject.require(same(*([each[own] for each in episodes] for episodes in (usual, play(given, mixed)))), wrong)
    # One episode of each learner has ended before it begins, so that the others cannot.
    play(tasks, np.ones_like(actions[:2]), np.arange(_HOST_EPISODES)[:, None].repeat(len(tasks), axis=1) > 0)
    # Play until an episode ends, restart the ended ones (every other one where none ends), and play on. Restarted ones must be
    # like ones that start with the same numbers, others as if nothing had happened. A simulator may know one batch at a time.
    first = _HostPlay(subject, tasks, seed, noise)
    if not callable(getattr(first.episodes, "restart", None)):
        return  # whole episodes do without it
    ends = np.flatnonzero(~usual.alive.all(axis=(1, 2)))
    before = actions[: ends[0]] if len(ends) else actions
    first.take(before)
    which = np.indices(first.alive.shape).sum(axis=0) % 2 == 0 if first.alive.all() else ~first.alive
    undisturbed = first.take(actions)
    fresh = _HostPlay(subject, tasks, seed + 2, noise)
    begins = fresh.take(actions)
    restarted = _HostPlay(subject, tasks, seed, noise)
    restarted.take(before)
    subject.call("restart", restarted.episodes.restart, *read_only(which, fresh.noise, fresh.seeds))
    mixture = restarted.take(actions, restarted.alive | which)
    for lanes, expected, wrong in (
        (~which, undisturbed, "`restart` changes episodes that should go on"),
        (which, begins, "an episode that `restart` begins differs from one that starts with the same seed and noise"),
    ):
        subject.require(same(*([each[..., lanes] for each in episodes] for episodes in (mixture, expected))), wrong)


class _HostPlay:
    """Episodes of a host environment that begin with the noise and seeds of a `seed`; all that it returns is checked."""

    def __init__(self, subject: Subject, tasks: Contexts, seed: int, step_noise: NDArray[np.float32]) -> None:
        self.subject, self.step_noise, env = subject, step_noise, subject.part
        shape = (_HOST_EPISODES, len(tasks))
        self.alive = np.ones(shape, np.bool_)
        self.noise = np.random.default_rng(seed).standard_normal((*shape, env.reset_noise), np.float32)
        self.seeds = np.arange(seed, seed + self.alive.size, dtype=np.uint32).reshape(shape)
        self.episodes = subject.call("start_episodes", env.start_episodes, *read_only(tasks, self.noise, self.seeds))
        for method in ("observe", "step"):
            there = callable(getattr(self.episodes, method, None))
            subject.require(there, f"what `start_episodes` returns has no method `{method}`")

    def take(self, actions: NDArray[Any], alive: Bools | None = None) -> Played:
        """Take actions (steps, episodes, learners, numbers); `alive` are the episodes that go on, by default as they are."""
        subject, steps = self.subject, []
        self.alive = self.alive if alive is None else alive
        shape = self.alive.shape
        for action, noise in zip(actions, self.step_noise, strict=False):
            seen = subject.call("observe", self.episodes.observe)
            subject.is_array("the observation", seen, (*shape, subject.part.num_observations), np.number)
            seen = np.moveaxis(np.array(seen), -1, 0)
            after = subject.call("step", self.episodes.step, *read_only(action, noise, self.alive))
            subject.has_fields("step", after, "metastep.envs.host.HostStep", HostStep._fields)
            fields = {"reward": np.number, "terminated": np.bool_}
            for field, dtype in (fields | ({} if after.truncated is None else {"truncated": np.bool_})).items():
                subject.is_array(f"`{field}`", getattr(after, field), shape, dtype)
            steps.append((seen, np.where(self.alive, after.reward, 0.0), self.alive))
            self.alive = self.alive & ~after.over
        played = Played(*(np.stack(arrays) for arrays in zip(*steps, strict=True)))
        moves = (played.observation[1:] != played.observation[:-1]).any(axis=1) & ~played.alive[:-1]
        subject.require(not moves.any(), "the state of an episode changes after `terminated`")
        return played


def _random_actions(
    env: AnyEnv, rng: np.random.Generator, shape: tuple[int, ...], sigma: float, *, thorough: bool
) -> NDArray[Any]:
    """Return random actions (*shape, numbers); where the check is not thorough, within the declared range."""
    shape = (*shape, env.num_actions)
    if (choices := choices_of(env)) is not None:
        return rng.integers(choices, size=shape, dtype=np.int32)
    actions = np.float32(sigma) * rng.standard_normal(shape, np.float32)
    return actions if thorough else np.clip(actions, *(range_of(env) or (None, None)))


def _corners(space: ContextSpace) -> tuple[Contexts, Contexts]:
    """Return tasks where learner i has coordinate i at its lower, then at its upper bound, and the others in the middle."""
    low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    lower = np.tile((low + high) / np.float32(2), (max(len(low), 2), 1))  # each learner must have a neighbour
    upper, diagonal = lower.copy(), np.arange(len(low))
    lower[diagonal, diagonal], upper[diagonal, diagonal] = low, high
    return lower, upper


def _check_episodes(subject: Subject, play: Callable[[Contexts], Played], seed: int, *, thorough: bool) -> None:
    """Check episodes in random tasks and in ones that differ by one coordinate; `play` always has the same random numbers."""
    space: ContextSpace = subject.part.context_space
    lower, upper = _corners(space)
    played = []
    for tasks in (lower, np.asarray(space.sample(jax.random.key(seed), len(lower))), upper):
        seen, reward, _ = episodes = play(tasks)
        # All numbers must be finite, also of the state that ends an episode: it stays in the batch, with weight zero.
        values = np.concatenate([reward[:, None], seen], axis=1)
        for step, index, episode, learner in np.argwhere(~np.isfinite(values))[:1]:
            what, value = f"observation {index - 1}" if index else "the reward", values[step, index, episode, learner]
            task = ", ".join(f"{name} = {value:g}" for name, value in zip(space.names, tasks[learner], strict=True))
            subject.require(False, f"{what} is {value} at step {step} of an episode in the task {task}")
        played.append(episodes)
    left, _, right = played
    for index, (name, low, high) in enumerate(zip(space.names, space.low, space.high, strict=True)):
        # A fixed task has nothing to vary.
        matters = low == high or any(not same(a[..., index], b[..., index]) for a, b in zip(left, right, strict=True))
        alike = f"{name} = {low:g} and {name} = {high:g} give the same episodes over {len(left.alive)} steps"
        subject.require(matters or not thorough, f"{alike}; every coordinate of the context must matter")
