"""Batches of a fixed number of steps from environments that run side by side and restart by themselves.

Episodes go on from one batch to the next. One that has ended, or is cut off at the horizon, gives way to a new one in the same
task. On the host, every batch begins with new ones (`rules.actor_critic.on_host`). Functions with `_one` in their name are
written for one learner and batched with `jax.vmap`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep._core.errors import InputError
from metastep._core.numerics import standard_normals
from metastep._core.settings import Count, Share, check_fields
from metastep.envs.base import Env, State, range_of
from metastep.envs.host import HostEnv
from metastep.policies.actor_critic import ActorCritic, Parts
from metastep.rules.actor_critic.on_host import play_batch
from metastep.rules.actor_critic.steps import Played, Steps, advantages, in_first_episode, steps_at_once, steps_of
from metastep.simulation.engine import compiled
from metastep.simulation.rollouts import require_fit
from metastep.simulation.sums import mean_and_error


class Lanes(NamedTuple):
    """Environments between two batches; every array is (learners, envs)."""

    state: State  # nothing on the host, where a simulator keeps its own
    elapsed: Array  # steps of the episode that is running
    paid: Array  # its rewards so far
    last_return: Array  # of the episode that ended last; on the host, of the first one of the batch
    has_ended: Array  # whether there is one


class Experience(NamedTuple):
    """One batch: what an update learns from, and what it says about each learner; learners first, then all steps."""

    observation: Array  # (learners, batch, observations)
    action: Array  # (learners, batch, actions)
    log_density: Array  # (learners, batch): log pi(action) when it was taken
    value: Array  # (learners, batch): the critic's
    advantage: Array  # (learners, batch)
    target: Array  # (learners, batch): what the critic should have said
    mean_return: Array  # (learners,): j, of the `last_return` of every environment, without discount
    return_error: Array  # (learners,): its standard error
    entropy: Array  # (learners,): of the policy, mean over the batch
    num_steps: Array  # (learners,): environment steps
    lanes: Lanes  # where the next batch goes on


@dataclass(frozen=True)
class Sampler:
    """What is simulated for an update.

    Args:
        env: the family of tasks, in JAX or on the host.
        policy: actor and critic.
        num_envs: environments of a learner that run side by side.
        num_steps: steps of each environment in the batch of one update.
        horizon: steps after which an episode is cut off; the critic says what would have come. On the host at most as many as
            each environment has in a batch.
        discount: discount of the rewards, gamma.
        hold: environment steps for which an action is held; what they pay is added up. All of them are one step of a batch.
    """

    env: Env | HostEnv
    policy: ActorCritic
    num_envs: Count
    num_steps: Count
    horizon: Count
    discount: Share = 0.99
    hold: Count = 1

    def __post_init__(self) -> None:
        check_fields(self, "rollout")
        if self.num_envs * self.num_steps < 2:
            raise InputError("rollout.num_steps: a batch of 1 step has no spread, at least 2 steps are needed.")
        require_fit(self.env, self.policy)
        reach = self.num_steps * self.hold
        if isinstance(self.env, HostEnv) and self.horizon > reach:
            raise InputError(
                f"rollout.horizon: {self.horizon} must not exceed the {reach} steps of each environment in a batch (num_steps "
                f"times hold): {self.env.name!r} is not JAX, so every batch begins with new episodes, and later "
                "states are never seen."
            )

    @property
    def batch_size(self) -> int:
        """Steps of a learner for one update."""
        return self.num_envs * self.num_steps

    def start(self, context: Array, key: Array) -> Lanes:
        """Start an episode in every environment, in the tasks context (learners, coordinates)."""
        shape = (len(context), self.num_envs)
        nothing = jnp.zeros(shape, jnp.float32)
        state: State = ()
        if not isinstance(self.env, HostEnv):
            noise = standard_normals(key, 0, self.env.reset_noise, shape)
            # vmap needs an array to learn the batch size from, also where an environment declares no normals.
            state = jax.vmap(self._reset_one)(context, jnp.stack((*noise, nothing), axis=-1))
        return Lanes(state, nothing, nothing, nothing, jnp.zeros(shape, bool))

    def __call__(self, theta: Array, context: Array, lanes: Lanes, key: Array, gae_lambda: float) -> Experience:
        """Sample the next batch of learners with these parameters (learners, parameters)."""
        lanes, steps = self.simulate(theta, context, lanes, key)
        # On the host this is not part of a larger program; static arguments come first.
        summarise = compiled(_experience) if isinstance(self.env, HostEnv) else _experience
        experience: Experience = summarise((self, gae_lambda), lanes, steps)
        return experience

    def blank(self, theta: Array, context: Array) -> Experience:
        """Return a batch of the right form, with meaningless numbers."""
        policy, shape = self.policy, (len(theta), self.num_steps, self.num_envs)
        seen, paid = jnp.zeros((*shape, policy.num_observations), jnp.float32), jnp.zeros(shape, jnp.float32)
        action = jnp.zeros((*shape, policy.num_actions), jnp.int32 if policy.is_discrete else jnp.float32)
        played = Played(seen, action, paid, seen, paid > 0.0, paid > 0.0)
        steps = jax.vmap(partial(steps_of, self.policy))(self.policy.split(theta), played)
        return _experience((self, 1.0), self.start(context, jax.random.key(0)), steps)

    def simulate(self, theta: Array, context: Array, lanes: Lanes, key: Array) -> tuple[Lanes, Steps]:
        """Step every environment of every learner `num_steps` times."""
        if isinstance(self.env, HostEnv):
            simulated: tuple[Lanes, Steps] = compiled(_from_host)(self, theta, play_batch(self, theta, context, key))
            return simulated
        normals = self.normals(key, len(theta))
        return jax.vmap(self._simulate_one, in_axes=(0, 0, 0, 1))(self.policy.split(theta), context, lanes, normals)

    def normals(self, key: Array, num_learners: int) -> Array:
        """Draw the normals of a batch, (steps, learners, envs, numbers): for the action, the dynamics and a reset."""
        num = self.policy.num_actions + self.hold * self.env.step_noise + self.env.reset_noise
        draws = jnp.arange(self.num_steps, dtype=jnp.uint32)
        return jnp.stack(standard_normals(key, draws, num, (num_learners, self.num_envs)), axis=-1)

    @property
    def _jax_env(self) -> Env:
        assert not isinstance(self.env, HostEnv)  # it is played, not compiled
        return self.env

    def _reset_one(self, context: Array, normals: Array) -> State:
        """Reset every environment (envs, normals) of one learner."""
        env = self._jax_env
        named, num = env.context_space.unpack(context), env.reset_noise
        return jax.vmap(lambda noise: env.reset(named, tuple(noise[:num])))(normals)

    def _observe_one(self, context: Array, state: State) -> Array:
        env = self._jax_env
        named = env.context_space.unpack(context)
        return jax.vmap(lambda each: jnp.stack(env.observe(named, each)))(state)

    def _simulate_one(self, parts: Parts, context: Array, lanes: Lanes, normals: Array) -> tuple[Lanes, Steps]:
        env, policy = self._jax_env, self.policy
        named = env.context_space.unpack(context)
        chosen_by, moved_by = policy.num_actions, policy.num_actions + self.hold * env.step_noise
        limits = None if policy.is_discrete else range_of(env)

        def move(state: State, action: Array, noise: Array) -> Any:
            return env.step(named, state, tuple(action), tuple(noise))

        def play(state: State, elapsed: Array, action: Array, noise: Array) -> tuple[Any, Array]:
            """Hold the action until its time, or that of the episode, is over."""
            made = action if limits is None else jnp.clip(action, *limits)
            after, elapsed = jax.vmap(move)(state, made, noise[:, : env.step_noise]), elapsed + 1.0
            for index in range(1, self.hold):
                goes_on = ~after.terminated & (elapsed < self.horizon)
                drawn = noise[:, index * env.step_noise : (index + 1) * env.step_noise]
                later = jax.vmap(move)(after.state, made, drawn)
                later = later._replace(reward=after.reward + later.reward)
                after = jax.tree.map(lambda new, old, goes_on=goes_on: jnp.where(goes_on, new, old), later, after)
                elapsed = elapsed + goes_on.astype(jnp.float32)
            return after, elapsed

        def step(lane: tuple[Lanes, Array], noise: Array) -> tuple[tuple[Lanes, Array], Played]:
            before, observation = lane
            action = policy.act(parts, observation).sample(noise[:, :chosen_by])
            after, elapsed = play(before.state, before.elapsed, action, noise[:, chosen_by:moved_by])
            paid = before.paid + after.reward
            ended = after.terminated | (elapsed >= self.horizon)
            fresh = self._reset_one(context, noise[:, moved_by:])
            state = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, after.state)
            seen_next = self._observe_one(context, after.state)
            lanes = Lanes(
                state=state,
                elapsed=jnp.where(ended, 0.0, elapsed),
                paid=jnp.where(ended, 0.0, paid),
                last_return=jnp.where(ended, paid, before.last_return),
                has_ended=before.has_ended | ended,
            )
            seen = jnp.where(ended[:, None], self._observe_one(context, fresh), seen_next)
            return (lanes, seen), Played(observation, action, after.reward, seen_next, after.terminated, ended)

        start = lanes, self._observe_one(context, lanes.state)
        (lanes, _), played = lax.scan(step, start, normals, unroll=steps_at_once())
        return lanes, steps_of(policy, parts, played)


def _experience(how: tuple[Sampler, float], lanes: Lanes, steps: Steps) -> Experience:
    """Summarise a batch; `how` is the sampler and lambda of the advantages."""
    sampler, gae_lambda = how
    advantage = advantages(steps, sampler.discount, gae_lambda)
    learners = len(advantage)

    def flat(array: Array) -> Array:
        return array.reshape(learners, sampler.batch_size, *array.shape[3:])

    returns = jnp.where(lanes.has_ended, lanes.last_return, lanes.paid)
    mean_return, return_error = mean_and_error(returns, jnp)
    return Experience(
        observation=flat(steps.observation),
        action=flat(steps.action),
        log_density=flat(steps.log_density),
        value=flat(steps.value),
        advantage=flat(advantage),
        target=flat(advantage + steps.value),
        mean_return=mean_return,
        return_error=return_error,
        entropy=jnp.mean(steps.entropy, axis=(1, 2)),
        num_steps=jnp.full(learners, float(sampler.hold * sampler.batch_size), jnp.float32),
        lanes=lanes,
    )


def _from_host(sampler: Sampler, theta: Array, played: Played) -> tuple[Lanes, Steps]:
    """Return the steps of a batch from the host.

    All environments began an episode together, so the first one of each, which has ended, says what the policy is worth; the
    last that has ended would be among the short ones.
    """
    steps = jax.vmap(partial(steps_of, sampler.policy))(sampler.policy.split(theta), played)
    first_return = jnp.sum(jnp.where(in_first_episode(steps.ended), steps.reward, 0.0), axis=1)
    nothing = jnp.zeros_like(first_return)
    return Lanes((), nothing, nothing, first_return, nothing == 0.0), steps
