"""The meta-MDP of PPO and its relatives: an update learns from a batch of steps, and the environments run on."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep import diagnostics
from metastep.actor_critic import PPO, ActorCriticRule, Experience, Lanes, Sampler
from metastep.blocks import Purpose, Stream, purpose_key
from metastep.envs import Env
from metastep.errors import InputError
from metastep.mdp.base import Learners, Tasks, check_choices, draw_tasks
from metastep.mdp.initial import InitialPolicy
from metastep.policies import ActorCritic
from metastep.rules import RuleState
from metastep.settings import Count, Share, check_fields
from metastep.simulation.engine import compiled
from metastep.spaces import HyperparameterSpace, MenuSpace

_DEFAULT_OBSERVATION = ("last_divergence", "clip_fraction", "change_in_errors", "last_rate", "budget")
_STEPS_BETWEEN_HALTS = 10_000_000
_START = 2**32 - 1  # the number of an update that never comes


class LastUpdate(NamedTuple):
    """What is remembered of a learner's last update; zeros before the first."""

    mean_return: Array  # (learners,), before it
    step: Array  # (learners, parameters): theta' - theta
    divergence: Array  # (learners,): KL between the policies before and after
    clip_fraction: Array  # (learners,)
    rate: Array  # (learners,): the step that was chosen
    ratio: Array  # (learners,): length of the step over that of the one before it
    cosine: Array  # (learners,): of the angle between these two
    first_entropy: Array  # (learners,): of the policy on the first batch of all


@dataclass(frozen=True)
class ActorCriticMDP:
    """The meta-MDP whose updates learn from batches of steps, with an actor and a critic.

    Args:
        sampler: the family of tasks, the policy and how a batch is sampled.
        space: what is chosen for an update: the learning rate, say.
        rule: the update.
        initial: the distribution of first parameters.
        meta_discount: discount of the improvements, gamma~.
        observation: features that make up the meta-observation, in this order.
        block_size: learners simulated together; part of what makes a result repeatable.
        budget: updates that a learner has, of which the feature of that name is a share.
    """

    sampler: Sampler
    space: HyperparameterSpace | MenuSpace
    rule: ActorCriticRule = PPO()
    initial: InitialPolicy = InitialPolicy("orthogonal")
    meta_discount: Share = 1.0
    observation: tuple[str, ...] = _DEFAULT_OBSERVATION
    block_size: Count = 64
    budget: Count = 50

    def __post_init__(self) -> None:
        check_fields(self, "meta")
        if not isinstance(self.rule, ActorCriticRule):
            raise InputError(
                f"meta.rule: {getattr(self.rule, 'name', self.rule)!r} follows estimates from whole episodes, batches of steps "
                "serve other rules."
            )
        if any(bounds.scale == "divergence" for bounds in self.space.branches.values()):
            raise InputError(
                f"meta.stepsize_scale: 'divergence' must be 'log' or 'linear' for the rule {self.rule.name!r}."
            )
        check_choices(self)
        self.rule.require_batch(self.sampler.batch_size)

    @property
    def env(self) -> Env:
        """The family of tasks."""
        return self.sampler.env

    @property
    def policy(self) -> ActorCritic:
        """What learns."""
        return self.sampler.policy

    @property
    def num_parameters(self) -> int:
        """Length of theta."""
        return self.policy.num_parameters

    @property
    def batch_steps(self) -> int:
        """Environment steps of a learner for one update, at most."""
        return self.sampler.hold * self.sampler.batch_size

    @property
    def steps_between_halts(self) -> int:
        """Environment steps after which a long simulation may pause."""
        return _STEPS_BETWEEN_HALTS

    def learner_size(self, *, keeps_episodes: bool = False) -> int:
        """Numbers of a learner and its batch while it is simulated; batches are kept whole in any case."""
        env, policy = self.env, self.policy
        # What is seen before and after, done and drawn, and seven numbers more; of this batch and of the next.
        step = 2 * env.num_observations + 2 * policy.num_actions + env.step_noise + env.reset_noise + 7
        return 2 * self.sampler.batch_size * step + 6 * policy.num_parameters

    @property
    def recorded(self) -> tuple[str, ...]:
        """Features that every dataset keeps: none, theta is long."""
        return ()

    @property
    def facts(self) -> dict[str, Any]:
        """What a model must share; the size of a batch is among it, since it decides what a rate does."""
        names = ("num_envs", "num_steps", "horizon", "discount", "hold")
        return {name: getattr(self.sampler, name) for name in names}

    def tasks(self, seed: int, stream: Stream, block: int, task_list: NDArray[np.float32] | None = None) -> Tasks:
        """The tasks and initial policies of one block of a stream.

        A task list (tasks, coordinates) replaces the sampled contexts: learner i gets task i modulo the list's length.
        """
        return draw_tasks(self, seed, stream, block, task_list)

    def with_rule(
        self, rule: ActorCriticRule, space: HyperparameterSpace | MenuSpace | None = None
    ) -> "ActorCriticMDP":
        """The same meta-MDP with another update, and perhaps another space."""
        return dataclasses.replace(self, rule=rule, space=space or self.space)

    def begin(self, tasks: Tasks) -> Learners:
        """Start the environments and simulate the first batch of every learner."""
        begun: Learners = compiled(_begin)(_simulated(self), tasks)
        return begun

    def advance(self, learners: Learners, hyperparameters: Array) -> Learners:
        """One transition: update every theta, simulate the next batch."""
        moved: Learners = compiled(_advance)(_simulated(self), learners, hyperparameters)
        return moved

    def blank(self, tasks: Tasks) -> Learners:
        """Learners of the right form; their numbers mean nothing."""
        like = jax.eval_shape(lambda given: _begin(_simulated(self), given), tasks)._replace(key=jnp.uint32(0))
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)._replace(key=tasks.key)


def _simulated(mdp: ActorCriticMDP) -> ActorCriticMDP:
    """Without what only models, controllers or first policies depend on: it selects the same program whatever that is."""
    one = (1.0,) * (1 if not mdp.rule.directions else 2)
    if isinstance(mdp.space, MenuSpace):
        space: HyperparameterSpace | MenuSpace = dataclasses.replace(
            mdp.space, ranges=tuple(dataclasses.replace(bounds, low=1.0, high=2.0) for bounds in mdp.space.ranges)
        )
    else:
        space = HyperparameterSpace(one, tuple(2.0 * bound for bound in one), names=mdp.space.names)
    return ActorCriticMDP(mdp.sampler, space, mdp.rule, block_size=mdp.block_size)


def _observed(
    mdp: ActorCriticMDP,
    tasks: Tasks,
    lanes: Lanes,
    rule_state: RuleState,
    flagged: Array,
    previous: LastUpdate | None,
    update: Array,
) -> Learners:
    """Learners after their next batch; only before the first update there is nothing to remember."""
    key = purpose_key(tasks.key, Purpose.SIMULATION, update)
    batch: Experience = mdp.sampler(tasks.theta, tasks.context, lanes, key, mdp.rule.gae_lambda)
    if previous is None:
        nothing = jnp.zeros_like(batch.mean_return)
        step = jnp.zeros_like(tasks.theta)
        previous = LastUpdate(nothing, step, nothing, nothing, nothing, nothing, nothing, batch.entropy)
    flagged = flagged | ~jnp.isfinite(batch.mean_return)
    none = jnp.zeros((len(tasks.theta), 0), jnp.float32)
    return Learners(tasks.context, tasks.theta, rule_state, batch, flagged, none, previous, tasks.key, update)


def _begin(mdp: ActorCriticMDP, tasks: Tasks) -> Learners:
    start = mdp.sampler.start(tasks.context, purpose_key(tasks.key, Purpose.SIMULATION, _START))
    unflagged = jnp.zeros(len(tasks.theta), bool)
    return _observed(mdp, tasks, start, mdp.rule.init(tasks.theta), unflagged, None, jnp.uint32(0))


def _advance(mdp: ActorCriticMDP, learners: Learners, hyperparameters: Array) -> Learners:
    batch: Experience = learners.estimate
    key = purpose_key(learners.key, Purpose.UPDATE, learners.update)
    after = mdp.rule.apply(mdp.policy, learners.theta, batch, hyperparameters, learners.rule_state, key)
    step, last = after.theta - learners.theta, learners.previous
    turn = diagnostics.turn(step, last.step, jnp)
    previous = LastUpdate(
        mean_return=batch.mean_return,
        step=step,
        divergence=after.divergence,
        clip_fraction=after.clip_fraction,
        rate=hyperparameters[:, -1],
        ratio=turn.ratio(jnp),
        cosine=turn.cosine,
        first_entropy=last.first_entropy,
    )
    tasks = Tasks(learners.context, after.theta, learners.key)
    return _observed(mdp, tasks, batch.lanes, after.state, after.flagged, previous, learners.update + jnp.uint32(1))
