"""Methods: a rule, what proposes its step sizes, and what is tuned; first as data, then as objects."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metastep import controllers, rules
from metastep._core.errors import InputError
from metastep.mdp import MetaMDP
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Controller, TaskSource
from metastep.rules import AnyRule
from metastep.rules.spaces import HyperparameterSpace, Range, Scale, Space

Grid = Mapping[str, Sequence[float]]

SCALES = (*get_args(Scale), "mixed")
"""What the number of a step means: a length (linear or log), a divergence, or now one and now the other."""
_MOST_DIRECTIONS = 100


@dataclass(frozen=True, eq=False)
class MethodSpec:
    """A method as data: names and options of its parts.

    Args:
        name: identifier in files and tables.
        controller: what proposes, a name in the registry of controllers.
        controller_options: its options, but for those that are tuned.
        rule: the update, a name in the registry of rules; None takes the experiment's.
        rule_options: its options.
        model: the experiment's further model whose meta-MDP it runs on: its rule, its step sizes, its observation.
        steps: the step sizes it chooses from and what they mean; None takes the experiment's.
        grid: the values that each tuned option of the controller is tried with.
        needs_grid: the tuned options whose values the experiment must bring.
        label: for figures and tables; the name by default.
        colour: in figures; empty takes the next one of the palette.
    """

    name: str
    controller: str
    controller_options: Mapping[str, Any] = field(default_factory=dict)
    rule: str | None = None
    rule_options: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    steps: Range | None = None
    grid: Grid = field(default_factory=dict)
    needs_grid: tuple[str, ...] = ()
    label: str = ""
    colour: str = ""

    def __post_init__(self) -> None:
        for option, values in self.grid.items():
            if not len(values):
                raise InputError(f"{self._field('grid')}.{option}: [] must hold at least one number.")

    def build_rule(self, mdp: MetaMDP) -> AnyRule:
        """The method's own rule, or that of the meta-MDP."""
        if self.rule is None:
            return mdp.rule
        return rules.REGISTRY.build(self.rule, self.rule_options, field=self._field("rule"))

    def on(self, mdp: MetaMDP) -> MetaMDP:
        """The meta-MDP with the method's rule and steps."""
        steps = self.steps
        space = None if steps is None else HyperparameterSpace((steps.low,), (steps.high,), (steps.scale,))
        return mdp.with_rule(self.build_rule(mdp), space)

    def build_controller(self, values: Mapping[str, Any]) -> Controller:
        """The controller with these values of what is tuned: one number for all learners, or one for each."""
        options = {**self.controller_options, **values}
        return controllers.REGISTRY.build(self.controller, options, field=self._field("controller"))

    def method(self, mdp: MetaMDP, values: Mapping[str, float] | None = None, **facts: Any) -> "Method":
        """The method with these values; `facts` are further fields of `Method`."""
        chosen = dict(values or {})
        facts = {"controller": self.build_controller(chosen), "label": self.label, "colour": self.colour, **facts}
        own = self.on(mdp)
        return Method(self.name, own.rule, values=chosen, space=own.space, observation=own.observation, **facts)

    def _field(self, part: str) -> str:
        return f"compare.methods.{self.name}.{part}"


@dataclass(frozen=True, eq=False)
class Method:
    """An update rule and what proposes its step sizes.

    Args:
        name, label, colour: as of `MethodSpec`.
        rule: the direction.
        controller: the step size.
        values: what was tuned, for the record.
        tuned_on: the tasks that this was done on.
        space: what the controller chooses from; None takes the comparison's.
        observation: what it sees; None takes the comparison's.
    """

    name: str
    rule: AnyRule
    controller: Controller
    label: str = ""
    colour: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    tuned_on: TaskSource | None = None
    space: Space | None = None
    observation: tuple[str, ...] | None = None

    def on(self, mdp: MetaMDP) -> MetaMDP:
        """The meta-MDP that the method runs on: that of a comparison with the method's own update and what it sees."""
        own = mdp.with_rule(self.rule, self.space)
        return own if self.observation is None else replace(own, observation=self.observation)

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("method: the name must not be empty.")

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        """The tasks that the method was trained, selected or tuned on."""
        return (*self.controller.shaped_by, *(() if self.tuned_on is None else (self.tuned_on,)))

    def record(self, space: Space) -> "MethodRecord":
        """The facts of a method without the objects; the space is what it chooses from."""
        branches = space.branches
        scales = {bounds.scale for bounds in branches.values()}
        return MethodRecord(
            name=self.name,
            label=self.label or self.name,
            colour=self.colour,
            rule=self.rule.name,
            controller=self.controller.name,
            values={name: float(value) for name, value in self.values.items()},
            is_yardstick=self.controller.is_yardstick,
            directions=tuple(branches) if has_directions(space) else (),
            scale=scales.pop() if len(scales) == 1 else "mixed",
            training_steps=self.controller.training_steps,
            trials=self.controller.num_trials(space),
        )


def has_directions(space: Space) -> bool:
    """Whether a direction is chosen before the step along it; it is then the first of two coordinates."""
    return tuple(space.branches) != ("",)


class MethodRecord(NamedTuple):
    """What a results file remembers of a method."""

    name: str
    label: str
    colour: str
    rule: str
    controller: str
    values: dict[str, float]
    is_yardstick: bool
    directions: tuple[
        str, ...
    ] = ()  # names of what it chose from, in the order of their positions; empty without a choice
    scale: str = "linear"  # what the number of a step means, one of `SCALES`
    training_steps: float = 0.0  # environment steps that its controller took to train itself
    trials: int = 0  # batches that its controller simulates of its own before every update


def check_record(record: MethodRecord) -> None:
    """Refuse a record that cannot be shown: it may come from a file."""

    def require(holds: bool, sentence: str) -> None:
        if not holds:
            raise InputError(f"methods: {sentence}.")

    def is_line(text: Any) -> bool:
        return isinstance(text, str) and text.isprintable() and len(text) <= 200

    line = "a line of printable text of at most 200 letters"
    for field_name in ("name", "label", "colour", "rule", "controller"):
        text = getattr(record, field_name)
        require(is_line(text), f"{field_name} is {text!r:.60}, allowed is {line}")
    is_colour = re.fullmatch(r"text|(#[0-9a-fA-F]{6})?", record.colour) is not None
    require(is_colour, f"the colour {record.colour!r:.60} of {record.name} must look like #0072B2")
    numbers = isinstance(record.values, dict) and all(type(value) in (int, float) for value in record.values.values())
    right = numbers and isinstance(record.is_yardstick, bool)
    require(right, f"values of {record.name} must be numbers, and is_yardstick true or false")
    for field_name in ("training_steps", "trials"):
        number = getattr(record, field_name)
        right = type(number) in (int, float) and 0.0 <= number < np.inf
        require(right, f"{field_name} of {record.name} is {number!r:.60}, allowed is 0 or more")
    names = record.directions
    distinct = isinstance(names, tuple) and len(set(map(str, names))) == len(names) <= _MOST_DIRECTIONS
    require(distinct, f"directions of {record.name} must be at most {_MOST_DIRECTIONS} different names")
    for name in names:
        require(bool(name) and is_line(name), f"the direction {name!r:.60} of {record.name} must be {line}")
    scales = ", ".join(SCALES)
    require(record.scale in SCALES, f"scale of {record.name} is {record.scale!r:.60}, allowed are {scales}")


def refuse_overlap(methods: Sequence[Method], stream: Stream, contexts: NDArray[np.float32]) -> None:
    """Refuse to judge a method on what shaped it.

    A stream is a role, whatever the seed: what was tuned on test tasks is not tested. Explicit task lists must not share a
    task with the comparison's; sampled tasks of different streams are disjoint by construction.
    """
    for method in methods:
        for source in method.shaped_by:
            if source.stream == stream:
                raise InputError(
                    f"method {method.name!r}: was {source.use} on the {stream.name.lower()} stream and cannot be "
                    "judged on it."
                )
            shared = [] if source.contexts is None else _common_rows(source.contexts, contexts)
            if shared:
                task = ", ".join(f"{value:g}" for value in shared[0])
                raise InputError(
                    f"method {method.name!r}: was {source.use} on the task ({task}), which is also one of the tasks to judge "
                    "it on."
                )


def _common_rows(first: NDArray[Any], second: NDArray[Any]) -> list[tuple[float, ...]]:
    seen = {tuple(row) for row in np.asarray(first, np.float32).tolist()}
    return [row for row in map(tuple, np.asarray(second, np.float32).tolist()) if row in seen]


def check_names(methods: Sequence[Method]) -> None:
    """Refuse an empty or ambiguous list."""
    names = [method.name for method in methods]
    if not names:
        raise InputError("methods: there is none to compare.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"methods: the name {repeated[0]!r} is used more than once.")
