"""What a meta-MDP is: its state is a block of learners, its action the hyperparameters of their next update."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep import features
from metastep._core.errors import InputError
from metastep._core.provenance import describe
from metastep.envs import Env, HostEnv
from metastep.envs.contexts import ContextSpace
from metastep.features import Seen
from metastep.mdp.blocks import Purpose, Stream, block_key, purpose_key
from metastep.mdp.initial import InitialPolicy
from metastep.policies import ActorCritic, Policy
from metastep.rules import ActorCriticRule, Rule, RuleState
from metastep.rules.spaces import MenuSpace, Space
from metastep.simulation.engine import engine_of


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
    estimate: Any  # what the current batch says of the current theta; it has mean_return, return_error and num_steps
    flagged: Array  # (learners,): the estimate cannot be followed (zero, not finite), or the last step was impossible
    curvature: Array  # (learners, directions): v'Fv, v what a rule that moves along a line adds to theta at h = 1
    previous: Any  # what is remembered of the last update; it has mean_return before it, step and divergence
    key: Array  # the block's key
    update: Array  # how many updates were made
    episodes: Any = None  # behind `estimate`, kept for a controller that looks at them

    @property
    def simulation_key(self) -> Array:
        """The key of the batch behind `estimate`: simulating again with it gives the very same episodes."""
        return purpose_key(self.key, Purpose.SIMULATION, self.update)

    @property
    def controller_key(self) -> Array:
        """For a controller's own random numbers at this update."""
        return purpose_key(self.key, Purpose.CONTROLLER, self.update)


class MetaMDP(ABC):
    """Learning as a decision process; an implementation is a frozen dataclass, so that it selects compiled programs."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    rule: Any  # the update f, a Rule or an ActorCriticRule
    space: Space  # the hyperparameters H
    initial: InitialPolicy  # the initial-policy distribution rho
    meta_discount: float  # of the improvements
    observation: tuple[str, ...]  # features of the meta-observation X, in this order
    block_size: int  # learners simulated together
    diagnosed: ClassVar[tuple[str, ...]]  # names of the diagnostics that features may need
    recorded: ClassVar[tuple[str, ...]] = ()  # features that every dataset keeps, whatever the observation names

    @property
    @abstractmethod
    def env(self) -> Env | HostEnv:
        """The family of tasks."""

    @property
    @abstractmethod
    def policy(self) -> Policy | ActorCritic:
        """What learns."""

    @property
    @abstractmethod
    def batch_steps(self) -> int:
        """Environment steps of a learner for one update, at most."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a model must share, as JSON holds it, besides environment, policy, rule, observation and space."""

    @abstractmethod
    def learner_size(self, *, keeps_episodes: bool = False) -> int:
        """Return the numbers of a learner and its batch while it is simulated; a controller may keep whole episodes."""

    @abstractmethod
    def with_rule(self, rule: Any, space: Space | None = None) -> Self:
        """Return the same meta-MDP with another update, and perhaps another space."""

    @abstractmethod
    def begin(self, tasks: Tasks) -> Learners:
        """Simulate the first batch of every learner."""

    @abstractmethod
    def advance(self, learners: Learners, hyperparameters: Array) -> Learners:
        """Make one transition: update every theta with a row (learners, coordinates) each, simulate the next batch."""

    @abstractmethod
    def blank(self, tasks: Tasks) -> Learners:
        """Return learners of the right form, with meaningless numbers."""

    @abstractmethod
    def diagnostics(self, learners: Learners) -> Seen:
        """Return what features are computed from: all that `diagnosed` names."""

    @property
    def num_parameters(self) -> int:
        """Length of theta."""
        return self.policy.num_parameters

    @property
    def context_space(self) -> ContextSpace:
        """The distribution of tasks."""
        return self.env.context_space

    @property
    def directions(self) -> tuple[str, ...]:
        """Names of the directions along which an update may go."""
        return self.rule.directions or ((self.rule.name,) if self.rule.is_along_a_line else ())

    @property
    def steps_between_halts(self) -> int:
        """Environment steps after which a long simulation may pause."""
        return engine_of(self.env).steps_between_halts

    @property
    def setting(self) -> dict[str, Any]:
        """Everything that changes what a model's numbers mean, as JSON holds it: a model is used only where this is the same."""
        env: Any = self.env
        fields = dataclasses.fields(env) if dataclasses.is_dataclass(env) else ()
        # Neither the range of tasks nor how the physics are computed makes an environment another one.
        options = [each.name for each in fields if each.compare and not each.metadata and each.name != "context_space"]
        # The rule, which is described as well, says what a menu's categories are.
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

    def with_budget(self, num_updates: int) -> Self:
        """Return the meta-MDP whose learners have this many updates, for features of how many are left."""
        return self

    def tasks(self, seed: int, stream: Stream, block: int, task_list: NDArray[np.float32] | None = None) -> Tasks:
        """Draw the tasks and initial policies of one block of a stream.

        A task list (tasks, coordinates) replaces the sampled contexts: learner i gets task i modulo the list's length.
        """
        key, size = block_key(seed, stream, block), self.block_size
        if task_list is None:
            context = self.context_space.sample(purpose_key(key, Purpose.CONTEXT), size)
        else:
            context = jnp.asarray(task_list[(block * size + np.arange(size)) % len(task_list)])
        return Tasks(context, self.initial.sample(purpose_key(key, Purpose.INITIAL_POLICY), size, self.policy), key)

    def _check_choices(self, kind: type[Rule] | type[ActorCriticRule]) -> None:
        """Refuse a rule of the other kind, a space that is not the rule's, and an observation without or with double names."""
        rule, space = self.rule, self.space
        if not isinstance(rule, kind):
            name, other = (
                getattr(rule, "name", rule),
                "whole episodes" if kind is ActorCriticRule else "batches of steps",
            )
            here = "batches of steps" if kind is ActorCriticRule else "whole episodes"
            raise InputError(f"meta.rule: {name!r} learns from {other}, this meta-MDP simulates {here}.")
        needed, known = rule.hyperparameters, (*rule.hyperparameters, *rule.optional)
        if not set(needed) <= set(space.names) <= set(known):
            further = f", and may take {', '.join(rule.optional)}" if rule.optional else ""
            raise InputError(
                f"space: it names {', '.join(space.names)}, but the rule {rule.name!r} takes {', '.join(needed)}{further}."
            )
        named = space.directions if isinstance(space, MenuSpace) else ()
        if rule.directions != named:
            raise InputError(f"space: its directions are {list(named)}, but the rule has {list(rule.directions)}.")
        if self._measures_divergence and (kind is ActorCriticRule or not self.directions):
            raise InputError(
                f"meta.stepsize_scale: 'divergence' needs a rule that moves along a line, {rule.name!r} does not; use 'log' or "
                "'linear'."
            )
        if not self.observation or len(set(self.observation)) < len(self.observation):
            raise InputError(f"meta.observation: {list(self.observation)} must name one feature or more, each once.")

    @property
    def _measures_divergence(self) -> bool:
        return any(bounds.scale == "divergence" for bounds in self.space.branches.values())
