"""The meta-MDP: learning as a decision process (SPEC section 2)."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array

from metastep.blocks import Purpose, Stream, block_key, purpose_key
from metastep.errors import InputError
from metastep.gradients import Estimate, Estimator
from metastep.meta.spaces import HyperparameterSpace
from metastep.rules import NGA, RuleState, Update, Rule, unusable

ObservationPart = Literal["theta", "gradient", "context", "return"]
DEFAULT_OBSERVATION: tuple[ObservationPart, ...] = ("theta", "gradient", "context")


@dataclass(frozen=True)
class InitialPolicy:
    """The distribution rho of theta_0: every parameter independent.

    Args:
        kind: "normal" with means `first` and *variances* `second`, or "uniform" on [first, second].
        first, second: one number for all parameters, or one a parameter in theta's order (b, W).
    """

    kind: Literal["normal", "uniform"] = "normal"
    first: tuple[float, ...] = (0.0,)
    second: tuple[float, ...] = (0.1,)

    def __post_init__(self) -> None:
        if self.kind not in ("normal", "uniform"):
            raise InputError(f"initial.kind: {self.kind!r} must be normal or uniform.")
        if self.kind == "normal" and min(self.second) < 0.0:
            raise InputError(f"initial: the variances {list(self.second)} must not be negative.")
        if self.kind == "uniform" and any(
            low > high for low, high in zip(self.first, self.second, strict=len(self.first) == len(self.second))
        ):
            raise InputError(f"initial: the lower bounds {list(self.first)} exceed the upper ones {list(self.second)}.")

    def sample(self, key: Array, num: int, num_parameters: int) -> Array:
        """Draw (num, parameters)."""
        for values in (self.first, self.second):
            if len(values) not in (1, num_parameters):
                raise InputError(
                    f"initial: {list(values)} must have one number or one a parameter ({num_parameters} in all)."
                )
        first, second = (jnp.asarray(values, jnp.float32) for values in (self.first, self.second))
        if self.kind == "normal":
            return first + jnp.sqrt(second) * jax.random.normal(key, (num, num_parameters), jnp.float32)
        return first + (second - first) * jax.random.uniform(key, (num, num_parameters), jnp.float32)


@dataclass(frozen=True)
class MetaMDP:
    """The tuple <X, H, L, gamma~, (CMDP, psi), (Theta, rho), f> as one object.

    Args:
        estimator: the CMDP with its task distribution psi, the policy space and how a batch is sampled (n, H, gamma).
        space: the hyperparameters H.
        initial: the initial-policy distribution rho.
        rule: the update f.
        meta_discount: gamma~.
        observation: what the meta-observation X contains, in this order.
        block_size: learners simulated together; part of the identity of a result (see `metastep.blocks`).
    """

    estimator: Estimator
    space: HyperparameterSpace
    initial: InitialPolicy = InitialPolicy()
    rule: Rule = NGA
    meta_discount: float = 1.0
    observation: tuple[ObservationPart, ...] = DEFAULT_OBSERVATION
    block_size: int = 64

    def __post_init__(self) -> None:
        if self.space.names != self.rule.hyperparameters:
            raise InputError(
                f"space: it names {', '.join(self.space.names)}, but the rule {self.rule.name!r} takes "
                f"{', '.join(self.rule.hyperparameters)}."
            )
        if not 0.0 <= self.meta_discount <= 1.0:
            raise InputError(f"meta.meta_discount: {self.meta_discount} must lie in [0, 1].")
        for part in self.observation:
            if part not in get_args(ObservationPart):
                raise InputError(f"meta.observation: {part!r} must be one of {', '.join(get_args(ObservationPart))}.")
        if self.block_size < 1:
            raise InputError(f"rollout.block_size: {self.block_size} must be at least 1.")

    @property
    def num_parameters(self) -> int:
        """Length of theta."""
        return self.estimator.rollout.policy.num_parameters

    def tasks(self, seed: int, stream: Stream, block: int) -> "Tasks":
        """The tasks and initial policies of one block of a stream."""
        key = block_key(seed, stream, block)
        context_space = self.estimator.rollout.env.context_space
        return Tasks(
            context=context_space.sample(purpose_key(key, Purpose.CONTEXT), self.block_size),
            theta=self.initial.sample(purpose_key(key, Purpose.INITIAL_POLICY), self.block_size, self.num_parameters),
            key=key,
        )


class Tasks(NamedTuple):
    """A block of learners before their first batch."""

    context: Array  # (learners, coordinates)
    theta: Array  # (learners, parameters)
    key: Array  # everything random in this block derives from it


class Learners(NamedTuple):
    """A block of learners, all after the same number of updates: the state of the meta-MDP."""

    context: Array  # (learners, coordinates)
    theta: Array  # (learners, parameters)
    rule_state: RuleState
    estimate: Estimate  # of the current theta, on the current batch
    flagged: (
        Array  # (learners,): the estimate cannot be followed (zero, not finite), or the last step could not be taken
    )
    key: Array  # the block's key
    update: Array  # how many updates were made

    @property
    def simulation_key(self) -> Array:
        """The key of the batch behind `estimate`: simulating again with it gives the very same episodes."""
        return purpose_key(self.key, Purpose.SIMULATION, self.update)

    @property
    def controller_key(self) -> Array:
        """For a controller's own random numbers at this update."""
        return purpose_key(self.key, Purpose.CONTROLLER, self.update)


def _observe_batch(
    mdp: MetaMDP, context: Array, theta: Array, rule_state: RuleState, key: Array, update: Array
) -> Learners:
    estimate = mdp.estimator(theta, context, purpose_key(key, Purpose.SIMULATION, update))
    flagged = unusable(getattr(estimate, mdp.rule.direction)) | ~jnp.isfinite(estimate.mean_return)
    return Learners(context, theta, rule_state, estimate, flagged, key, update)


def _begin(mdp: MetaMDP, tasks: Tasks) -> Learners:
    start = mdp.rule.init(tasks.theta)
    return _observe_batch(mdp, tasks.context, tasks.theta, start, tasks.key, jnp.uint32(0))


def _update(mdp: MetaMDP, learners: Learners, hyperparameters: Array) -> Update:
    return mdp.rule.apply(learners.theta, learners.estimate, hyperparameters, learners.rule_state)


def _observe_update(mdp: MetaMDP, learners: Learners, after: Update) -> Learners:
    observed = _observe_batch(
        mdp, learners.context, after.theta, after.state, learners.key, learners.update + jnp.uint32(1)
    )
    # Held back although the estimate could be followed: a step that is not finite, or too large for float32.
    return observed._replace(flagged=observed.flagged | (after.flagged & ~learners.flagged))


@partial(jax.jit, static_argnums=0)
def _compiled_begin(mdp: MetaMDP, tasks: Tasks) -> Learners:
    return _begin(mdp, tasks)


@partial(jax.jit, static_argnums=0)
def _compiled_advance(mdp: MetaMDP, learners: Learners, hyperparameters: Array) -> Learners:
    return _observe_update(mdp, learners, _update(mdp, learners, hyperparameters))


_compiled_update = jax.jit(_update, static_argnums=0)


def begin(mdp: MetaMDP, tasks: Tasks) -> Learners:
    """Simulate the first batch of every learner."""
    return _begin(mdp, tasks) if mdp.estimator.on_host else _compiled_begin(mdp, tasks)


def advance(mdp: MetaMDP, learners: Learners, hyperparameters: Array) -> Learners:
    """One transition of the meta-MDP: update every theta, simulate the next batch.

    One compiled program, unless the environment is on the host: then only what surrounds its episodes is compiled.
    """
    if mdp.estimator.on_host:
        return _observe_update(mdp, learners, _compiled_update(mdp, learners, hyperparameters))
    return _compiled_advance(mdp, learners, hyperparameters)


def meta_observation(mdp: MetaMDP, learners: Learners) -> Array:
    """x = <theta, g, omega> or what `mdp.observation` asks for: (learners, features)."""
    parts = {
        "theta": learners.theta,
        "gradient": learners.estimate.natural_gradient,
        "context": learners.context,
        "return": learners.estimate.mean_return[:, None],
    }
    return jnp.concatenate([parts[name] for name in mdp.observation], axis=1)
