"""The meta-MDP of PPO and related methods: updates use batches of steps, and episodes continue in the next batch."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array

from metastep._core.settings import Count, Share, check_fields
from metastep.envs import Env, HostEnv
from metastep.features import Memory, Seen
from metastep.features.diagnostics import best_return, explained_variance, first_of, smoothed_change, step_geometry
from metastep.mdp.base import InitialPolicy, Learners, MetaMDP, Tasks
from metastep.mdp.blocks import Purpose, purpose_key
from metastep.policies import ActorCritic
from metastep.rules.actor_critic import PPO, ActorCriticRule, Experience, Lanes, Sampler, Trained
from metastep.rules.spaces import Space
from metastep.simulation.engine import compiled, compiled_for

_DEFAULT_OBSERVATION = ("last_divergence", "clip_fraction", "change_in_errors", "last_rate", "budget")
_BEFORE_FIRST = 2**32 - 1  # stands for the update before the first


class LastUpdate(NamedTuple):
    """Data of the last update of each learner; zeros before the first."""

    mean_return: Array  # (learners,), before the update
    step: Array  # (learners, parameters): theta' - theta
    divergence: Array  # (learners,): KL between the policies before and after
    clip_fraction: Array  # (learners,)
    rate: Array  # (learners,): the chosen step
    step_norm: Array  # (learners,): length of the step; this and the next two are its `step_geometry`
    norm_before: Array  # (learners,): length of the step before it
    step_cosine: Array  # (learners,): of the angle between these two
    first_entropy: Array  # (learners,): of the policy on the very first batch
    last_clip_fraction: Array  # (learners,), like those below; this and the next three are from the rule's `Report`
    gradient_norm: Array
    actor_gradient_norm: Array
    gradient_steps: Array
    first_gradient_norm: Array  # of the very first update
    first_target_std: Array  # of the critic's targets on the very first batch
    best_return: Array  # of all batches up to `mean_return`
    smoothed_change: Array  # of the return, up to `mean_return`


@dataclass(frozen=True)
class ActorCriticMDP(MetaMDP):
    """The meta-MDP whose updates learn from batches of steps, with an actor and a critic; its fields are as in `MetaMDP`."""

    sampler: Sampler  # the family of tasks, the policy and how a batch is sampled
    space: Space  # the hyperparameters, such as the learning rate
    rule: ActorCriticRule = PPO()
    initial: InitialPolicy = InitialPolicy("orthogonal")
    meta_discount: Share = 1.0
    observation: tuple[str, ...] = _DEFAULT_OBSERVATION
    block_size: Count = 64
    budget: Count = 50  # number of updates of a learner; the feature of this name is the share made so far

    diagnosed: ClassVar[tuple[str, ...]] = (
        *("theta", "context", "mean_return", "return_error", "entropy", "explained_variance", "approx_kl"),
        *("clip_fraction", "step", "step_norm", "step_cosine", "rate", "budget", "last_clip_fraction"),
        *("gradient_norm", "actor_gradient_norm", "gradient_steps", "parameter_norm", "target_std", "own_steps"),
    )

    def __post_init__(self) -> None:
        check_fields(self, "meta")
        self._check_choices(ActorCriticRule)
        self.rule.require_batch(self.sampler.batch_size)

    @property
    def env(self) -> Env | HostEnv:
        return self.sampler.env

    @property
    def policy(self) -> ActorCritic:
        return self.sampler.policy

    @property
    def batch_steps(self) -> int:
        return self.sampler.hold * self.sampler.batch_size

    @property
    def chooses_lambda(self) -> bool:
        """Whether lambda of the advantages is chosen for each update; then batches keep the temporal differences."""
        return "gae_lambda" in self.space.names

    @property
    def _sampling(self) -> tuple[Sampler, float, bool]:
        """What a batch depends on besides its learners; rules and spaces share the program."""
        return self.sampler, self.rule.gae_lambda, self.chooses_lambda

    def learner_size(self, *, keeps_episodes: bool = False) -> int:
        env, policy = self.env, self.policy
        # Observations before and after, actions, noise and seven further numbers; of this batch and of the next.
        drawn = policy.num_actions + self.sampler.hold * env.step_noise + env.reset_noise
        step = 2 * env.num_observations + policy.num_actions + drawn + 7 + 2 * self.chooses_lambda
        return 2 * self.sampler.batch_size * step + 6 * policy.num_parameters

    @property
    def facts(self) -> dict[str, Any]:
        """Settings that a model requires; the batch size is one of them, because the effect of a rate depends on it."""
        names = ("num_envs", "num_steps", "horizon", "discount", "hold")
        # On the host, every batch starts with new episodes.
        returns = {"returns": "first episodes"} if isinstance(self.env, HostEnv) else {}
        normalises = {f"normalise_{name}": True for name in self.sampler.normalises}
        return {name: getattr(self.sampler, name) for name in names} | normalises | returns

    @property
    def of_loop(self) -> dict[str, float]:
        """Diagnostics of the training loop, which never change."""
        return {"budget": float(self.budget), "own_steps": float(self.rule.own_steps(self.sampler.batch_size))}

    def with_budget(self, num_updates: int) -> "ActorCriticMDP":
        return replace(self, budget=num_updates)

    # Starting, sampling and training are a program each, so that none is compiled as a part of two.
    def begin(self, tasks: Tasks) -> Learners:
        lanes = compiled_for(self.env, _start)(self.sampler, tasks)
        batch = compiled_for(self.env, _sample)(self._sampling, tasks, lanes, jnp.uint32(0))
        return compiled(_begin)(self.without_ranges(), tasks, batch)

    def advance(self, learners: Learners, hyperparameters: Array) -> Learners:
        after, previous = compiled(_train)(self.without_ranges(), learners, hyperparameters)
        tasks, update = Tasks(learners.context, after.theta, learners.key), learners.update + jnp.uint32(1)
        batch = compiled_for(self.env, _sample)(self._sampling, tasks, learners.estimate.lanes, update)
        flagged = after.flagged | ~jnp.isfinite(batch.mean_return)
        moved = learners._replace(theta=after.theta, rule_state=after.state, previous=previous, update=update)
        return moved._replace(estimate=batch, flagged=flagged)

    def lowered(self, tasks: Tasks) -> tuple[Any, ...]:
        """Trace and lower the programs of a block without running them; calls then only compile, in any thread."""
        start, sample, begin, train = map(cast("Any", compiled), (_start, _sample, _begin, _train))
        values = jax.ShapeDtypeStruct((len(tasks.theta), self.space.num_coordinates), jnp.float32)
        mdp = self.without_ranges()
        sampled = self._sampling, tasks, start.eval_shape(self.sampler, tasks), jnp.uint32(0)
        begun = mdp, tasks, sample.eval_shape(*sampled)
        trained = train.lower(mdp, begin.eval_shape(*begun), values)
        return start.lower(self.sampler, tasks), sample.lower(*sampled), begin.lower(*begun), trained

    def diagnostics(self, learners: Learners) -> Seen:
        batch, last, updates = learners.estimate, learners.previous, learners.update.astype(jnp.float32)
        quantities = {name: getattr(last, name) for name in self.diagnosed if name in LastUpdate._fields}
        quantities |= self._shared_diagnostics(learners) | self.of_loop
        quantities |= {
            "entropy": batch.entropy,
            "explained_variance": explained_variance(batch.value, batch.target, jnp),
            "parameter_norm": jnp.sqrt(jnp.sum(learners.theta**2, axis=-1)),
            "target_std": jnp.std(batch.target, axis=-1),
        }
        shared = {name: getattr(last, name) for name in Memory._fields if name in LastUpdate._fields}
        return Seen(quantities, Memory(updates, updates, **shared | {"step_norm": last.norm_before}), jnp)


def _start(sampler: Sampler, tasks: Tasks) -> Lanes:
    return sampler.start(tasks.context, purpose_key(tasks.key, Purpose.SIMULATION, _BEFORE_FIRST))


def _sample(settings: tuple[Sampler, float, bool], tasks: Tasks, lanes: Lanes, update: Array) -> Experience:
    sampler, gae_lambda, keeps = settings
    key = purpose_key(tasks.key, Purpose.SIMULATION, update)
    return sampler(tasks.theta, tasks.context, lanes, key, gae_lambda, keeps_differences=keeps)


def _begin(mdp: ActorCriticMDP, tasks: Tasks, batch: Experience) -> Learners:
    nothing, state = jnp.zeros_like(batch.mean_return), mdp.rule.init(tasks.theta)
    previous = LastUpdate(nothing, jnp.zeros_like(tasks.theta), *(nothing,) * 6, batch.entropy, *(nothing,) * 8)
    flagged, curvature = ~jnp.isfinite(batch.mean_return), jnp.zeros((len(tasks.theta), 0), jnp.float32)
    return Learners(*tasks[:2], state, batch, flagged, curvature, previous, tasks.key, update=jnp.uint32(0))


def _train(mdp: ActorCriticMDP, learners: Learners, hyperparameters: Array) -> tuple[Trained, LastUpdate]:
    """Apply an update, and return it with its data for later features."""
    batch: Experience = learners.estimate
    key, values = purpose_key(learners.key, Purpose.UPDATE, learners.update), mdp.space.named(hyperparameters)
    after = mdp.rule.apply(mdp.policy, learners.theta, batch, values, learners.rule_state, key)
    step, last = after.theta - learners.theta, learners.previous
    known = batch.mean_return, step, after.divergence, after.clip_fraction, values["stepsize"]
    reported = after.last_clip_fraction, after.gradient_norm, after.actor_gradient_norm, after.gradient_steps
    memory = mdp.diagnostics(learners).memory
    kept = (
        first_of(last.first_gradient_norm, after.gradient_norm, jnp),
        first_of(last.first_target_std, jnp.std(batch.target, axis=-1), jnp),
        best_return(memory, batch.mean_return, jnp),
        smoothed_change(memory, batch.mean_return, jnp),
    )
    return after, LastUpdate(*known, *step_geometry(step, last.step, jnp), last.first_entropy, *reported, *kept)
