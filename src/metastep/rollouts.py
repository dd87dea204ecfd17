"""Batched simulation: many learners, each with its own policy and task, many episodes each.

Arrays inside are (episodes, learners) with learners on the last axis, so that sums over episodes vectorise. Two paths share
one step function: `fold` reduces every step inside the scan, so its memory does not depend on the horizon (`stream` folds
what an estimate needs, `discounted_returns` the returns alone); `trajectories` returns every step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep.envs.base import Env, State
from metastep.envs.host.base import HostEnv
from metastep.errors import InputError
from metastep.noise import standard_normals
from metastep.policies import Pieces, Policy, flatten

Baseline = Literal["none", "mean", "optimal"]
Accumulated = TypeVar("Accumulated")
Carry = TypeVar("Carry")

# A per-step baseline divides by the mean square of the summed score; where that is zero the baseline is irrelevant.
_TINY = 1e-30

# Up to here second moments are written out entry by entry: fastest for a few, but many take the compiler half a minute.
_FEW_OBSERVATIONS = 8
# Steps handled together: on a CPU few enough that their normals stay in a core's cache, on a GPU enough to keep it busy.
_MOST_STEPS_AHEAD = {"cpu": 10, "gpu": 50}


@dataclass(frozen=True)
class Rollout:
    """What is simulated, and for how long.

    Args:
        env: the family of tasks, in JAX or on the host.
        policy: how actions are drawn.
        num_episodes: episodes a learner.
        horizon: steps after which an episode is cut off.
        discount: gamma.
        baseline: what GPOMDP subtracts from the reward of a step: nothing, its mean over the episodes, or the
            variance-minimising value of every component.
    """

    env: Env | HostEnv
    policy: Policy
    num_episodes: int
    horizon: int
    discount: float = 0.99
    baseline: Baseline = "optimal"

    def __post_init__(self) -> None:
        for field, least in (("num_episodes", 1), ("horizon", 1)):
            value = getattr(self, field)
            if value < least:
                raise InputError(f"rollout.{field}: {value} must be at least {least}.")
        if not 0.0 <= self.discount <= 1.0:
            raise InputError(f"rollout.discount: {self.discount} must lie in [0, 1].")
        if self.baseline not in get_args(Baseline):
            raise InputError(f"rollout.baseline: {self.baseline!r} must be one of {', '.join(get_args(Baseline))}.")
        for field in ("num_observations", "num_actions"):
            seen, offered = getattr(self.policy, field), getattr(self.env, field)
            if seen != offered:
                raise InputError(f"policy.{field}: {seen}, but the environment {self.env.name!r} has {offered}.")


class Sums(NamedTuple):
    """Per-learner statistics of a batch; learners last."""

    mean_return: Array  # (learners,)
    return_variance: Array  # (learners,), over episodes
    gradient: Array  # (parameters, learners)
    moments: Array | None  # (1 + observations, 1 + observations, learners): sum of phi phi^T over the steps taken
    num_steps: Array  # (learners,): steps before termination, all episodes together


class Trajectories(NamedTuple):
    """Whole episodes; time first, learners last. Steps after termination have alive = False and reward 0."""

    observation: Array  # (horizon, observations, episodes, learners)
    action: Array  # (horizon, actions, episodes, learners)
    noise: Array  # (horizon, actions, episodes, learners): (action - mean) / sigma
    reward: Array  # (horizon, episodes, learners)
    alive: Array  # (horizon, episodes, learners): the step was taken


class _Lane(NamedTuple):
    state: State
    alive: Array


class Move(NamedTuple):
    """One step of every lane; pieces of shape (episodes, learners)."""

    observation: Pieces
    action: Pieces
    noise: Pieces
    reward: Array


def _over_lanes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Batch f(context, ...) written for one lane: contexts are (learners,), the rest (episodes, learners)."""

    def batched(context: Any, *arguments: Any) -> Any:
        over_learners = jax.vmap(function)
        return jax.vmap(over_learners, in_axes=(None, *(0 for _ in arguments)))(context, *arguments)

    return batched


def _jax_env(rollout: Rollout) -> Env:
    if isinstance(rollout.env, HostEnv):
        raise InputError(
            f"env: {rollout.env.name!r} is simulated on the host, outside compiled functions: call the Estimator, "
            "or its `trajectories`, from plain Python."
        )
    return rollout.env


def _start(rollout: Rollout, context: Any, key: Array, num_learners: int) -> _Lane:
    env, shape = _jax_env(rollout), (rollout.num_episodes, num_learners)
    noise = standard_normals(key, 0, env.reset_noise, shape)
    # vmap needs an array to learn the batch size from; an environment that declares no normals must not see it.
    lanes = noise or (jnp.zeros(shape, jnp.float32),)

    def reset(task: Any, normals: Pieces) -> State:
        return env.reset(task, normals[: env.reset_noise])

    return _Lane(_over_lanes(reset)(context, lanes), jnp.ones(shape, bool))


def _advance(rollout: Rollout, theta: Array, context: Any, lane: _Lane, normals: Pieces) -> tuple[_Lane, Move]:
    """One step of every lane; a terminated lane keeps its state and earns nothing."""
    env, policy = _jax_env(rollout), rollout.policy
    action_noise, env_noise = normals[: policy.num_actions], normals[policy.num_actions :]
    observation = _over_lanes(env.observe)(context, lane.state)
    mean = policy.mean(theta, observation)
    action = tuple(m + policy.sigma * z for m, z in zip(mean, action_noise, strict=True))
    after = _over_lanes(env.step)(context, lane.state, action, env_noise)
    state = jax.tree.map(lambda new, old: jnp.where(lane.alive, new, old), after.state, lane.state)
    reward = jnp.where(lane.alive, after.reward, 0.0)
    return _Lane(state, lane.alive & ~after.terminated), Move(observation, action, action_noise, reward)


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _scan_steps(
    rollout: Rollout,
    key: Array,
    step: Callable[[Carry, Pieces], tuple[Carry, Any]],
    start: Carry,
    num_learners: int,
    digest: Callable[[Carry, Any], Carry] | None = None,
) -> tuple[Carry, Any]:
    """`lax.scan` over the horizon, a few steps at a time.

    The normals of a few steps are drawn ahead: drawn inside the step, they would be fused into, and computed again by, every
    expression that reads them. The numbers do not depend on how many steps are drawn at once: the step is their counter.

    Args:
        rollout, key, num_learners: whose normals to draw.
        step: carry, normals of the step -> carry, outputs.
        start: the first carry.
        digest: folds the outputs of a few steps, stacked, into the carry; without it the outputs of all steps are returned.
    """
    num = rollout.policy.num_actions + _jax_env(rollout).step_noise
    shape = (rollout.num_episodes, num_learners)
    most = _MOST_STEPS_AHEAD["cpu" if _on_cpu() else "gpu"]
    ahead = max(number for number in range(1, most + 1) if rollout.horizon % number == 0)

    def several_steps(carry: Carry, first: Array) -> tuple[Carry, Any]:
        draws = first + jnp.arange(ahead, dtype=jnp.uint32)
        carry, outputs = lax.scan(step, carry, standard_normals(key, draws, num, shape))
        return (carry, outputs) if digest is None else (digest(carry, outputs), None)

    carry, outputs = lax.scan(several_steps, start, jnp.arange(0, rollout.horizon, ahead, dtype=jnp.uint32))
    return carry, jax.tree.map(lambda array: array.reshape(rollout.horizon, *array.shape[2:]), outputs)


def keys_of(key: Array) -> tuple[Array, Array]:
    """The keys of the resets and of the steps of a batch."""
    return jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)


def _gpomdp_term(baseline: Baseline, score: Array, payoff: Array) -> Array:
    """Sum over episodes of (payoff - b) * score for one step, with b the best constant for this step and component."""
    total = jnp.sum(score * payoff, axis=-2)
    if baseline == "none":
        return total
    if baseline == "mean":
        return total - jnp.mean(payoff, axis=-2) * jnp.sum(score, axis=-2)
    square = score * score
    best = jnp.sum(square * payoff, axis=-2) / jnp.maximum(jnp.sum(square, axis=-2), _TINY)
    return total - best * jnp.sum(score, axis=-2)


def _moment_sums(observation: Pieces, alive: Array) -> Array:
    """Sum over live episodes of phi phi^T, phi = (1, s): (1 + observations, 1 + observations, learners)."""
    weight = alive.astype(jnp.float32)
    if len(observation) > _FEW_OBSERVATIONS:
        phi = jnp.stack((jnp.ones_like(weight), *observation))
        return jnp.einsum("iel,jel->ijl", weight * phi, phi, precision=lax.Precision.HIGHEST)
    features = (weight, *(weight * value for value in observation))
    size = len(features)
    upper = {(0, 0): jnp.sum(weight, axis=0)}
    for column in range(1, size):
        upper[0, column] = jnp.sum(features[column], axis=0)
        for row in range(1, column + 1):
            upper[row, column] = jnp.sum(features[column] * observation[row - 1], axis=0)
    return jnp.stack([jnp.stack([upper[min(i, j), max(i, j)] for j in range(size)]) for i in range(size)])


class Accumulator(NamedTuple):
    """Everything an estimate needs of the steps so far."""

    weight: Array  # gamma^t
    scores: Pieces  # sum of the scores of each episode up to now
    returns: Array  # (episodes, learners)
    gradient: Pieces  # summed over episodes
    moments: Array | None
    num_steps: Array


def empty(rollout: Rollout, theta: Array) -> Accumulator:
    """Before the first step; theta is (parameters, learners)."""
    policy, num_learners = rollout.policy, theta.shape[-1]
    lanes = jax.ShapeDtypeStruct((rollout.num_episodes, num_learners), jnp.float32)
    pieces = jax.eval_shape(policy.score, theta, (lanes,) * policy.num_observations, (lanes,) * policy.num_actions)
    size = 1 + policy.num_observations
    return Accumulator(
        weight=jnp.float32(1.0),
        scores=tuple(jnp.zeros(piece.shape, jnp.float32) for piece in pieces),
        returns=jnp.zeros(lanes.shape, jnp.float32),
        gradient=tuple(jnp.zeros((*piece.shape[:-2], num_learners), jnp.float32) for piece in pieces),
        moments=jnp.zeros((size, size, num_learners), jnp.float32) if policy.is_linear else None,
        num_steps=jnp.zeros(num_learners, jnp.float32),
    )


class _Followed(NamedTuple):
    """What the sums over episodes need of a step; several steps are stacked on a first axis."""

    scores: Pieces
    payoff: Array
    observation: Pieces
    alive: Array


def _follow(
    rollout: Rollout, theta: Array, sums: Accumulator, move: Move, alive: Array
) -> tuple[Accumulator, _Followed]:
    """Carry each episode one step on; nothing is summed over episodes yet."""
    score = rollout.policy.score(theta, move.observation, move.noise)
    scores = tuple(s + jnp.where(alive, now, 0.0) for s, now in zip(sums.scores, score, strict=True))
    payoff = sums.weight * move.reward
    after = sums._replace(weight=sums.weight * rollout.discount, scores=scores, returns=sums.returns + payoff)
    return after, _Followed(scores, payoff, move.observation, alive)


def _add_sums(sums: Accumulator, terms: Pieces, observation: Pieces, alive: Array) -> Accumulator:
    return sums._replace(
        gradient=tuple(total + term for total, term in zip(sums.gradient, terms, strict=True)),
        moments=None if sums.moments is None else sums.moments + _moment_sums(observation, alive),
        num_steps=sums.num_steps + jnp.sum(alive, axis=0, dtype=jnp.float32),
    )


def accumulate(rollout: Rollout, theta: Array, sums: Accumulator, move: Move, alive: Array) -> Accumulator:
    """Add one step.

    GPOMDP: `grad = 1/n sum_episodes sum_t (gamma^t r_t - b_t) sum_{k<=t} d log pi(a_k|s_k)`. The baseline b_t of a step needs
    only sums over the episodes at that step, so nothing of the past has to be kept but the running scores.
    """
    after, step = _follow(rollout, theta, sums, move, alive)
    terms = tuple(_gpomdp_term(rollout.baseline, piece, step.payoff) for piece in step.scores)
    return _add_sums(after, terms, step.observation, step.alive)


def _accumulate_several(rollout: Rollout, sums: Accumulator, steps: _Followed) -> Accumulator:
    """Add the sums of several steps, stacked, that `_follow` has been through."""
    term = jax.vmap(partial(_gpomdp_term, rollout.baseline))
    terms = tuple(jnp.sum(term(piece, steps.payoff), axis=0) for piece in steps.scores)
    observation = tuple(piece.reshape(-1, piece.shape[-1]) for piece in steps.observation)
    return _add_sums(sums, terms, observation, steps.alive.reshape(-1, steps.alive.shape[-1]))


def finish(rollout: Rollout, sums: Accumulator) -> Sums:
    """The statistics of the batch."""
    return Sums(
        mean_return=jnp.mean(sums.returns, axis=0),
        return_variance=jnp.var(sums.returns, axis=0),
        gradient=flatten(sums.gradient) / rollout.num_episodes,
        moments=sums.moments,
        num_steps=sums.num_steps,
    )


def fold(
    rollout: Rollout,
    theta: Array,
    context: Array,
    key: Array,
    start: Accumulated,
    add: Callable[[Accumulated, Move, Array], Accumulated],
) -> Accumulated:
    """Simulate and reduce on the fly; memory does not depend on the horizon.

    Args:
        rollout: what to simulate.
        theta: (learners, parameters).
        context: (learners, coordinates).
        key: one key for the whole batch; each lane takes its own part of every draw.
        start: what is accumulated, before the first step.
        add: accumulated, move, alive -> accumulated; `alive` (episodes, learners) says which lanes took this step.
    """
    theta = theta.T
    named = rollout.env.context_space.unpack(context)
    reset_key, step_key = keys_of(key)

    def advance(carry: tuple[_Lane, Accumulated], normals: Pieces) -> tuple[tuple[_Lane, Accumulated], None]:
        lane, accumulated = carry
        after, move = _advance(rollout, theta, named, lane, normals)
        return (after, add(accumulated, move, lane.alive)), None

    first = _start(rollout, named, reset_key, theta.shape[-1]), start
    return _scan_steps(rollout, step_key, advance, first, theta.shape[-1])[0][1]


def fold_over(
    episodes: Trajectories, start: Accumulated, add: Callable[[Accumulated, Move, Array], Accumulated]
) -> Accumulated:
    """What `fold` gives for the policy, tasks and key that these trajectories come from."""

    def advance(accumulated: Accumulated, step: Trajectories) -> tuple[Accumulated, None]:
        move = Move(tuple(step.observation), tuple(step.action), tuple(step.noise), step.reward)
        return add(accumulated, move, step.alive), None

    return lax.scan(advance, start, episodes)[0]


def stream(rollout: Rollout, theta: Array, context: Array, key: Array) -> Sums:
    """Everything an estimate needs of a batch, reduced on the fly: memory does not depend on the horizon.

    The arguments are those of `fold`. On a CPU every step is summed at once, while it is in the cache; a GPU sums several
    steps together, since it takes few, large reductions to keep it busy.
    """
    if _on_cpu():
        add = partial(accumulate, rollout, theta.T)
        return finish(rollout, fold(rollout, theta, context, key, empty(rollout, theta.T), add))
    theta = theta.T
    named = rollout.env.context_space.unpack(context)
    reset_key, step_key = keys_of(key)

    def advance(carry: tuple[_Lane, Accumulator], normals: Pieces) -> tuple[tuple[_Lane, Accumulator], _Followed]:
        lane, sums = carry
        after, move = _advance(rollout, theta, named, lane, normals)
        sums, followed = _follow(rollout, theta, sums, move, lane.alive)
        return (after, sums), followed

    def digest(carry: tuple[_Lane, Accumulator], steps: _Followed) -> tuple[_Lane, Accumulator]:
        return carry[0], _accumulate_several(rollout, carry[1], steps)

    start = _start(rollout, named, reset_key, theta.shape[-1]), empty(rollout, theta)
    (_, sums), _ = _scan_steps(rollout, step_key, advance, start, theta.shape[-1], digest)
    return finish(rollout, sums)


def discounted_returns(rollout: Rollout, theta: Array, context: Array, key: Array) -> Array:
    """The discounted return of every episode, (episodes, learners), at a fraction of the cost of `stream`."""

    def add(sums: tuple[Array, Array], move: Move, alive: Array) -> tuple[Array, Array]:
        weight, returns = sums
        return weight * rollout.discount, returns + weight * move.reward

    start = jnp.float32(1.0), jnp.zeros((rollout.num_episodes, theta.shape[0]), jnp.float32)
    return fold(rollout, theta, context, key, start, add)[1]


def trajectories(rollout: Rollout, theta: Array, context: Array, key: Array) -> Trajectories:
    """The same simulation as `stream` with the same key, every step returned."""
    theta = theta.T
    named = rollout.env.context_space.unpack(context)
    reset_key, step_key = keys_of(key)

    def advance(lane: _Lane, normals: Pieces) -> tuple[_Lane, Trajectories]:
        after, move = _advance(rollout, theta, named, lane, normals)
        observation, action, noise = (jnp.stack(pieces) for pieces in move[:3])
        return after, Trajectories(observation, action, noise, move.reward, lane.alive)

    start = _start(rollout, named, reset_key, theta.shape[-1])
    return _scan_steps(rollout, step_key, advance, start, theta.shape[-1])[1]


def sums_of(rollout: Rollout, theta: Array, episodes: Trajectories) -> Sums:
    """The statistics of whole trajectories: what `stream` gives for the same policy, tasks and key."""
    add = partial(accumulate, rollout, theta.T)
    return finish(rollout, fold_over(episodes, empty(rollout, theta.T), add))
