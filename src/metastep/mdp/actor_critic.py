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
from metastep._core.errors import InputError
from metastep._core.settings import Count, Share, check_fields
from metastep.envs import Env, HostEnv
from metastep.mdp.base import Learners, Tasks, check_choices, draw_tasks
from metastep.mdp.blocks import Purpose, Stream, purpose_key
from metastep.mdp.initial import InitialPolicy
from metastep.policies import ActorCritic
from metastep.rules import RuleState
from metastep.rules.actor_critic import PPO, ActorCriticRule, Experience, Lanes, Sampler, Trained
from metastep.rules.spaces import HyperparameterSpace, MenuSpace, Scale
from metastep.simulation.engine import engine_of

_DEFAULT_OBSERVATION = ("last_divergence", "clip_fraction", "change_in_errors", "last_rate", "budget")
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
    def env(self) -> Env | HostEnv:
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
        return engine_of(self.env).steps_between_halts

    def learner_size(self, *, keeps_episodes: bool = False) -> int:
        """Numbers of a learner and its batch while it is simulated; batches are kept whole in any case."""
        env, policy = self.env, self.policy
        # What is seen before and after, done and drawn, and seven numbers more; of this batch and of the next.
        drawn = policy.num_actions + self.sampler.hold * env.step_noise + env.reset_noise
        step = 2 * env.num_observations + policy.num_actions + drawn + 7
        return 2 * self.sampler.batch_size * step + 6 * policy.num_parameters

    @property
    def recorded(self) -> tuple[str, ...]:
        """Features that every dataset keeps: none, theta is long."""
        return ()

    @property
    def facts(self) -> dict[str, Any]:
        """What a model must share; the size of a batch is among it, since it decides what a rate does.

        On the host, so is what returns are of: every batch begins anew there.
        """
        names = ("num_envs", "num_steps", "horizon", "discount", "hold")
        returns = {"returns": "first episodes"} if isinstance(self.env, HostEnv) else {}
        return {name: getattr(self.sampler, name) for name in names} | returns

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
        begun: Learners = engine_of(self.env).whole(_begin)(_simulated(self), tasks)
        return begun

    def advance(self, learners: Learners, hyperparameters: Array) -> Learners:
        """One transition: update every theta, simulate the next batch."""
        moved: Learners = engine_of(self.env).whole(_advance)(_simulated(self), learners, hyperparameters)
        return moved

    def blank(self, tasks: Tasks) -> Learners:
        """Learners of the right form; their numbers mean nothing."""
        sample = self.sampler.blank
        like = jax.eval_shape(lambda given: _begun(self, given, sample(given.theta, given.context)), tasks)
        like = like._replace(key=jnp.uint32(0))
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)._replace(key=tasks.key)


def _simulated(mdp: ActorCriticMDP) -> ActorCriticMDP:
    """Without what only models, controllers or first policies depend on: it selects the same program whatever that is."""
    if isinstance(mdp.space, MenuSpace):
        space: HyperparameterSpace | MenuSpace = dataclasses.replace(
            mdp.space, ranges=tuple(dataclasses.replace(bounds, low=1.0, high=2.0) for bounds in mdp.space.ranges)
        )
    else:
        one = (1.0,) * mdp.space.num_coordinates
        linear: Scale = "linear"
        space = HyperparameterSpace(one, tuple(2.0 * bound for bound in one), (linear,) * len(one), mdp.space.names)
    return ActorCriticMDP(mdp.sampler, space, mdp.rule, block_size=mdp.block_size)


def _sampled(mdp: ActorCriticMDP, tasks: Tasks, lanes: Lanes, update: Array) -> Experience:
    key = purpose_key(tasks.key, Purpose.SIMULATION, update)
    return mdp.sampler(tasks.theta, tasks.context, lanes, key, mdp.rule.gae_lambda)


def _with_batch(
    tasks: Tasks, rule_state: RuleState, batch: Experience, flagged: Array, previous: LastUpdate, update: Array
) -> Learners:
    flagged = flagged | ~jnp.isfinite(batch.mean_return)
    none = jnp.zeros((len(tasks.theta), 0), jnp.float32)
    return Learners(tasks.context, tasks.theta, rule_state, batch, flagged, none, previous, tasks.key, update)


def _begun(mdp: ActorCriticMDP, tasks: Tasks, batch: Experience) -> Learners:
    """Learners with their first batch, and nothing to remember."""
    nothing = jnp.zeros_like(batch.mean_return)
    step = jnp.zeros_like(tasks.theta)
    previous = LastUpdate(nothing, step, nothing, nothing, nothing, nothing, nothing, batch.entropy)
    return _with_batch(tasks, mdp.rule.init(tasks.theta), batch, nothing > 0.0, previous, jnp.uint32(0))


def _begin(mdp: ActorCriticMDP, tasks: Tasks) -> Learners:
    start = mdp.sampler.start(tasks.context, purpose_key(tasks.key, Purpose.SIMULATION, _START))
    return _begun(mdp, tasks, _sampled(mdp, tasks, start, jnp.uint32(0)))


def _trained(mdp: ActorCriticMDP, learners: Learners, hyperparameters: Array) -> tuple[Trained, LastUpdate]:
    """An update, and what is remembered of it."""
    batch: Experience = learners.estimate
    key = purpose_key(learners.key, Purpose.UPDATE, learners.update)
    values = mdp.space.named(hyperparameters)
    after = mdp.rule.apply(mdp.policy, learners.theta, batch, values, learners.rule_state, key)
    step, last = after.theta - learners.theta, learners.previous
    turn = diagnostics.turn(step, last.step, jnp)
    return after, LastUpdate(
        mean_return=batch.mean_return,
        step=step,
        divergence=after.divergence,
        clip_fraction=after.clip_fraction,
        rate=values["stepsize"],
        ratio=turn.ratio(jnp),
        cosine=turn.cosine,
        first_entropy=last.first_entropy,
    )


def _advance(mdp: ActorCriticMDP, learners: Learners, hyperparameters: Array) -> Learners:
    after, previous = engine_of(mdp.env).piece(_trained)(mdp, learners, hyperparameters)
    tasks, update = Tasks(learners.context, after.theta, learners.key), learners.update + jnp.uint32(1)
    batch = _sampled(mdp, tasks, learners.estimate.lanes, update)
    return _with_batch(tasks, after.state, batch, after.flagged, previous, update)
