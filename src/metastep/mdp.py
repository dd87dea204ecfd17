"""The meta-MDP: learning as a decision process.

Its state is a block of learners, its action the hyperparameters of their next update, its reward the improvement of the return.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.blocks import Purpose, Stream, block_key, purpose_key
from metastep.errors import InputError
from metastep.gradients import Batch, Estimate, Estimator, curvatures, estimate_of
from metastep.ranges import Range
from metastep.rules import NGA, Menu, Rule, RuleState, Update, unusable
from metastep.settings import Count, Float, Share, check_fields
from metastep.simulation.rollouts import Trajectories
from metastep.spaces import HyperparameterSpace, MenuSpace, position_of

PerParameter = tuple[Float, ...]

DEFAULT_OBSERVATION = ("theta", "natural_gradient", "context")
"""The meta-observation of the paper."""

_NEEDS = {"normal": ("mean", "variance"), "uniform": ("low", "high")}


@dataclass(frozen=True)
class InitialPolicy:
    """The distribution rho of theta_0: every parameter independent, in theta's order, (b, W) for a linear policy.

    Args:
        kind: the form of the distribution.
        mean: means of the normal, one for all parameters or one for each.
        variance: variances of the normal, one for all or one for each.
        low: lower bounds of the uniform, one for all or one for each.
        high: upper bounds of the uniform, one for all or one for each.
    """

    kind: Literal["normal", "uniform"] = "normal"
    mean: PerParameter | None = None
    variance: PerParameter | None = None
    low: PerParameter | None = None
    high: PerParameter | None = None

    def __post_init__(self) -> None:
        check_fields(self, "initial")
        for name in ("mean", "variance", "low", "high"):
            value = getattr(self, name)
            if (value is not None) != (name in _NEEDS[self.kind]):
                must = "be set" if value is None else "not be set"
                raise InputError(f"initial.{name}: {_listed(value)} must {must} where kind is {self.kind!r}.")
        first, second = self._numbers
        if not first or not second or (1 not in (len(first), len(second)) and len(first) != len(second)):
            one, other = _NEEDS[self.kind]
            raise InputError(f"initial.{other}: {_listed(second)} must have one number, or as many as {one}.")
        if self.kind == "normal" and min(second) < 0.0:
            raise InputError(f"initial.variance: {_listed(second)} must not be negative.")
        if self.kind == "uniform" and bool(np.any(np.asarray(first) > np.asarray(second))):
            raise InputError(f"initial.low: {_listed(first)} must not exceed high, which is {_listed(second)}.")

    @property
    def _numbers(self) -> tuple[PerParameter, PerParameter]:
        first, second = (getattr(self, name) for name in _NEEDS[self.kind])
        return first, second

    def require_size(self, num_parameters: int) -> None:
        """Refuse numbers for another policy."""
        for name, values in zip(_NEEDS[self.kind], self._numbers, strict=True):
            if len(values) not in (1, num_parameters):
                raise InputError(
                    f"initial.{name}: {_listed(values)} must hold one number, or one for each of the {num_parameters} "
                    "parameters."
                )

    def sample(self, key: Array, num: int, num_parameters: int) -> Array:
        """Draw (num, parameters)."""
        self.require_size(num_parameters)
        first, second = (jnp.asarray(values, jnp.float32) for values in self._numbers)
        if self.kind == "normal":
            return first + jnp.sqrt(second) * jax.random.normal(key, (num, num_parameters), jnp.float32)
        return first + (second - first) * jax.random.uniform(key, (num, num_parameters), jnp.float32)


def _listed(values: PerParameter | None) -> str:
    return str(None if values is None else list(values))


@dataclass(frozen=True)
class MetaMDP:
    """The tuple <X, H, L, gamma~, (CMDP, psi), (Theta, rho), f> as one object.

    Args:
        estimator: the CMDP with its task distribution psi, the policy space and how a batch is sampled (n, H, gamma).
        space: the hyperparameters H.
        initial: the initial-policy distribution rho.
        rule: the update f.
        meta_discount: discount of the improvements, gamma~.
        observation: features that make up the meta-observation X, in this order.
        block_size: learners simulated together; part of what makes a result repeatable.
    """

    estimator: Estimator
    space: HyperparameterSpace | MenuSpace
    initial: InitialPolicy = InitialPolicy(mean=(0.0,), variance=(0.1,))
    rule: Rule = NGA()
    meta_discount: Share = 1.0
    observation: tuple[str, ...] = DEFAULT_OBSERVATION
    block_size: Count = 64

    def __post_init__(self) -> None:
        check_fields(self, "meta")
        if self.space.names != self.rule.hyperparameters:
            raise InputError(
                f"space: it names {', '.join(self.space.names)}, but the rule {self.rule.name!r} takes "
                f"{', '.join(self.rule.hyperparameters)}."
            )
        menu = self.rule.directions if isinstance(self.rule, Menu) else ()
        named = self.space.directions if isinstance(self.space, MenuSpace) else ()
        if menu != named:
            raise InputError(f"space: its directions are {list(named)}, but the rule has {list(menu)}.")
        measured = any(bounds.scale == "divergence" for bounds in self.space.branches.values())
        if measured and not menu and not self.rule.is_along_a_line:
            raise InputError(
                f"meta.stepsize_scale: 'divergence' needs a rule that moves along a line, {self.rule.name!r} does not."
            )
        if not self.observation or len(set(self.observation)) < len(self.observation):
            raise InputError(f"meta.observation: {list(self.observation)} must name one feature or more, each once.")
        asked, damping = self.rule.damping, self.estimator.damping
        if asked is not None and damping not in (None, asked):
            raise InputError(f"damping: {damping} of the estimator must be that of the rule, {asked}, or None.")
        if asked is not None and damping is None:
            object.__setattr__(self, "estimator", dataclasses.replace(self.estimator, damping=asked))

    @property
    def num_parameters(self) -> int:
        """Length of theta."""
        return self.estimator.rollout.policy.num_parameters

    def with_rule(self, rule: Rule, space: HyperparameterSpace | MenuSpace | None = None) -> "MetaMDP":
        """The same meta-MDP with another update, and perhaps another space; the damping follows a rule that asks for one."""
        damping = rule.damping
        if damping is None:  # of several natural gradients the first is enough for the features
            damping = self.estimator.damping
            damping = damping[0] if isinstance(damping, tuple) else damping
        estimator = dataclasses.replace(self.estimator, damping=damping)
        return dataclasses.replace(self, rule=rule, estimator=estimator, space=space or self.space)

    def tasks(self, seed: int, stream: Stream, block: int, task_list: NDArray[np.float32] | None = None) -> "Tasks":
        """The tasks and initial policies of one block of a stream.

        A task list (tasks, coordinates) replaces the sampled contexts: learner i gets task i modulo the list's length.
        """
        key = block_key(seed, stream, block)
        space, size = self.estimator.rollout.env.context_space, self.block_size
        if task_list is None:
            context = space.sample(purpose_key(key, Purpose.CONTEXT), size)
        else:
            context = jnp.asarray(task_list[(block * size + np.arange(size)) % len(task_list)])
        theta = self.initial.sample(purpose_key(key, Purpose.INITIAL_POLICY), size, self.num_parameters)
        return Tasks(context, theta, key)


class Tasks(NamedTuple):
    """A block of learners before their first batch."""

    context: Array  # (learners, coordinates)
    theta: Array  # (learners, parameters)
    key: Array  # everything random in this block derives from it


class Previous(NamedTuple):
    """What is remembered of a learner's last update; zeros before the first."""

    mean_return: Array  # (learners,), before it
    step: Array  # (learners, parameters): theta' - theta
    divergence: Array  # (learners,): mean KL(before, after) over the states visited before, in the second order


class Learners(NamedTuple):
    """A block of learners, all after the same number of updates: the state of the meta-MDP."""

    context: Array  # (learners, coordinates)
    theta: Array  # (learners, parameters)
    rule_state: RuleState
    estimate: Estimate  # of the current theta, on the current batch
    flagged: (
        Array  # (learners,): the estimate cannot be followed (zero, not finite), or the last step could not be taken
    )
    curvature: Array  # (learners, directions): v'Fv, v what the rule adds to theta at h = 1
    previous: Previous
    key: Array  # the block's key
    update: Array  # how many updates were made
    episodes: Trajectories | None = None  # behind `estimate`, where they were kept for a controller that looks at them

    @property
    def simulation_key(self) -> Array:
        """The key of the batch behind `estimate`: simulating again with it gives the very same episodes."""
        return purpose_key(self.key, Purpose.SIMULATION, self.update)

    @property
    def controller_key(self) -> Array:
        """For a controller's own random numbers at this update."""
        return purpose_key(self.key, Purpose.CONTROLLER, self.update)


def observed(
    mdp: MetaMDP,
    batch: Batch,
    context: Array,
    theta: Array,
    rule_state: RuleState,
    previous: Previous,
    key: Array,
    update: Array,
) -> Learners:
    """What learners are after a batch of episodes."""
    estimate = estimate_of(mdp.estimator, theta, batch)
    flagged = unusable(mdp.rule.direction(estimate)) | ~jnp.isfinite(estimate.mean_return)
    curvature = curvatures(mdp.estimator, theta, batch, mdp.rule.steps(estimate, rule_state))
    return Learners(context, theta, rule_state, estimate, flagged, curvature, previous, key, update)


def _observe_batch(
    mdp: MetaMDP, context: Array, theta: Array, rule_state: RuleState, previous: Previous, key: Array, update: Array
) -> Learners:
    batch = mdp.estimator.batch(theta, context, purpose_key(key, Purpose.SIMULATION, update))
    after: Learners = mdp.estimator.engine.piece(observed)(
        mdp, batch, context, theta, rule_state, previous, key, update
    )
    return after


def before_updates(mdp: MetaMDP, theta: Array) -> tuple[RuleState, Previous]:
    """What learners remember before their first update."""
    nothing = jnp.zeros(len(theta), jnp.float32)
    return mdp.rule.init(theta), Previous(nothing, jnp.zeros_like(theta), nothing)


def _begin(mdp: MetaMDP, tasks: Tasks) -> Learners:
    start, previous = before_updates(mdp, tasks.theta)
    return _observe_batch(mdp, tasks.context, tasks.theta, start, previous, tasks.key, jnp.uint32(0))


def _chosen_curvature(mdp: MetaMDP, learners: Learners, hyperparameters: Array) -> Array:
    """v'Fv along the direction that was chosen: (learners, 1)."""
    if not isinstance(mdp.space, MenuSpace):
        return learners.curvature[:, :1]
    index = position_of(hyperparameters, len(mdp.space.directions))
    return jnp.take_along_axis(learners.curvature, index[:, None], axis=1)


def with_lengths(mdp: MetaMDP, learners: Learners, hyperparameters: Array) -> Array:
    """The hyperparameters as the rule takes them: a step that was given as a divergence as a length, h = sqrt(2 KL / v'Fv)."""
    is_divergence = [bounds.scale == "divergence" for bounds in mdp.space.branches.values()]
    if not any(is_divergence):
        return hyperparameters
    curvature = _chosen_curvature(mdp, learners, hyperparameters)
    place = int(isinstance(mdp.space, MenuSpace))  # of the step
    step = hyperparameters[:, place : place + 1]
    length = jnp.where(curvature > 0.0, jnp.sqrt(2.0 * step / jnp.where(curvature > 0.0, curvature, 1.0)), 0.0)
    if not all(is_divergence):
        index = position_of(hyperparameters, len(is_divergence))
        length = jnp.where(jnp.asarray(is_divergence)[index][:, None], length, step)
    return jnp.concatenate([hyperparameters[:, :place], length, hyperparameters[:, place + 1 :]], axis=1)


def updated(mdp: MetaMDP, learners: Learners, hyperparameters: Array) -> Update:
    """Only the update: what the rule makes of every theta."""
    chosen = with_lengths(mdp, learners, hyperparameters)
    return mdp.rule.apply(learners.theta, learners.estimate, chosen, learners.rule_state)


def divergence(mdp: MetaMDP, learners: Learners, hyperparameters: Array) -> Array:
    """Mean KL(before, after) of an update over the states visited, in the second order, h^2 v'Fv / 2: (learners,).

    It is exact for linear policies; zero where a rule does not move along a line.
    """
    if not learners.curvature.shape[1]:
        return jnp.zeros(len(learners.theta), jnp.float32)
    chosen = with_lengths(mdp, learners, hyperparameters)
    length = chosen[:, int(isinstance(mdp.space, MenuSpace))]
    return 0.5 * length**2 * _chosen_curvature(mdp, learners, hyperparameters)[:, 0]


def moved(mdp: MetaMDP, learners: Learners, hyperparameters: Array) -> tuple[Update, Previous]:
    """An update and what is remembered of it, before the next batch."""
    after = updated(mdp, learners, hyperparameters)
    if any(bounds.scale == "divergence" for bounds in mdp.space.branches.values()):
        curvature = _chosen_curvature(mdp, learners, hyperparameters)[:, 0]
        # Without a curvature no length costs the divergence that was chosen: the step was not made.
        after = after._replace(flagged=after.flagged | ~((curvature > 0.0) & jnp.isfinite(curvature)))
    cost = jnp.where(after.flagged, 0.0, divergence(mdp, learners, hyperparameters))
    return after, Previous(learners.estimate.mean_return, after.theta - learners.theta, cost)


def _advance(mdp: MetaMDP, learners: Learners, hyperparameters: Array) -> Learners:
    after, previous = mdp.estimator.engine.piece(moved)(mdp, learners, hyperparameters)
    then = _observe_batch(
        mdp, learners.context, after.theta, after.state, previous, learners.key, learners.update + jnp.uint32(1)
    )
    return held_back(learners, after, then)


def held_back(before: Learners, update: Update, after: Learners) -> Learners:
    """Flags learners whose estimate could be followed, but not with a step that is not finite, or too large for float32."""
    return after._replace(flagged=after.flagged | (update.flagged & ~before.flagged))


def simulated(mdp: MetaMDP) -> MetaMDP:
    """The meta-MDP without what only models or first policies depend on: it selects the same program whatever that is."""
    return dataclasses.replace(mdp, observation=DEFAULT_OBSERVATION, meta_discount=1.0, initial=MetaMDP.initial)


def without_ranges(mdp: MetaMDP) -> MetaMDP:
    """The same for an update that was chosen: where choices lie does not matter any more, but what they mean does."""
    space = mdp.space
    if isinstance(space, MenuSpace):
        space = MenuSpace(space.directions, tuple(Range(1.0, 2.0, bounds.scale) for bounds in space.ranges))
    else:
        ones = (1.0,) * space.num_coordinates
        space = HyperparameterSpace(ones, tuple(2.0 * one for one in ones), space.scales, space.names)
    return dataclasses.replace(simulated(mdp), space=space)


def begin(mdp: MetaMDP, tasks: Tasks) -> Learners:
    """Simulate the first batch of every learner."""
    return mdp.estimator.engine.whole(_begin)(without_ranges(mdp), tasks)


def advance(mdp: MetaMDP, learners: Learners, hyperparameters: Array) -> Learners:
    """One transition of the meta-MDP: update every theta, simulate the next batch."""
    return mdp.estimator.engine.whole(_advance)(without_ranges(mdp), learners, hyperparameters)
