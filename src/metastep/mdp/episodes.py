"""The paper's meta-MDP: updates use estimates from batches of whole episodes."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep import features
from metastep._core.errors import InputError
from metastep._core.provenance import describe
from metastep._core.settings import Count, Share, check_fields
from metastep.envs import Env, HostEnv
from metastep.features import Memory, Seen
from metastep.features.formulas import norm
from metastep.mdp.base import InitialPolicy, Learners, MetaMDP, Tasks
from metastep.policies import Policy
from metastep.rules import NGA, Rule, Update, unusable
from metastep.rules.spaces import Space, Values
from metastep.simulation.engine import compiled
from metastep.simulation.gradients import Batch, Estimator, curvatures, estimate_of

DEFAULT_OBSERVATION = features.SETS["paper"]
"""The meta-observation of the paper."""


class Previous(NamedTuple):
    """Data of the last update of each learner; zeros before the first."""

    mean_return: Array  # (learners,), before the update
    step: Array  # (learners, parameters): theta' - theta
    divergence: Array  # (learners,): mean KL(before, after) over the states visited before, to second order


@dataclass(frozen=True)
class EpisodicMetaMDP(MetaMDP):
    """The tuple <X, H, L, gamma~, (CMDP, psi), (Theta, rho), f> as one object.

    Args:
        meta_discount: discount of the improvements, gamma~.
        observation: features that make up the meta-observation X, in this order.
        block_size: learners simulated together; part of what makes a result repeatable.
    """

    estimator: Estimator  # the CMDP with its tasks psi, the policy space and how a batch is sampled (n, H, gamma)
    space: Space  # the hyperparameters H
    initial: InitialPolicy = InitialPolicy(mean=(0.0,), variance=(0.1,))  # the initial-policy distribution rho
    rule: Rule = NGA()  # the update f
    meta_discount: Share = 1.0
    observation: tuple[str, ...] = DEFAULT_OBSERVATION
    block_size: Count = 64

    recorded: ClassVar[tuple[str, ...]] = ("theta", "natural_gradient")  # so that another observation can be fitted
    diagnosed: ClassVar[tuple[str, ...]] = (
        *("theta", "context", "mean_return", "return_error", "gradient", "natural_gradient", "steps", "curvature"),
        *("step", "step_norm", "approx_kl"),
    )

    def __post_init__(self) -> None:
        check_fields(self, "meta")
        self._check_choices(Rule)
        asked, damping = self.rule.damping, self.estimator.damping
        if asked is not None and damping not in (None, asked):
            raise InputError(f"damping: {damping} of the estimator must be that of the rule, {asked}, or None.")
        if asked is not None and damping is None:
            object.__setattr__(self, "estimator", replace(self.estimator, damping=asked))

    @property
    def env(self) -> Env | HostEnv:
        return self.estimator.rollout.env

    @property
    def policy(self) -> Policy:
        return self.estimator.rollout.policy

    @property
    def batch_steps(self) -> int:
        return self.estimator.rollout.num_episodes * self.estimator.rollout.horizon

    def learner_size(self, *, keeps_episodes: bool = False) -> int:
        rollout, env, policy = self.estimator.rollout, self.env, self.policy
        # Sums of an episode, and normals of ten steps that are drawn ahead.
        lane = env.num_observations + 2 * policy.num_parameters + 10 * (policy.num_actions + env.step_noise)
        if self.estimator.solver == "cg" or keeps_episodes:
            lane += rollout.horizon * (env.num_observations + 2 * policy.num_actions + 2)
        return rollout.num_episodes * lane + 4 * policy.num_parameters

    @property
    def facts(self) -> dict[str, Any]:
        """Settings that a model requires; number and length of episodes may differ, since they only change the noise."""
        rollout, solver = self.estimator.rollout, self.estimator
        facts = {"damping": describe(solver.damping), "discount": rollout.discount, "baseline": rollout.baseline}
        # Named only if it is not the default, so that models of earlier versions still match.
        is_default = solver.solver != "truncated" and solver.damping_kind == "relative"
        natural = [solver.solver, solver.damping_kind, solver.cg_iterations]
        return facts if is_default else facts | {"natural_gradient": natural}

    def with_rule(self, rule: Rule, space: Space | None = None) -> "EpisodicMetaMDP":
        """Return the same meta-MDP with another rule; the damping is the rule's, if it has one."""
        current = self.estimator.damping
        first = current[0] if isinstance(current, tuple) else current  # one is sufficient for the features
        estimator = replace(self.estimator, damping=first if rule.damping is None else rule.damping)
        return replace(self, rule=rule, estimator=estimator, space=space or self.space)

    def begin(self, tasks: Tasks) -> Learners:
        mdp = self.without_ranges()
        return _next_batch(mdp, initial_learners(mdp, tasks))

    def advance(self, learners: Learners, hyperparameters: Array) -> Learners:
        mdp = self.without_ranges()
        return _next_batch(mdp, compiled(apply_update)(mdp, learners, hyperparameters))

    def diagnostics(self, learners: Learners) -> Seen:
        estimate, last, updates = learners.estimate, learners.previous, learners.update.astype(jnp.float32)
        quantities = self._shared_diagnostics(learners) | {
            "gradient": estimate.gradient,
            "natural_gradient": estimate.natural_gradient,
            "steps": self.rule.steps(estimate, learners.rule_state),
            "curvature": learners.curvature,
            "step_norm": norm(last.step, jnp),
        }
        return Seen(quantities, Memory(updates, updates, mean_return=last.mean_return), jnp)


def initial_learners(mdp: EpisodicMetaMDP, tasks: Tasks) -> Learners:
    """Return learners before their first batch, without an estimate."""
    nothing = jnp.zeros(len(tasks.theta), jnp.float32)
    previous = Previous(nothing, jnp.zeros_like(tasks.theta), nothing)
    state, none = mdp.rule.init(tasks.theta), jnp.zeros((len(tasks.theta), 0), jnp.float32)
    return Learners(tasks.context, tasks.theta, state, None, nothing > 0.0, none, previous, tasks.key, jnp.uint32(0))


def with_estimate(mdp: EpisodicMetaMDP, batch: Batch, learners: Learners) -> Learners:
    """Return learners with the estimate from a batch of episodes."""
    estimate = estimate_of(mdp.estimator, learners.theta, batch)
    flagged = unusable(mdp.rule.direction(estimate)) | ~jnp.isfinite(estimate.mean_return)
    curvature = curvatures(mdp.estimator, learners.theta, batch, mdp.rule.steps(estimate, learners.rule_state))
    return learners._replace(estimate=estimate, flagged=learners.flagged | flagged, curvature=curvature)


def _next_batch(mdp: EpisodicMetaMDP, learners: Learners) -> Learners:
    """Simulate the next batch, in a separate program: it takes longest to compile, and is the same for all rules."""
    batch = mdp.estimator.batch(learners.theta, learners.context, learners.simulation_key)
    return compiled(with_estimate)(mdp, batch, learners)


def _chosen_curvature(mdp: EpisodicMetaMDP, learners: Learners, hyperparameters: Array) -> Array:
    """Return v'Fv along the chosen direction: (learners,)."""
    return jnp.take_along_axis(learners.curvature, mdp.space.position(hyperparameters)[:, None], axis=1)[:, 0]


def rule_values(mdp: EpisodicMetaMDP, learners: Learners, hyperparameters: Array) -> Values:
    """Return the values for the rule; a step given as a divergence is converted to a length, h = sqrt(2 KL / v'Fv)."""
    values = mdp.space.named(hyperparameters)
    is_divergence = [bounds.scale == "divergence" for bounds in mdp.space.branches.values()]
    if not any(is_divergence):
        return values
    curvature, step = _chosen_curvature(mdp, learners, hyperparameters), values["stepsize"]
    length = jnp.where(curvature > 0.0, jnp.sqrt(2.0 * step / jnp.where(curvature > 0.0, curvature, 1.0)), 0.0)
    has_length = jnp.asarray(is_divergence)[mdp.space.position(hyperparameters)]
    return values | {"stepsize": jnp.where(has_length, length, step)}


def apply_rule(mdp: EpisodicMetaMDP, learners: Learners, hyperparameters: Array) -> Update:
    """Apply the rule to every theta, without simulating."""
    values = rule_values(mdp, learners, hyperparameters)
    return mdp.rule.apply(learners.theta, learners.estimate, values, learners.rule_state)


def divergence(mdp: EpisodicMetaMDP, learners: Learners, hyperparameters: Array) -> Array:
    """Return the mean KL(before, after) of an update over the states visited, to second order, h^2 v'Fv / 2: (learners,)."""
    # Exact for linear policies; 0 for rules that do not move along a line.
    if not learners.curvature.shape[1]:
        return jnp.zeros(len(learners.theta), jnp.float32)
    length = rule_values(mdp, learners, hyperparameters)["stepsize"]
    return 0.5 * length**2 * _chosen_curvature(mdp, learners, hyperparameters)


def apply_update(mdp: EpisodicMetaMDP, learners: Learners, hyperparameters: Array) -> Learners:
    """Return learners after an update, before the next batch; flag those with a usable estimate but no finite step."""
    after = apply_rule(mdp, learners, hyperparameters)
    if mdp._measures_divergence:
        curvature = _chosen_curvature(mdp, learners, hyperparameters)
        # Without a positive curvature, no length has the chosen divergence, so the step was not made.
        after = after._replace(flagged=after.flagged | ~((curvature > 0.0) & jnp.isfinite(curvature)))
    cost = jnp.where(after.flagged, 0.0, divergence(mdp, learners, hyperparameters))
    return learners._replace(
        theta=after.theta,
        rule_state=after.state,
        estimate=None,
        flagged=after.flagged & ~learners.flagged,
        previous=Previous(learners.estimate.mean_return, after.theta - learners.theta, cost),
        update=learners.update + jnp.uint32(1),
        episodes=None,
    )


def require_episodic(mdp: MetaMDP, who: str) -> EpisodicMetaMDP:
    """Return `mdp` if it samples whole episodes; raise an error that names `who` otherwise."""
    if not isinstance(mdp, EpisodicMetaMDP):
        learns = f"the rule {mdp.rule.name!r} learns from batches of steps"
        raise InputError(f"{who} needs batches of whole episodes, {learns}.")
    return mdp
