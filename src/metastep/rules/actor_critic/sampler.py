"""Sample batches of a fixed number of steps from parallel environments with automatic resets.

In JAX, episodes continue from one batch to the next; after an episode has terminated, or is truncated at the horizon, a new one
starts in the same task. The state of a simulator on the host is not kept, so every batch starts with new episodes: the result
depends only on a learner's arrays and keys, also if a run is resumed. Everything else is the same in both cases.

Updates use generalised advantage estimation (Schulman and others, 2016).
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.numerics import standard_normals
from metastep._core.settings import Count, Share, check_fields
from metastep.envs.base import Env, State, range_of
from metastep.envs.host import Episodes, HostEnv, Restartable
from metastep.policies.actor_critic import ActorCritic, Parts
from metastep.rules.actor_critic.scales import first_scales
from metastep.simulation.engine import compiled, draw_seeds, numbers_last, require_host_env
from metastep.simulation.rollouts import mean_and_error, require_fit

_RESETS, _SEEDS = 2**32 - 1, 2**32 - 2  # beside the batch's own key, in whose stream no environment has such a number


class Lanes(NamedTuple):
    """Environments between two batches; every array is (learners, envs)."""

    state: State  # empty on the host, where the simulator has it
    elapsed: Array  # steps of the current episode
    paid: Array  # sum of its rewards so far
    last_return: Array  # of the last finished episode; on the host, of the first episode in the batch
    has_ended: Array  # whether an episode has finished
    scales: Any = None  # `Scales`, if observations or rewards are normalised


class Steps(NamedTuple):
    """The steps of a batch; every array is (learners, steps, envs, ...). Outputs of actor and critic are None at first."""

    observation: Array
    action: Array
    reward: Array
    seen_next: Any  # next observation, before a reset; None after `evaluate_steps`
    terminated: Array  # the episode ended in a terminal state
    ended: Array  # terminated, or truncated at the horizon
    log_density: Any = None  # log pi(action)
    entropy: Any = None
    value: Any = None  # the critic's value of the observation
    next_value: Any = None  # and of the next observation


class Experience(NamedTuple):
    """The data of a batch for an update, and its statistics; learners first, then all steps of the batch."""

    observation: Array  # (learners, batch, observations)
    action: Array  # (learners, batch, actions)
    log_density: Array  # (learners, batch): log pi(action) when it was taken
    value: Array  # (learners, batch), of the critic
    advantage: Array  # (learners, batch)
    target: Array  # (learners, batch), of the critic
    mean_return: Array  # (learners,): j, of the `last_return` of every environment, without discount
    return_error: Array  # (learners,): its standard error
    entropy: Array  # (learners,): of the policy, mean over the batch
    num_steps: Array  # (learners,): environment steps
    lanes: Lanes  # at the start of the next batch
    differences: tuple[Array, Array] | None = None  # `temporal_differences`, if lambda is chosen for each update


def evaluate_steps(policy: ActorCritic, parts: Parts, steps: Steps) -> Steps:
    """Evaluate actor and critic of one learner on its whole batch; the arrays have no axis of learners here."""
    distribution = policy.act(parts, steps.observation)
    return steps._replace(
        next_value=policy.value(parts, steps.seen_next),
        value=policy.value(parts, steps.observation),
        log_density=distribution.log_density(steps.action),
        entropy=distribution.entropy(),
        seen_next=None,
    )


def in_first_episode(ended: Array) -> Array:
    """Return whether a step (..., steps, envs) belongs to the first episode of its environment."""
    ends = ended.astype(jnp.int32)
    return jnp.cumsum(ends, axis=-2) == ends  # none has ended before


def temporal_differences(steps: Steps, discount: float, gae_lambda: float = 1.0) -> tuple[Array, Array]:
    """Return d_t = r_t + gamma V(s_{t+1}) - V(s_t), and the weight gamma lambda of A_{t+1}: each (learners, steps, envs).

    The value of a terminal state is 0. At a truncation, and at the end of the batch, the critic's value replaces later rewards;
    sums over later steps end with the episode.
    """
    future = jnp.where(steps.terminated, 0.0, steps.next_value)
    return steps.reward + discount * future - steps.value, jnp.where(steps.ended, 0.0, discount * gae_lambda)


def advantages(surprise: Array, decay: Array) -> Array:
    """Return A_t = d_t + gamma lambda A_{t+1} from `temporal_differences`: (learners, steps, envs)."""

    def back(later: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        total = now[0] + now[1] * later
        return total, total

    in_time = tuple(jnp.swapaxes(array, 0, 1) for array in (surprise, decay))
    _, totals = lax.scan(back, jnp.zeros_like(surprise[:, 0]), in_time, reverse=True)
    return jnp.swapaxes(totals, 0, 1)


def with_lambda(batch: Experience, gae_lambda: Array) -> Experience:
    """Return a batch, which has kept its differences, with advantages and targets for each learner's lambda (learners,)."""
    assert batch.differences is not None
    surprise, discount = batch.differences
    advantage = advantages(surprise, discount * gae_lambda[:, None, None]).reshape(batch.advantage.shape)
    return batch._replace(advantage=advantage, target=advantage + batch.value)


def steps_at_once() -> int:
    """Return by how many steps a loop is unrolled: four are 25 % faster on a GPU, and not faster on a CPU."""
    return 4 if jax.default_backend() == "gpu" else 1


@dataclass(frozen=True)
class Sampler:
    """The settings of the simulation for an update.

    Args:
        num_envs: environments of a learner that run side by side.
        num_steps: steps of each environment in the batch of one update.
        hold: environment steps for which an action is held, and whose rewards are added up; together one step of a batch.
        normalise_observations, normalise_rewards: whether a learner divides them by their standard deviation so far, as
            Stable-Baselines3's VecNormalize does; returns are those of the rewards as they are.
    """

    env: Env | HostEnv
    policy: ActorCritic
    num_envs: Count
    num_steps: Count
    horizon: Count  # steps after which an episode is truncated; the critic's value then replaces later rewards
    discount: Share = 0.99  # of the rewards, gamma
    hold: Count = 1
    # Number of equal parts of a block that share all noise: learner i of every part has the same.
    twins: Count = field(default=1, metadata={"newer": "0.3"})
    normalise_observations: bool = field(default=False, metadata={"newer": "0.3"})
    normalise_rewards: bool = field(default=False, metadata={"newer": "0.3"})

    def __post_init__(self) -> None:
        check_fields(self, "rollout")
        if self.batch_size < 2:
            raise InputError("rollout.num_steps: a batch of 1 step has no spread, at least 2 steps are needed.")
        require_fit(self.env, self.policy)
        reach = self.num_steps * self.hold
        if isinstance(self.env, HostEnv) and self.normalises:
            raise InputError(f"rollout.normalise_{self.normalises[0]}: must be false, {self.env.name!r} is not JAX.")
        if isinstance(self.env, HostEnv) and self.horizon > reach:
            most = f"the {reach} steps of each environment in a batch (num_steps times hold)"
            why = f"{self.env.name!r} is not JAX, so every batch begins with new episodes"
            raise InputError(f"rollout.horizon: {self.horizon} must not exceed {most}: {why}.")

    @property
    def batch_size(self) -> int:
        """The number of steps of a learner for one update."""
        return self.num_envs * self.num_steps

    @property
    def normalises(self) -> tuple[str, ...]:
        """What is normalised, observations or rewards."""
        return tuple(name for name in ("observations", "rewards") if getattr(self, f"normalise_{name}"))

    def start(self, context: Array, key: Array) -> Lanes:
        """Start an episode in every environment, in the tasks context (learners, coordinates)."""
        shape = (len(context), self.num_envs)
        nothing = jnp.zeros(shape, jnp.float32)
        state: State = ()
        if not isinstance(self.env, HostEnv):
            drawn = standard_normals(key, 0, self.env.reset_noise, self._drawn(len(context)))
            noise = [jnp.tile(array, (self.twins, 1)) for array in drawn]
            # vmap needs an array for the batch size, also if an environment declares no normals.
            state = jax.vmap(partial(_reset_one, self.env))(context, jnp.stack((*noise, nothing), axis=-1))
        scales = None
        if not isinstance(self.env, HostEnv) and self.normalises:
            named = jax.vmap(self.env.context_space.unpack)(context)
            seen = jax.vmap(partial(_observe_one, self.env))(named, state)
            scales = jax.vmap(partial(first_scales, self.normalises))(seen)
        return Lanes(state, nothing, nothing, nothing, jnp.zeros(shape, bool), scales)

    def __call__(
        self, theta: Array, context: Array, lanes: Lanes, key: Array, gae_lambda: float, keeps_differences: bool = False
    ) -> Experience:
        """Sample the next batch of learners with these parameters (learners, parameters)."""
        lanes, steps = self.simulate(theta, context, lanes, key)
        # For host environments, this is not part of a larger compiled program; static arguments come first.
        summarise = compiled(_experience) if isinstance(self.env, HostEnv) else _experience
        return summarise((self, gae_lambda, keeps_differences), lanes, steps)

    def simulate(self, theta: Array, context: Array, lanes: Lanes, key: Array) -> tuple[Lanes, Steps]:
        """Step every environment of every learner `num_steps` times."""
        if isinstance(self.env, HostEnv):
            played = play_on_host(self, require_host_env(self.env, theta), theta, context, key)
            return compiled(_from_host)(self, theta, played)
        normals, simulate = self.normals(key, len(theta)), partial(_simulate_one, self, self.env)
        return jax.vmap(simulate, in_axes=(0, 0, 0, 1))(self.policy.split(theta), context, lanes, normals)

    def normals(self, key: Array, num_learners: int) -> Array:
        """Draw the normals of a batch, (steps, learners, envs, numbers): for the action, the dynamics and a reset."""
        num = self.policy.num_actions + self.hold * self.env.step_noise + self.env.reset_noise
        draws = jnp.arange(self.num_steps, dtype=jnp.uint32)
        drawn = jnp.stack(standard_normals(key, draws, num, self._drawn(num_learners)), axis=-1)
        return jnp.tile(drawn, (1, self.twins, 1, 1))

    def _drawn(self, num_learners: int) -> tuple[int, int]:
        """Return for how many learners and environments noise is drawn; twins repeat it."""
        return num_learners // self.twins, self.num_envs


def _experience(settings: tuple[Sampler, float, bool], lanes: Lanes, steps: Steps) -> Experience:
    """Summarise a batch; `settings` are the sampler, lambda of the advantages, and whether to keep the temporal differences."""
    sampler, gae_lambda, keeps_differences = settings
    advantage = advantages(*temporal_differences(steps, sampler.discount, gae_lambda))
    learners = len(advantage)

    def flat(array: Array) -> Array:
        return array.reshape(learners, sampler.batch_size, *array.shape[3:])

    mean_return, return_error = mean_and_error(jnp.where(lanes.has_ended, lanes.last_return, lanes.paid), jnp)
    copied: dict[str, Any] = {name: getattr(steps, name) for name in ("observation", "action", "log_density", "value")}
    return Experience(
        **{name: flat(array) for name, array in copied.items()},
        advantage=flat(advantage),
        target=flat(advantage + steps.value),
        mean_return=mean_return,
        return_error=return_error,
        entropy=jnp.mean(steps.entropy, axis=(1, 2)),
        num_steps=jnp.full(learners, float(sampler.hold * sampler.batch_size), jnp.float32),
        lanes=lanes,
        differences=temporal_differences(steps, sampler.discount) if keeps_differences else None,
    )


def _reset_one(env: Env, context: Array, normals: Array) -> State:
    """Reset every environment (envs, normals) of one learner."""
    named, num = env.context_space.unpack(context), env.reset_noise
    return jax.vmap(lambda noise: env.reset(named, tuple(noise[:num])))(normals)


def _observe_one(env: Env, named: Any, state: State) -> Array:
    """Return the observations of all environments of one learner, in its task: (envs, observations)."""
    return jax.vmap(lambda each: jnp.stack(env.observe(named, each)))(state)


def _simulate_one(
    sampler: Sampler, env: Env, parts: Parts, context: Array, lanes: Lanes, normals: Array
) -> tuple[Lanes, Steps]:
    """Step the environments of one learner."""
    policy, named = sampler.policy, env.context_space.unpack(context)
    observe = partial(_observe_one, env, named)
    chosen_by, moved_by = policy.num_actions, policy.num_actions + sampler.hold * env.step_noise
    limits = None if policy.is_discrete else range_of(env)

    def move(state: State, action: Array, noise: Array) -> Any:
        return env.step(named, state, tuple(action), tuple(noise))

    def play(state: State, elapsed: Array, action: Array, noise: Array) -> tuple[Any, Array]:
        """Repeat the action `hold` times, or until the episode ends."""
        made = action if limits is None else jnp.clip(action, *limits)
        after, elapsed = jax.vmap(move)(state, made, noise[:, : env.step_noise]), elapsed + 1.0
        for index in range(1, sampler.hold):
            goes_on = ~after.terminated & (elapsed < sampler.horizon)
            drawn = noise[:, index * env.step_noise : (index + 1) * env.step_noise]
            later = jax.vmap(move)(after.state, made, drawn)
            later = later._replace(reward=after.reward + later.reward)
            after = jax.tree.map(lambda new, old, goes_on=goes_on: jnp.where(goes_on, new, old), later, after)
            elapsed = elapsed + goes_on.astype(jnp.float32)
        return after, elapsed

    def step(lane: tuple[Lanes, Array], noise: Array) -> tuple[tuple[Lanes, Array], Steps]:
        before, observation = lane
        action = policy.act(parts, observation).sample(noise[:, :chosen_by])
        after, elapsed = play(before.state, before.elapsed, action, noise[:, chosen_by:moved_by])
        paid = before.paid + after.reward
        ended = after.terminated | (elapsed >= sampler.horizon)
        fresh = _reset_one(env, context, noise[:, moved_by:])
        state = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, after.state)
        seen_next = observe(after.state)
        in_episode, sum_so_far = (jnp.where(ended, 0.0, count) for count in (elapsed, paid))
        last_return = jnp.where(ended, paid, before.last_return)
        lanes = Lanes(state, in_episode, sum_so_far, last_return, before.has_ended | ended)
        seen, reward = jnp.where(ended[:, None], observe(fresh), seen_next), after.reward
        if before.scales is not None:
            scales = before.scales.after(seen, reward, ended, sampler.discount)
            lanes, reward = lanes._replace(scales=scales), scales.rewards(reward)
            seen, seen_next = scales.observations(seen), scales.observations(seen_next)
        return (lanes, seen), Steps(observation, action, reward, seen_next, after.terminated, ended)

    seen = observe(lanes.state)
    seen = seen if lanes.scales is None else lanes.scales.observations(seen)
    (lanes, _), steps = lax.scan(step, (lanes, seen), normals, unroll=steps_at_once())
    return lanes, evaluate_steps(policy, parts, steps)


def _from_host(sampler: Sampler, theta: Array, played: Steps) -> tuple[Lanes, Steps]:
    """Return the steps of a batch from the host."""
    # All environments started an episode together, and the first ones have all ended, so their mean return is unbiased; the
    # last finished episodes would be short ones.
    steps = jax.vmap(partial(evaluate_steps, sampler.policy))(sampler.policy.split(theta), played)
    first_return = jnp.sum(jnp.where(in_first_episode(steps.ended), steps.reward, 0.0), axis=1)
    nothing = jnp.zeros_like(first_return)
    return Lanes((), nothing, nothing, first_return, nothing == 0.0), steps


@partial(jax.jit, static_argnums=(0, 2))
def _draw(sampler: Sampler, key: Array, num_learners: int) -> tuple[Array, Array, Array]:
    """Draw the normals of the steps, as in JAX, those of the first resets, and seeds; learners come before environments."""
    env, twins, shape = sampler.env, sampler.twins, sampler._drawn(num_learners)
    resets = numbers_last(standard_normals(jax.random.fold_in(key, _RESETS), 0, env.reset_noise, shape), shape)
    seeds = draw_seeds(jax.random.fold_in(key, _SEEDS), (sampler.num_steps, *shape))
    return sampler.normals(key, num_learners), jnp.tile(resets, (twins, 1, 1)), jnp.tile(seeds, (1, twins, 1))


@partial(jax.jit, static_argnums=0)
def _choose(policy: ActorCritic, theta: Array, observation: Array, normals: Array) -> Array:
    """Draw actions for observations (learners, envs, observations)."""
    choose = jax.vmap(lambda theta, seen, drawn: policy.act(policy.split(theta), seen).sample(drawn))
    return choose(theta, observation, normals)


def _swapped(array: Any) -> NDArray[Any]:
    """Return a read-only copy with learners and environments swapped: simulators have environments first."""
    copy = np.array(np.swapaxes(array, 0, 1), order="C")
    copy.setflags(write=False)
    return copy


def restartable(env: HostEnv, episodes: Episodes) -> Restartable:
    """Return the episodes; raise an error if they cannot restart, which batches of steps need."""
    if not isinstance(episodes, Restartable):
        raise InputError(f"env.name: {env.name!r} has episodes without `restart`, which batches of steps need.")
    return episodes


def play_on_host(sampler: Sampler, env: HostEnv, theta: Array, context: Array, key: Array) -> Steps:
    """Step every environment of every learner `num_steps` times, starting with new episodes."""
    policy, num = sampler.policy, env.step_noise
    normals, resets, seeds = (np.asarray(array) for array in _draw(sampler, key, len(theta)))
    chosen_by, moved_by = policy.num_actions, policy.num_actions + sampler.hold * num
    limits = None if policy.is_discrete else range_of(env)
    episodes = restartable(env, env.start_episodes(np.asarray(context), _swapped(resets), _swapped(seeds[0])))
    steps = []
    elapsed = np.zeros((sampler.num_envs, len(theta)), np.int64)
    seen = _swapped(episodes.observe()).astype(np.float32)
    for t in range(sampler.num_steps):
        action = np.asarray(_choose(policy, theta, seen, normals[t, ..., :chosen_by]))
        made = _swapped(action if limits is None else np.clip(action, *limits))
        noise = _swapped(normals[t, ..., chosen_by:moved_by])
        reward = np.zeros(elapsed.shape)
        terminated, ended = np.zeros((2, *elapsed.shape), np.bool_)
        for index in range(sampler.hold):  # repeat the action, unless the episode ends
            goes_on = ~ended
            goes_on.setflags(write=False)  # like all arrays that a simulator receives
            after = episodes.step(made, noise[..., index * num : (index + 1) * num], goes_on)
            reward = np.where(goes_on, reward + after.reward, reward)
            terminated = terminated | (goes_on & after.terminated)
            elapsed = elapsed + goes_on
            ended = ended | (goes_on & after.over) | (elapsed >= sampler.horizon)
        ended.setflags(write=False)
        seen_next = _swapped(episodes.observe()).astype(np.float32)
        paid = _swapped(reward).astype(np.float32)
        steps.append((seen, action, paid, seen_next, _swapped(terminated), _swapped(ended)))  # as in Steps
        seen = seen_next
        if ended.any() and t + 1 < sampler.num_steps:
            episodes.restart(ended, _swapped(normals[t, ..., moved_by:]), _swapped(seeds[t + 1]))
            elapsed = np.where(ended, 0, elapsed)
            seen = _swapped(episodes.observe()).astype(np.float32)
    played: Any = (np.stack(arrays, axis=1) for arrays in zip(*steps, strict=True))
    return Steps(*played)
