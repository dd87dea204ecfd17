"""The interface of meta-MDPs: the state is a block of learners, the action the hyperparameters of their next update."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep import features
from metastep._core.errors import InputError, shown
from metastep._core.provenance import describe
from metastep._core.settings import Float, check_fields
from metastep.envs import Env, HostEnv
from metastep.features import Seen
from metastep.mdp.blocks import Purpose, Stream, block_key, purpose_key
from metastep.policies import ActorCritic, Policy
from metastep.rules import ActorCriticRule, Rule, RuleState
from metastep.rules.spaces import Space

_NUMBERS: dict[str, tuple[str, ...]] = {"normal": ("mean", "variance"), "uniform": ("low", "high"), "orthogonal": ()}


@dataclass(frozen=True)
class InitialPolicy:
    """The distribution rho of theta_0: every parameter independent, in theta's order, (b, W) for a linear policy.

    Args:
        kind: the form of the distribution; "orthogonal" is the usual one of actor-critic networks, and takes no numbers.
        mean, variance: of the normal, one number for all parameters or one for each.
        low, high: bounds of the uniform, one number for all parameters or one for each.
    """

    kind: Literal["normal", "uniform", "orthogonal"] = "normal"
    mean: tuple[Float, ...] | None = None
    variance: tuple[Float, ...] | None = None
    low: tuple[Float, ...] | None = None
    high: tuple[Float, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "initial")
        needs = _NUMBERS[self.kind]
        for name in ("mean", "variance", "low", "high"):
            value = getattr(self, name)
            if (value is not None) != (name in needs):
                must = "be set" if value is None else "not be set"
                raise InputError(f"initial.{name}: {shown(value)} must {must} where kind is {self.kind!r}.")
        if not needs:
            return
        first, second = (getattr(self, name) for name in needs)
        if not first or not second or (1 not in (len(first), len(second)) and len(first) != len(second)):
            raise InputError(f"initial.{needs[1]}: {shown(second)} must have one number, or as many as {needs[0]}.")
        if self.kind == "normal" and min(second) < 0.0:
            raise InputError(f"initial.variance: {shown(second)} must not be negative.")
        if self.kind == "uniform" and np.any(np.asarray(first) > np.asarray(second)):
            raise InputError(f"initial.low: {shown(first)} must not exceed high, which is {shown(second)}.")

    def require_for(self, policy: Policy | ActorCritic) -> None:
        """Raise an error if the distribution does not fit the parameters of a policy."""
        if self.kind == "orthogonal" and not isinstance(policy, ActorCritic):
            raise InputError(f"initial.kind: 'orthogonal' needs an actor and a critic, not a {type(policy).__name__}.")
        for name in _NUMBERS[self.kind]:
            values, num = getattr(self, name), policy.num_parameters
            if len(values) not in (1, num):
                must = f"must hold 1 number, or {num}, one for each parameter"
                raise InputError(f"initial.{name}: {shown(values)} {must}.")

    def sample(self, key: Array, num: int, policy: Policy | ActorCritic) -> Array:
        """Draw parameters of `num` policies, (num, parameters)."""
        self.require_for(policy)
        if isinstance(policy, ActorCritic) and self.kind == "orthogonal":
            return policy.initial(key, num)
        first, second = (jnp.asarray(getattr(self, name), jnp.float32) for name in _NUMBERS[self.kind])
        if self.kind == "normal":
            return first + jnp.sqrt(second) * jax.random.normal(key, (num, policy.num_parameters), jnp.float32)
        return first + (second - first) * jax.random.uniform(key, (num, policy.num_parameters), jnp.float32)


class Tasks(NamedTuple):
    """A block of learners before their first batch."""

    context: Array  # (learners, coordinates)
    theta: Array  # (learners, parameters)
    key: Array  # from which all random numbers of this block derive


class Learners(NamedTuple):
    """A block of learners, all after the same number of updates: the state of the meta-MDP."""

    context: Array  # (learners, coordinates)
    theta: Array  # (learners, parameters)
    rule_state: RuleState
    estimate: Any  # computed from the current batch at theta; it has at least mean_return, return_error and num_steps
    flagged: Array  # (learners,): the estimate is unusable (zero or not finite), or the last step was impossible
    curvature: Array  # (learners, directions): v'Fv, where v is the change of theta at h = 1, for rules along a line
    previous: Any  # data of the last update; it has at least mean_return before the update, step and divergence
    key: Any  # the block's key; None in files, because it derives from the seed
    update: Array  # number of updates so far
    episodes: Any = None  # the episodes of the batch, if the controller needs them

    @property
    def simulation_key(self) -> Array:
        """The key of the current batch; simulating again with it gives the same episodes."""
        return purpose_key(self.key, Purpose.SIMULATION, self.update)

    @property
    def controller_key(self) -> Array:
        """The key of the controller's random numbers at this update."""
        return purpose_key(self.key, Purpose.CONTROLLER, self.update)

    def candidate_keys(self, num: int) -> list[Array]:
        """Return keys of candidates for this update, other than the controller's."""
        return [jax.random.fold_in(self.controller_key, index + 1) for index in range(num)]


class MetaMDP(ABC):
    """A meta-MDP; implementations are frozen dataclasses, because compiled functions take them as static arguments."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    rule: Any  # the update f, a Rule or an ActorCriticRule
    space: Space  # the hyperparameters H
    initial: InitialPolicy  # the initial-policy distribution rho
    meta_discount: float  # discount of the improvements
    observation: tuple[str, ...]  # features of the meta-observation X, in this order
    block_size: int  # learners simulated together
    diagnosed: ClassVar[tuple[str, ...]]  # names of the diagnostics that features may need
    recorded: ClassVar[tuple[str, ...]] = ()  # features that every dataset keeps in addition to the observation

    @property
    @abstractmethod
    def env(self) -> Env | HostEnv:
        """The family of tasks."""

    @property
    @abstractmethod
    def policy(self) -> Policy | ActorCritic:
        """The policy of the learners."""

    @property
    @abstractmethod
    def batch_steps(self) -> int:
        """The largest number of environment steps in a batch of one learner."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Further settings, as JSON values, that must equal those that a model was fitted with (see `setting`)."""

    @abstractmethod
    def learner_size(self, *, keeps_episodes: bool = False) -> int:
        """Return how many numbers a learner and its batch hold in memory during simulation."""

    @abstractmethod
    def begin(self, tasks: Tasks) -> Learners:
        """Simulate the first batch of every learner."""

    @abstractmethod
    def advance(self, learners: Learners, hyperparameters: Array) -> Learners:
        """Apply an update with `hyperparameters` (learners, coordinates) to every theta, and simulate the next batch."""

    @abstractmethod
    def diagnostics(self, learners: Learners) -> Seen:
        """Return the quantities named by `diagnosed`, from which features are computed."""

    def _shared_diagnostics(self, learners: Learners) -> dict[str, Any]:
        estimate, last = learners.estimate, learners.previous
        common = {"theta": learners.theta, "context": learners.context, "step": last.step, "approx_kl": last.divergence}
        return common | {"mean_return": estimate.mean_return, "return_error": estimate.return_error}

    @property
    def directions(self) -> tuple[str, ...]:
        """Names of the directions of an update."""
        return self.rule.directions or ((self.rule.name,) if self.rule.is_along_a_line else ())

    @property
    def setting(self) -> dict[str, Any]:
        """All settings that change the meaning of a model's inputs and outputs, as JSON values; a model requires the same."""
        env: Any = self.env
        known = fields(env) if is_dataclass(env) else ()
        # The range of tasks and the way in which the physics are computed do not matter.
        options = [each.name for each in known if each.compare and not each.metadata and each.name != "context_space"]
        # The description of the rule includes the categories of a menu.
        space = {name: value for name, value in describe(self.space).items() if name not in ("category", "numbers")}
        return {
            "env": env.name,
            "env_options": {name: describe(getattr(env, name)) for name in options},
            "policy": describe(self.policy),
            "rule": {"name": self.rule.name, **describe(self.rule)},
            "observation": [[name, size] for name, size in features.sizes(self, self.observation).items()],
            "space": space,
            **self.facts,
        }

    def with_rule(self, rule: Any, space: Space | None = None) -> Self:
        """Return the same meta-MDP with another rule and, optionally, another space."""
        return replace(self, rule=rule, space=space or self.space)

    def simulated(self) -> Self:
        """Return the meta-MDP with defaults for settings that simulation does not use, so that compiled programs are shared."""
        unused = ("observation", "meta_discount", "initial", "budget")
        return replace(self, **{each.name: each.default for each in fields(self) if each.name in unused})

    def without_ranges(self) -> Self:
        """Return `simulated()` with a space without bounds: applying chosen hyperparameters needs only their meaning."""
        return replace(self.simulated(), space=self.space.without_bounds())

    def with_budget(self, num_updates: int) -> Self:
        """Return the meta-MDP for learners with this many updates, for features that depend on the remaining number."""
        return self

    def tasks(self, seed: int, stream: Stream, block: int, task_list: NDArray[np.float32] | None = None) -> Tasks:
        """Draw the tasks and initial policies of one block of a stream; `task_list`, (tasks, coordinates), replaces the tasks."""
        key, size = block_key(seed, stream, block), self.block_size
        if task_list is None:
            context = self.env.context_space.sample(purpose_key(key, Purpose.CONTEXT), size)
        else:  # learner i gets task i modulo the list's length
            context = jnp.asarray(task_list[(block * size + np.arange(size)) % len(task_list)])
        return Tasks(context, self.initial.sample(purpose_key(key, Purpose.INITIAL_POLICY), size, self.policy), key)

    def _check_choices(self, kind: type[Rule] | type[ActorCriticRule]) -> None:
        """Raise an error for a rule of another kind, a space that does not fit the rule, or missing or repeated features."""
        rule, space = self.rule, self.space
        if not isinstance(rule, kind):
            steps, episodes, name = "batches of steps", "whole episodes", getattr(rule, "name", rule)
            other, here = (episodes, steps) if kind is ActorCriticRule else (steps, episodes)
            raise InputError(f"meta.rule: {name!r} learns from {other}, this meta-MDP simulates {here}.")
        needed, optional = rule.hyperparameters, rule.choices
        if not set(needed) <= set(space.names) <= {*needed, *optional}:
            takes = f"{', '.join(needed)}{', and may take ' if optional else ''}{', '.join(optional)}"
            raise InputError(f"space: it names {', '.join(space.names)}, but the rule {rule.name!r} takes {takes}.")
        if rule.directions != space.directions:
            actual = f"its directions are {list(space.directions)}"
            raise InputError(f"space: {actual}, but the rule has {list(rule.directions)}.")
        if self._measures_divergence and (kind is ActorCriticRule or not self.directions):
            needs = f"'divergence' needs a rule that moves along a line, {rule.name!r} does not"
            raise InputError(f"meta.stepsize_scale: {needs}; use 'log' or 'linear'.")
        if not self.observation or len(set(self.observation)) < len(self.observation):
            raise InputError(f"meta.observation: {list(self.observation)} must name one feature or more, each once.")

    @property
    def _measures_divergence(self) -> bool:
        return any(bounds.scale == "divergence" for bounds in self.space.branches.values())
