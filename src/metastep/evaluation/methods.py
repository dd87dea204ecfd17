"""Methods to compare: an update rule, a controller and the options to tune; as data, as objects, and registered by name.

`tune` makes the best point of a method's grid a method, with all grid points in lockstep (table 1 of the paper).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, MaxLen, MinLen
from numpy.typing import NDArray
from pydantic import AfterValidator, FiniteFloat, StringConstraints, TypeAdapter

from metastep import controllers, rules
from metastep._core.errors import InputError, with_all
from metastep._core.progress import Silent, Tracker
from metastep._core.settings import Registry
from metastep.mdp import MetaMDP, Tasks
from metastep.mdp.blocks import Blocks, Stream, block_key
from metastep.mdp.controller import Controller, TaskSource
from metastep.mdp.runs import BlockRun, Plan, run_plans
from metastep.rules import AnyRule
from metastep.rules.spaces import HyperparameterSpace, Range, Scale, Space

_OF_RULE = "rule."  # begins the name of a tuned value that is an option of the rule


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must have no control characters")
    return text


Line = Annotated[str, MaxLen(200), AfterValidator(_printable)]


@dataclass(frozen=True, eq=False)
class MethodSpec:
    """A method as data: names and options of its parts."""

    name: str  # identifier in files and tables
    controller: str  # its name in the registry
    controller_options: Mapping[str, Any] = field(default_factory=dict)  # without those that are tuned
    rule: str | None = None  # name of the update rule in its registry; None is the experiment's
    rule_options: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""  # name of a further model of the experiment, whose rule, step sizes and observation the method uses
    steps: Range | None = None  # range and scale of the step sizes; None is the experiment's
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of tuned options; of the rule: `rule.NAME`
    needs_grid: tuple[str, ...] = ()  # tuned options whose values the experiment must set
    label: str = ""  # name in figures and tables; by default `name`
    colour: str = ""  # in figures; by default the next of the palette

    def __post_init__(self) -> None:
        if empty := [option for option, values in self.grid.items() if not len(values)]:
            raise InputError(f"{self._field('grid')}.{empty[0]}: [] must hold at least one number.")
        if self.tunes_rule and self.rule is None:
            raise InputError(f"{self._field('rule')}: is missing, it must be set where an option of it is tuned.")

    @property
    def tunes_rule(self) -> bool:
        """Whether an option of the rule is tuned; one compiled program then serves one value only."""
        return any(name.startswith(_OF_RULE) for name in self.grid)

    @property
    def first_values(self) -> dict[str, float]:
        """The first value of every tuned option."""
        return {name: values[0] for name, values in self.grid.items()}

    def on(self, mdp: MetaMDP, values: Mapping[str, float] | None = None) -> MetaMDP:
        """Return the meta-MDP with the method's own rule and steps, if it has any, and these values of tuned options."""
        steps, rule = self.steps, mdp.rule
        space = None if steps is None else HyperparameterSpace((steps.low,), (steps.high,), (steps.scale,))
        if self.rule is not None:
            tuned = {n.removeprefix(_OF_RULE): v for n, v in (values or {}).items() if n.startswith(_OF_RULE)}
            rule = rules.REGISTRY.build(self.rule, {**self.rule_options, **tuned}, field=self._field("rule"))
        return mdp.with_rule(rule, space)

    def build_controller(self, values: Mapping[str, Any]) -> Controller:
        """Return the controller with these values of tuned options: one number for all learners, or one for each."""
        tuned = {name: value for name, value in values.items() if not name.startswith(_OF_RULE)}
        options = {**self.controller_options, **tuned}
        return controllers.REGISTRY.build(self.controller, options, field=self._field("controller"))

    def method(self, mdp: MetaMDP, values: Mapping[str, float] | None = None, **facts: Any) -> "Method":
        """Return the method with these values; `facts` are further fields of `Method`."""
        chosen = dict(values or {})
        facts = {"controller": self.build_controller(chosen), "label": self.label, "colour": self.colour, **facts}
        variant = self.on(mdp, chosen)
        facts |= {"space": variant.space, "observation": variant.observation}
        return Method(self.name, variant.rule, values=chosen, **facts)

    def _field(self, part: str) -> str:
        return f"compare.methods.{self.name}.{part}"


@dataclass(frozen=True, eq=False)
class Method:
    """An update rule and the controller of its step sizes; name, label and colour are as in `MethodSpec`."""

    name: str
    rule: AnyRule
    controller: Controller
    label: str = ""
    colour: str = ""
    values: Mapping[str, float] = field(default_factory=dict)  # of tuned options, for the record
    tuned_on: TaskSource | None = None
    space: Space | None = None  # of the hyperparameters; None is that of the comparison
    observation: tuple[str, ...] | None = None  # features; None are those of the comparison

    def on(self, mdp: MetaMDP) -> MetaMDP:
        """Return the meta-MDP of a comparison with the method's rule, space and observation."""
        variant = mdp.with_rule(self.rule, self.space)
        return variant if self.observation is None else replace(variant, observation=self.observation)

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("method: the name must not be empty.")

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        """The tasks that the method was trained, selected or tuned on."""
        return (*self.controller.shaped_by, *(() if self.tuned_on is None else (self.tuned_on,)))

    def record(self, space: Space) -> "MethodRecord":
        """Return a description of the method as plain data; `space` is that of its hyperparameters."""
        scales = [*{bounds.scale for bounds in space.branches.values()}]
        boxes = zip(space.names, space.scales, strict=True) if isinstance(space, HyperparameterSpace) else ()
        values = {name: float(value) for name, value in self.values.items()}
        return MethodRecord(
            *(self.name, self.label or self.name, self.colour, self.rule.name, self.controller.name, values),
            is_yardstick=self.controller.is_yardstick,
            directions=tuple(space.branches) if has_directions(space) else (),
            scale=scales[0] if len(scales) == 1 else "mixed",
            training_steps=self.controller.training_steps,
            trials=self.controller.num_trials(space),
            choices=tuple(boxes) if len(space.names) > 1 else (),
        )


def has_directions(space: Space) -> bool:
    """Return whether a space has a menu of directions; then the first coordinate is the direction, the second the step."""
    return tuple(space.branches) != ("",)


class MethodRecord(NamedTuple):
    """The description of a method in a results file; it is checked when read, because files may come from others."""

    name: Line
    label: Line
    colour: Annotated[str, StringConstraints(pattern=r"^(text|#[0-9a-fA-F]{6}|)$")]
    rule: Line
    controller: Line
    values: dict[str, float]
    is_yardstick: bool
    directions: Annotated[tuple[Annotated[Line, MinLen(1)], ...], MaxLen(100)] = ()  # of its menu, by index
    scale: Literal[Scale, "mixed"] = "linear"  # of its steps; "mixed" if directions differ
    training_steps: Annotated[FiniteFloat, Ge(0)] = 0.0  # environment steps of its controller's own training
    trials: Annotated[int, Ge(0)] = 0  # additional batches that its controller simulates before every update
    # If it chose several numbers for each update, their names and scales, in the order of the array.
    choices: Annotated[tuple[tuple[Annotated[Line, MinLen(1)], Scale], ...], MaxLen(100)] = ()


RECORD: TypeAdapter[MethodRecord] = TypeAdapter(MethodRecord)


def require_disjoint(methods: Sequence[Method], stream: Stream, contexts: NDArray[np.float32]) -> None:
    """Raise an error if a method was trained, selected or tuned on the stream, or on one of the tasks, that it is tested on.

    The seed does not matter. Sampled tasks of different streams are disjoint by construction.
    """
    tests = np.asarray(contexts, np.float32).tolist()
    for method in methods:
        for source in method.shaped_by:
            seen = [] if source.contexts is None else np.asarray(source.contexts, np.float32).tolist()
            place = f"the {stream.name.lower()} stream and cannot be judged on it" if source.stream == stream else ""
            if not place and (shared := [row for row in seen if row in tests]):
                shown = ", ".join(f"{value:g}" for value in shared[0])
                place = f"the task ({shown}), which is also one of the tasks to judge it on"
            if place:
                raise InputError(f"method {method.name!r}: was {source.use} on {place}.")


class TuningTable(NamedTuple):
    """The result of a grid search; the score of a point is the area under the curve, the mean return over updates 1..T."""

    method: str
    parameters: tuple[str, ...]
    points: NDArray[np.float64]  # (points, parameters)
    mean: NDArray[np.float64]  # (points,): -inf where a task diverged
    standard_error: NDArray[np.float64]  # (points,), over tasks
    num_diverged: NDArray[np.int64]  # (points,): tasks with a return that is not finite
    num_tasks: int
    seed: int
    num_steps: float  # environment steps of the whole search
    scores: NDArray[np.float64] = np.zeros((0, 0))  # (points, tasks); files before 0.3 do not have them

    @property
    def best(self) -> int:
        """The index of the point with the highest mean, the first one in case of ties."""
        return int(np.argmax(self.mean))

    @property
    def chosen(self) -> dict[str, float]:
        """The tuned values."""
        return dict(zip(self.parameters, self.points[self.best].tolist(), strict=True))

    @property
    def at_edge(self) -> tuple[str, ...]:
        """Names of parameters whose tuned value is at an edge of the grid, so that a wider grid might do better."""
        ranges = zip(self.parameters, self.points.T, self.points[self.best], strict=True)
        return tuple(name for name, column, value in ranges if value in (column.min(), column.max()))


def tune(
    spec: MethodSpec,
    mdp: MetaMDP,
    *,
    seed: int,
    num_tasks: int,
    num_updates: int,
    contexts: NDArray[np.float32] | None = None,
    shared_noise: bool = False,
    blocks_together: int = 1,
    tracker: Tracker | None = None,
) -> tuple[Method, TuningTable]:
    """Score all combinations of a method's grid on the same tasks and initial policies; return the best as a method.

    By default, a block holds learners of several grid points: learner `p * num_tasks + t` is point p on task t. Fewer blocks are
    simulated, but points have independent simulation noise, which is small compared with the differences between tasks. With
    `shared_noise`, or if an option of the rule is tuned, each point has its own blocks, all with the same random numbers, as the
    methods of `compare` do. The other arguments are those of `compare`.
    """
    if contexts is not None:
        contexts = mdp.env.context_space.validate(contexts)
    blocks = num_blocks(spec, mdp, num_tasks, shared_noise)
    with (tracker or Silent()).stage(f"tune {spec.name}", blocks, "blocks") as stage:
        plan = tuning_plan(spec, mdp, seed, num_tasks, num_updates, contexts, shared_noise)
        return run_plans([plan], stage.advance, together=blocks_together)[0]


def num_blocks(spec: MethodSpec, mdp: MetaMDP, num_tasks: int, shared_noise: bool) -> int:
    """Return the number of blocks of a grid search."""
    return sum(len(Blocks(len(points) * num_tasks, mdp.block_size)) for points in _groups(spec, shared_noise))


def _groups(spec: MethodSpec, shared_noise: bool) -> list[NDArray[np.float64]]:
    """Return the grid points, (points, parameters), in groups that share blocks."""
    points = np.array(list(product(*spec.grid.values())), np.float64)
    return np.split(points, len(points)) if shared_noise or spec.tunes_rule else [points]


def tuning_plan(
    spec: MethodSpec,
    mdp: MetaMDP,
    seed: int,
    num_tasks: int,
    num_updates: int,
    contexts: NDArray[np.float32] | None = None,
    shared_noise: bool = False,
) -> Plan[tuple[Method, TuningTable]]:
    """Return the plan of a grid search; the arguments are those of `tune`."""
    groups, parameters = _groups(spec, shared_noise), tuple(spec.grid)
    if num_tasks < 2 or num_updates < 1:
        needed = "at least 2 tasks and 1 update are needed"
        raise InputError(f"tune: {num_tasks} tasks and {num_updates} updates; {needed}.")
    tasks = [mdp.tasks(seed, Stream.TUNING, block, contexts) for block in Blocks(num_tasks, mdp.block_size)]
    context, theta = (jnp.concatenate(each)[:num_tasks] for each in zip(*(block[:2] for block in tasks), strict=True))
    base, runs = mdp.with_budget(num_updates), list[BlockRun]()
    for points in groups:
        lanes = Blocks(len(points) * num_tasks, mdp.block_size)
        for block in lanes:
            # The padding of the last block repeats its last learner.
            lane = np.minimum(np.arange(block * lanes.size, (block + 1) * lanes.size), lanes.num_learners - 1)
            by_lane = points[lane // num_tasks].T if len(points) > 1 else points[0].tolist()
            values: dict[str, Any] = dict(zip(parameters, by_lane, strict=True))
            task = lane % num_tasks
            start = Tasks(context[task], theta[task], block_key(seed, Stream.TUNING, block))
            variant = spec.on(base, spec.first_values if len(points) > 1 else values)
            runs.append(BlockRun(variant, spec.build_controller(values), start, num_updates, lanes.num_valid(block)))
    histories, points = [result.history for result in (yield runs)], np.concatenate(groups)
    scores = np.concatenate([history.mean_return[1:].mean(axis=0, dtype=np.float64) for history in histories])
    scores = scores.reshape(len(points), num_tasks)
    finite = np.isfinite(scores)
    all_finite, safe = finite.all(axis=1), np.where(finite, scores, 0.0)
    mean = np.where(all_finite, safe.mean(axis=1), -np.inf)
    error = np.where(all_finite, safe.std(axis=1, ddof=1) / np.sqrt(num_tasks), np.inf)
    num_steps = sum(float(history.num_steps.sum(dtype=np.float64)) for history in histories)
    judged = mean, error, (~finite).sum(axis=1)
    table = TuningTable(spec.name, parameters, points, *judged, num_tasks, seed, num_steps, scores)
    return spec.method(mdp, table.chosen, tuned_on=TaskSource("tuned", Stream.TUNING, contexts)), table


REGISTRY: Registry[MethodSpec] = Registry("compare.methods")
register, names = REGISTRY.register, REGISTRY.names


def make(name: str) -> MethodSpec:
    """Return a registered method; `register("mine", partial(MethodSpec, controller="mine"), label="mine")` adds one."""
    entry = REGISTRY.entry(name)
    spec = entry.factory(name.rpartition(":")[2])
    return replace(spec, label=spec.label or entry.label, colour=spec.colour or entry.colour)


# The methods that come with the library.
_FILE = Path(__file__).with_name("baselines.toml")
for _name, _fields in with_all(tuple, tomllib.loads(_FILE.read_text("utf-8"))).items():
    _shown = {key: _fields.pop(key) for key in ("label", "colour")}
    _fields |= {"steps": Range(**_fields["steps"])} if "steps" in _fields else {}
    register(_name, partial(MethodSpec, **_fields), **_shown)
