"""Methods: what is compared, and on which tasks each was shaped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep.blocks import Stream
from metastep.controllers import GreedyOracle, MetaFQIController, SingleAction
from metastep.controllers.metafqi import Greedy
from metastep.errors import InputError
from metastep.meta.loop import Controller
from metastep.rules import NGA, Rule


class TaskSource(NamedTuple):
    """Tasks that a method has seen before it is judged: those of a stream, or an explicit list with the stream's keys."""

    use: Literal["trained", "selected", "tuned"]
    stream: Stream
    contexts: NDArray[np.float32] | None = None  # (tasks, coordinates)


@dataclass(frozen=True, eq=False)
class Method:
    """An update rule and what proposes its step sizes.

    Args:
        name: identifier in files and tables.
        rule: the direction.
        controller: the step size.
        label: for figures and tables; the name by default.
        values: what was tuned, for the record.
        shaped_by: where the tasks came from that the method was trained, selected or tuned on.
        is_yardstick: it may use what a contender must not (the oracle simulates more), so it takes part in no test.
    """

    name: str
    rule: Rule
    controller: Controller
    label: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    shaped_by: tuple[TaskSource, ...] = ()
    is_yardstick: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("method: the name must not be empty.")
        if not self.label:
            object.__setattr__(self, "label", self.name)


def oracle_method(num_stepsizes: int = 101) -> Method:
    """The yardstick: natural gradient with the best of many step sizes on fresh episodes."""
    return Method("oracle", NGA, GreedyOracle(num_stepsizes), "NGA, greedy oracle", is_yardstick=True)


def single_action_method(controller: SingleAction, contexts: NDArray[np.float32] | None = None) -> Method:
    """Natural gradient with one learned step size a task; `contexts` is the task list it was trained on, if any."""
    return Method(
        "single", NGA, controller, "NGA, single step size", shaped_by=(TaskSource("trained", Stream.TRAIN, contexts),)
    )


def metafqi_method(model: Greedy, iteration: int | None = None, contexts: NDArray[np.float32] | None = None) -> Method:
    """Natural gradient with metaFQI; `contexts` is the task list it was trained on, if any."""
    return Method(
        "metafqi",
        NGA,
        MetaFQIController(model, iteration),
        "NGA, metaFQI",
        values={} if iteration is None else {"iteration": iteration},
        shaped_by=(
            TaskSource("trained", Stream.TRAIN, contexts),
            TaskSource("selected", Stream.VALIDATION),
        ),
    )


class MethodRecord(NamedTuple):
    """What a results file remembers of a method."""

    name: str
    label: str
    rule: str
    controller: str
    values: dict[str, float]
    is_yardstick: bool


def record_of(method: Method) -> MethodRecord:
    """The facts of a method without the objects."""
    values = {name: float(value) for name, value in method.values.items()}
    return MethodRecord(
        method.name, method.label, method.rule.name, method.controller.name, values, method.is_yardstick
    )


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
                raise InputError(
                    f"method {method.name!r}: was {source.use} on the task {_shown(shared[0])}, which is also one of "
                    "the tasks to judge it on."
                )


def _common_rows(first: NDArray[Any], second: NDArray[Any]) -> list[tuple[float, ...]]:
    seen = {tuple(row) for row in np.asarray(first, np.float32).tolist()}
    return [row for row in map(tuple, np.asarray(second, np.float32).tolist()) if row in seen]


def _shown(row: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{value:g}" for value in row) + ")"


def check_names(methods: Sequence[Method]) -> None:
    """Refuse an empty or ambiguous list."""
    names = [method.name for method in methods]
    if not names:
        raise InputError("methods: there is none to compare.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"methods: the name {repeated[0]!r} is used more than once.")
