"""Simulate batches of episodes for many learners, each with its own policy and task, and compute statistics of a batch.

Arrays are (episodes, learners), with learners on the last axis, so that sums over episodes vectorise. There are two ways to use a
simulation: `stream` and `discounted_returns` reduce the batch inside the scan, so that memory does not depend on the horizon;
`trajectories` returns all steps, and `sums_of` computes the same statistics from them. A *lane* is one episode of one learner.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep._core.errors import InputError
from metastep._core.numerics import standard_normals
from metastep._core.settings import Count, Share, check_fields
from metastep.envs.base import Env, choices_of
from metastep.envs.host import HostEnv
from metastep.policies import ActorCritic, Arrays, Policy, flatten

Baseline = Literal["none", "mean", "optimal"]
Accumulated = TypeVar("Accumulated")
_Carry = tuple[Any, Array, Any]  # states, which lanes are alive, accumulated values

# Up to this number, second moments are computed entry by entry, which is fastest; more would take half a minute to compile.
_FEW_OBSERVATIONS = 8
# Steps whose normals are drawn together: few enough for a core's cache on a CPU, enough to keep a GPU busy.
_MOST_STEPS_AHEAD = {"cpu": 10, "gpu": 50}


def require_fit(env: Env | HostEnv, policy: Policy | ActorCritic) -> None:
    """Raise an error if observations or actions of policy and environment do not match."""
    if (choices := choices_of(env)) is not None and not hasattr(policy, "num_choices"):
        wrong = f"{choices} discrete actions, but the policy {type(policy).__name__} draws real numbers"
        raise InputError(f"env.name: {env.name!r} has {wrong}; allowed here are environments with continuous actions.")
    for field in ("num_observations", "num_actions", "num_choices"):
        seen, offered = getattr(policy, field, None), getattr(env, field, None)
        if seen != offered:
            raise InputError(f"policy.{field}: {seen}, but the environment {env.name!r} has {offered}.")


@dataclass(frozen=True)
class Rollout:
    """The settings of a simulation.

    Args:
        env: the family of tasks, in JAX or on the host.
        policy: how actions are drawn.
        num_episodes: episodes in the batch of one update (n in the paper).
        horizon: steps after which an episode is cut off (H in the paper).
        discount: discount of the rewards, gamma.
        baseline: what GPOMDP subtracts from the reward of a step: nothing, its mean over the episodes, or the
            variance-minimising value of every component.
    """

    env: Env | HostEnv
    policy: Policy
    num_episodes: Count
    horizon: Count
    discount: Share = 0.99
    baseline: Baseline = "optimal"

    def __post_init__(self) -> None:
        check_fields(self, "rollout")
        require_fit(self.env, self.policy)


class Trajectories(NamedTuple):
    """Whole episodes; time first, learners last. Steps after termination have alive = False and reward 0."""

    observation: Array  # (horizon, observations, episodes, learners)
    action: Array  # (horizon, actions, episodes, learners)
    noise: Array  # (horizon, actions, episodes, learners): (action - mean) / sigma
    reward: Array  # (horizon, episodes, learners)
    alive: Array  # (horizon, episodes, learners): the step was taken


class Move(NamedTuple):
    """One step of every lane; pieces of shape (episodes, learners)."""

    observation: Arrays
    action: Arrays
    noise: Arrays
    reward: Array


OnStep = Callable[[Accumulated, Move, Array], tuple[Accumulated, Any]]
"""(accumulated, move, alive) -> (accumulated, outputs); `alive` (episodes, learners) marks the lanes that took this step."""


def _over_lanes(function: Callable[..., Any], context: Any, *arguments: Any) -> Any:
    """Call function(context, ...), written for one lane, on contexts (learners,) and arguments (episodes, learners)."""
    return jax.vmap(jax.vmap(function), in_axes=(None, *(0 for _ in arguments)))(context, *arguments)


def on_cpu() -> bool:
    """Return whether compiled functions run on a CPU."""
    return jax.default_backend() == "cpu"


def keys_of(key: Array) -> tuple[Array, Array]:
    """Return the keys of the resets and of the steps of a batch."""
    return jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)


def simulate(
    rollout: Rollout,
    theta: Array,
    context: Array,
    key: Array,
    start: Accumulated,
    on_step: OnStep[Accumulated],
    digest: Callable[[Accumulated, Any], Accumulated] | None = None,
) -> tuple[Accumulated, Any]:
    """Simulate policies (learners, parameters) in tasks (learners, coordinates), and call `on_step` at every step.

    Return the final accumulated value and the outputs of all steps; or, with `digest`, pass it the outputs of several steps at a
    time, stacked, to add to the accumulated value. All lanes share one key, and each takes its own part of every draw. Here the
    axis of learners moves from first to last.
    """
    env, policy, theta = rollout.env, rollout.policy, theta.T
    if isinstance(env, HostEnv):
        raise InputError(f"env: {env.name!r} is simulated on the host: call the Estimator from plain Python.")
    shape, named = (rollout.num_episodes, theta.shape[-1]), env.context_space.unpack(context)
    reset_key, step_key = keys_of(key)
    # vmap needs an array for the batch size, also if the environment declares no normals; it is not passed on then.
    noise = standard_normals(reset_key, 0, env.reset_noise, shape) or (jnp.zeros(shape, jnp.float32),)
    state = _over_lanes(lambda task, normals: env.reset(task, normals[: env.reset_noise]), named, noise)

    def step(carry: _Carry, normals: Arrays) -> tuple[_Carry, Any]:
        """Make one step in every lane; a terminated lane keeps its state and has reward 0."""
        state, alive, carried = carry
        action_noise, env_noise = normals[: policy.num_actions], normals[policy.num_actions :]
        observation = _over_lanes(env.observe, named, state)
        mean = policy.mean(theta, observation)
        action = tuple(m + policy.sigma * z for m, z in zip(mean, action_noise, strict=True))
        after = _over_lanes(env.step, named, state, action, env_noise)
        state = jax.tree.map(lambda new, old: jnp.where(alive, new, old), after.state, state)
        move = Move(observation, action, action_noise, jnp.where(alive, after.reward, 0.0))
        carried, outputs = on_step(carried, move, alive)
        return (state, alive & ~after.terminated, carried), outputs

    num = policy.num_actions + env.step_noise
    most = min(_MOST_STEPS_AHEAD["cpu" if on_cpu() else "gpu"], rollout.horizon)
    # Prefer a number of steps that divides the horizon: then no second program is needed for the rest.
    ahead = max((number for number in range(most // 2 + 1, most + 1) if rollout.horizon % number == 0), default=most)

    def several_steps(carry: _Carry, first: Array, num_steps: int = ahead) -> tuple[_Carry, Any]:
        """Draw the normals of a few steps ahead, then make the steps."""
        # If they were drawn inside the step, XLA would fuse them into every expression that uses them, and compute them each
        # time. They do not depend on how many are drawn at once, because the step is their counter.
        draws = first + jnp.arange(num_steps, dtype=jnp.uint32)
        (state, alive, carried), outputs = lax.scan(step, carry, standard_normals(step_key, draws, num, shape))
        if digest is None:
            return (state, alive, carried), outputs
        return (state, alive, digest(carried, outputs)), None

    rest = rollout.horizon % ahead
    evenly = rollout.horizon - rest
    firsts = jnp.arange(0, evenly, ahead, dtype=jnp.uint32)
    carry, outputs = lax.scan(several_steps, (state, jnp.ones(shape, bool), start), firsts)
    outputs = jax.tree.map(lambda array: array.reshape(evenly, *array.shape[2:]), outputs)
    if rest:
        carry, last = several_steps(carry, jnp.uint32(evenly), rest)
        outputs = jax.tree.map(lambda *parts: jnp.concatenate(parts), outputs, last)
    return carry[2], outputs


def fold_over(episodes: Trajectories, start: Accumulated, on_step: OnStep[Accumulated]) -> Accumulated:
    """Return the final accumulated value of `simulate` for the simulation that gave these trajectories."""

    def advance(accumulated: Accumulated, step: Trajectories) -> tuple[Accumulated, Any]:
        move = Move(tuple(step.observation), tuple(step.action), tuple(step.noise), step.reward)
        return on_step(accumulated, move, step.alive)

    return lax.scan(advance, start, episodes)[0]


def discounted_returns(rollout: Rollout, theta: Array, context: Array, key: Array) -> Array:
    """Return the discounted return of every episode, (episodes, learners), at a fraction of an estimate's cost."""

    def on_step(sums: tuple[Array, Array], move: Move, alive: Array) -> tuple[tuple[Array, Array], None]:
        weight, returns = sums
        return (weight * rollout.discount, returns + weight * move.reward), None

    start = jnp.float32(1.0), jnp.zeros((rollout.num_episodes, theta.shape[0]), jnp.float32)
    return simulate(rollout, theta, context, key, start, on_step)[0][1]


def trajectories(rollout: Rollout, theta: Array, context: Array, key: Array) -> Trajectories:
    """Return all steps of the batch with this key."""

    def on_step(_: None, move: Move, alive: Array) -> tuple[None, Trajectories]:
        observation, action, noise = (jnp.stack(pieces) for pieces in move[:3])
        return None, Trajectories(observation, action, noise, move.reward, alive)

    return simulate(rollout, theta, context, key, None, on_step)[1]


class Sums(NamedTuple):
    """Per-learner statistics of a batch; learners last."""

    mean_return: Array  # (learners,)
    return_variance: Array  # (learners,), over episodes
    gradient: Array  # (parameters, learners)
    moments: Array | None  # (1 + observations, 1 + observations, learners): sum of phi phi^T over the steps taken
    num_steps: Array  # (learners,): steps before termination, all episodes together


def mean_and_error(returns: Any, xp: Any) -> tuple[Any, Any]:
    """Return the mean return of episodes (..., episodes) and its standard error, which is 0 for a single episode."""
    num, mean = returns.shape[-1], xp.mean(returns, axis=-1)
    spread = xp.std(returns, axis=-1, ddof=1) if num > 1 else xp.zeros_like(mean)
    return mean, spread / xp.sqrt(xp.float32(num))


def _gpomdp_term(baseline: Baseline, score: Array, payoff: Array) -> Array:
    """Return the sum over episodes of (payoff - b) * score at one step, with the baseline b of this step and component."""
    if baseline == "none":
        return jnp.sum(score * payoff, axis=-2)
    # With a baseline, a constant that is common to all episodes cancels. Subtracting it first makes the term exactly zero where
    # all episodes pay the same, instead of rounding noise, which a normalised step would follow.
    payoff = payoff - payoff[..., :1, :]
    total = jnp.sum(score * payoff, axis=-2)
    if baseline == "mean":
        return total - jnp.mean(payoff, axis=-2) * jnp.sum(score, axis=-2)
    square = score * score
    best = jnp.sum(square * payoff, axis=-2) / jnp.maximum(jnp.sum(square, axis=-2), 1e-30)  # where 0, b is irrelevant
    return total - best * jnp.sum(score, axis=-2)


def _moment_sums(observation: Arrays, alive: Array) -> Array:
    """Return the sum over live episodes of phi phi^T, phi = (1, s): (1 + observations, 1 + observations, learners)."""
    weight = alive.astype(jnp.float32)
    if len(observation) > _FEW_OBSERVATIONS:
        phi = jnp.stack((jnp.ones_like(weight), *observation))
        return jnp.einsum("iel,jel->ijl", weight * phi, phi, precision=lax.Precision.HIGHEST)
    features = (weight, *(weight * value for value in observation))
    size, upper = len(features), {}
    for column, feature in enumerate(features):
        for row in range(column + 1):
            upper[row, column] = jnp.sum(feature * observation[row - 1] if row else feature, axis=0)
    return jnp.stack([jnp.stack([upper[min(i, j), max(i, j)] for j in range(size)]) for i in range(size)])


class Accumulator(NamedTuple):
    """Sums over the steps so far that an estimate needs."""

    weight: Array  # gamma^t
    scores: Arrays  # sum of the scores of each episode
    returns: Array  # (episodes, learners)
    gradient: Arrays  # summed over episodes
    moments: Array | None
    num_steps: Array


def empty(rollout: Rollout, theta: Array) -> Accumulator:
    """Return the accumulator before the first step; theta is (parameters, learners)."""
    policy, num_learners, size = rollout.policy, theta.shape[-1], 1 + rollout.policy.num_observations
    lanes = jax.ShapeDtypeStruct((rollout.num_episodes, num_learners), jnp.float32)
    pieces = jax.eval_shape(policy.score, theta, (lanes,) * policy.num_observations, (lanes,) * policy.num_actions)
    return Accumulator(
        weight=jnp.float32(1.0),
        scores=tuple(jnp.zeros(piece.shape, jnp.float32) for piece in pieces),
        returns=jnp.zeros(lanes.shape, jnp.float32),
        gradient=tuple(jnp.zeros((*piece.shape[:-2], num_learners), jnp.float32) for piece in pieces),
        moments=jnp.zeros((size, size, num_learners), jnp.float32) if policy.is_linear else None,
        num_steps=jnp.zeros(num_learners, jnp.float32),
    )


def _add_to_episodes(
    rollout: Rollout, theta: Array, sums: Accumulator, move: Move, alive: Array
) -> tuple[Accumulator, tuple[Arrays, Array, Arrays, Array]]:
    """Add one step to scores and returns; also output scores, payoff, observation and alive, for the sums over episodes."""
    score = rollout.policy.score(theta, move.observation, move.noise)
    scores = tuple(s + jnp.where(alive, now, 0.0) for s, now in zip(sums.scores, score, strict=True))
    payoff = sums.weight * move.reward
    after = sums._replace(weight=sums.weight * rollout.discount, scores=scores, returns=sums.returns + payoff)
    return after, (scores, payoff, move.observation, alive)


def _add_sums(sums: Accumulator, terms: Arrays, observation: Arrays, alive: Array) -> Accumulator:
    return sums._replace(
        gradient=tuple(total + term for total, term in zip(sums.gradient, terms, strict=True)),
        moments=None if sums.moments is None else sums.moments + _moment_sums(observation, alive),
        num_steps=sums.num_steps + jnp.sum(alive, axis=0, dtype=jnp.float32),
    )


def accumulate(rollout: Rollout, theta: Array, sums: Accumulator, move: Move, alive: Array) -> tuple[Accumulator, None]:
    """Add one step.

    GPOMDP: `grad = 1/n sum_episodes sum_t (gamma^t r_t - b_t) sum_{k<=t} d log pi(a_k|s_k)`. The baseline b_t depends only on
    sums over the episodes at step t, so of earlier steps only the running scores are kept.
    """
    after, (scores, payoff, observation, _) = _add_to_episodes(rollout, theta, sums, move, alive)
    terms = tuple(_gpomdp_term(rollout.baseline, piece, payoff) for piece in scores)
    return _add_sums(after, terms, observation, alive), None


def finish(rollout: Rollout, sums: Accumulator) -> Sums:
    """Return the statistics of the batch."""
    return Sums(
        mean_return=jnp.mean(sums.returns, axis=0),
        # The variance of a single episode is unknown; it is set to 0 rather than NaN.
        return_variance=jnp.var(sums.returns, axis=0) * (rollout.num_episodes / max(rollout.num_episodes - 1, 1)),
        gradient=flatten(sums.gradient) / rollout.num_episodes,
        moments=sums.moments,
        num_steps=sums.num_steps,
    )


def stream(rollout: Rollout, theta: Array, context: Array, key: Array) -> Sums:
    """Simulate and reduce on the fly, so that memory does not depend on the horizon."""
    # A CPU sums every step while it is in the cache; a GPU is faster with fewer, larger reductions over several steps.
    term = jax.vmap(partial(_gpomdp_term, rollout.baseline))

    def digest(sums: Accumulator, steps: tuple[Arrays, Array, Arrays, Array]) -> Accumulator:
        scores, payoff, observation, alive = steps
        terms = tuple(jnp.sum(term(piece, payoff), axis=0) for piece in scores)
        seen = tuple(piece.reshape(-1, piece.shape[-1]) for piece in observation)
        return _add_sums(sums, terms, seen, alive.reshape(-1, alive.shape[-1]))

    functions: tuple[Any, ...] = (accumulate,) if on_cpu() else (_add_to_episodes, digest)
    on_step = partial(functions[0], rollout, theta.T)
    return finish(rollout, simulate(rollout, theta, context, key, empty(rollout, theta.T), on_step, *functions[1:])[0])


def sums_of(rollout: Rollout, theta: Array, episodes: Trajectories) -> Sums:
    """Return the statistics of trajectories, the same as `stream` for the same policy, tasks and key."""
    return finish(rollout, fold_over(episodes, empty(rollout, theta.T), partial(accumulate, rollout, theta.T)))
