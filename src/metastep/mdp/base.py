"""What a meta-MDP is: learners, and how an update that was chosen leads from some to the next."""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.envs import Env, HostEnv
from metastep.mdp.blocks import Purpose, Stream, block_key, purpose_key
from metastep.mdp.initial import InitialPolicy
from metastep.policies import ActorCritic, Policy
from metastep.rules import RuleState
from metastep.rules.spaces import HyperparameterSpace, MenuSpace


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
    flagged: (
        Array  # (learners,): the estimate cannot be followed (zero, not finite), or the last step could not be taken
    )
    curvature: (
        Array  # (learners, directions): v'Fv, v what the rule adds to theta at h = 1, where it moves along a line
    )
    previous: Any  # what is remembered of the last update; it has mean_return before it, step and divergence
    key: Array  # the block's key
    update: Array  # how many updates were made
    episodes: Any = None  # behind `estimate`, where they were kept for a controller that looks at them

    @property
    def simulation_key(self) -> Array:
        """The key of the batch behind `estimate`: simulating again with it gives the very same episodes."""
        return purpose_key(self.key, Purpose.SIMULATION, self.update)

    @property
    def controller_key(self) -> Array:
        """For a controller's own random numbers at this update."""
        return purpose_key(self.key, Purpose.CONTROLLER, self.update)


class AnyRule(Protocol):
    """What is known of an update rule, whatever it learns from."""

    @property
    def name(self) -> str:
        """Identifier in the registry."""

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The numbers a controller chooses for every update."""

    @property
    def optional(self) -> tuple[str, ...]:
        """Fields that a space may have as coordinates, beside the hyperparameters."""

    @property
    def directions(self) -> tuple[str, ...]:
        """What is chosen among before the step, by name; none where there is no choice."""

    @property
    def is_along_a_line(self) -> bool:
        """Whether theta' - theta is h times a vector that depends on neither h nor theta."""

    @property
    def tells_divergence(self) -> bool:
        """Whether it is known what an update cost."""


class Process(Protocol):
    """A meta-MDP: what collection, fitting, tuning, comparison and controllers need of it.

    An implementation is a frozen dataclass, so that it selects compiled programs.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def env(self) -> Env | HostEnv:
        """The family of tasks."""

    @property
    def policy(self) -> Policy | ActorCritic:
        """What learns."""

    @property
    def rule(self) -> AnyRule:
        """The update f."""

    @property
    def space(self) -> HyperparameterSpace | MenuSpace:
        """The hyperparameters H."""

    @property
    def initial(self) -> InitialPolicy:
        """The initial-policy distribution rho."""

    @property
    def meta_discount(self) -> float:
        """Discount of the improvements."""

    @property
    def observation(self) -> tuple[str, ...]:
        """Features that make up the meta-observation X, in this order."""

    @property
    def block_size(self) -> int:
        """Learners simulated together."""

    @property
    def num_parameters(self) -> int:
        """Length of theta."""

    @property
    def batch_steps(self) -> int:
        """Environment steps of a learner for one update, at most."""

    @property
    def steps_between_halts(self) -> int:
        """Environment steps after which a long simulation may pause."""

    def learner_size(self, *, keeps_episodes: bool = False) -> int:
        """Numbers of a learner and its batch while it is simulated; perhaps a controller looks at whole episodes."""

    @property
    def recorded(self) -> tuple[str, ...]:
        """Features that every dataset keeps, whatever the observation names."""

    @property
    def facts(self) -> dict[str, Any]:
        """What a model must share, as JSON holds it, besides environment, policy, rule, observation and space."""

    def tasks(self, seed: int, stream: Stream, block: int, task_list: NDArray[np.float32] | None = None) -> Tasks:
        """The tasks and initial policies of one block of a stream.

        A task list (tasks, coordinates) replaces the sampled contexts: learner i gets task i modulo the list's length.
        """

    def with_rule(self, rule: Any, space: HyperparameterSpace | MenuSpace | None = None) -> Self:
        """The same meta-MDP with another update, and perhaps another space."""

    def begin(self, tasks: Tasks) -> Learners:
        """Simulate the first batch of every learner."""

    def advance(self, learners: Learners, hyperparameters: Array) -> Learners:
        """One transition: update every theta, simulate the next batch."""

    def blank(self, tasks: Tasks) -> Learners:
        """Learners of the right form; their numbers mean nothing."""


def begin(mdp: Process, tasks: Tasks) -> Learners:
    """Simulate the first batch of every learner."""
    return mdp.begin(tasks)


def advance(mdp: Process, learners: Learners, hyperparameters: Array) -> Learners:
    """One transition of the meta-MDP: update every theta, simulate the next batch."""
    return mdp.advance(learners, hyperparameters)


def with_budget(mdp: Process, num_updates: int) -> Process:
    """The same meta-MDP whose learners have this many updates, where features look at how many are left."""
    record: Any = mdp
    told: Process = dataclasses.replace(record, budget=num_updates) if hasattr(mdp, "budget") else mdp
    return told


def draw_tasks(
    mdp: Process, seed: int, stream: Stream, block: int, task_list: NDArray[np.float32] | None = None
) -> Tasks:
    """What `Process.tasks` gives, for any meta-MDP."""
    key = block_key(seed, stream, block)
    size = mdp.block_size
    if task_list is None:
        context = mdp.env.context_space.sample(purpose_key(key, Purpose.CONTEXT), size)
    else:
        context = jnp.asarray(task_list[(block * size + np.arange(size)) % len(task_list)])
    return Tasks(context, mdp.initial.sample(purpose_key(key, Purpose.INITIAL_POLICY), size, mdp.policy), key)


def check_choices(mdp: Process) -> None:
    """Refuse a space that is not the rule's, and an observation that names nothing or something twice."""
    needed, known = mdp.rule.hyperparameters, (*mdp.rule.hyperparameters, *mdp.rule.optional)
    if not set(needed) <= set(mdp.space.names) <= set(known):
        further = f", and may take {', '.join(mdp.rule.optional)}" if mdp.rule.optional else ""
        raise InputError(
            f"space: it names {', '.join(mdp.space.names)}, but the rule {mdp.rule.name!r} takes {', '.join(needed)}{further}."
        )
    named = mdp.space.directions if isinstance(mdp.space, MenuSpace) else ()
    if mdp.rule.directions != named:
        raise InputError(f"space: its directions are {list(named)}, but the rule has {list(mdp.rule.directions)}.")
    measured = any(bounds.scale == "divergence" for bounds in mdp.space.branches.values())
    if measured and not mdp.rule.directions and not mdp.rule.is_along_a_line:
        raise InputError(
            f"meta.stepsize_scale: 'divergence' needs a rule that moves along a line, {mdp.rule.name!r} does not."
        )
    if not mdp.observation or len(set(mdp.observation)) < len(mdp.observation):
        raise InputError(f"meta.observation: {list(mdp.observation)} must name one feature or more, each once.")
