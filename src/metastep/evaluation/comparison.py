"""Paired comparisons: every method runs on the same tasks, from the same initial policies, with the same random numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Silent, Tracker
from metastep._core.provenance import describe, environment_record, first_difference
from metastep._core.settings import from_json
from metastep.evaluation.methods import RECORD, Method, MethodRecord, TuningTable, has_directions, require_disjoint
from metastep.mdp import MetaMDP
from metastep.mdp.blocks import Blocks, Stream
from metastep.mdp.runs import BlockRun, Plan, run_plans

# Type and axes of the arrays: methods, tasks, updates, estimates (updates + 1), hyperparameters, policy parameters, context.
_ARRAYS: dict[str, tuple[Any, str]] = {
    "context": (np.float32, "tc"),
    "returns": (np.float32, "mte"),
    "hyperparameters": (np.float32, "mtuh"),
    "direction": (np.int8, "mtu"),
    "flagged": (np.bool_, "mte"),
    "num_steps": (np.float64, "mt"),
    "theta": (np.float32, "mtp"),
}
_TABLE_ARRAYS = ("points", "mean", "standard_error", "num_diverged", "scores")  # of a tuning table


@dataclass(frozen=True, eq=False)
class Comparison:
    """Learning curves of several methods on the same tasks; the task is the unit of replication."""

    methods: tuple[MethodRecord, ...]  # in the order of the first axis of every array
    context_names: tuple[str, ...]  # of the columns of `context`
    context: NDArray[np.float32]  # (tasks, coordinates)
    returns: NDArray[np.float32]  # (methods, tasks, updates + 1), of each batch; the first is before any update
    # (methods, tasks, updates, coordinates); the first coordinate is the step. NaN where a method chooses fewer than others.
    hyperparameters: NDArray[np.float32]
    direction: NDArray[np.int8]  # (methods, tasks, updates), the position among the method's `directions`, or 0
    flagged: NDArray[np.bool_]  # (methods, tasks, updates + 1): an estimate that was zero or not finite
    num_steps: NDArray[np.float64]  # (methods, tasks), environment steps of the batches, without a controller's own
    theta: NDArray[np.float32]  # (methods, tasks, parameters), the policy after the last update
    diagnostics: dict[str, NDArray[np.float32]] = field(default_factory=dict)  # "method/quantity" -> (tasks, updates)
    tuning: tuple[TuningTable, ...] = ()  # the grid searches of the tuned methods
    settings: dict[str, Any] = field(default_factory=dict)  # everything needed to repeat it
    made_from: dict[str, str] = field(default_factory=dict)  # fingerprints of its run and of the files it was made from

    def __post_init__(self) -> None:
        for record in self.methods:
            from_json(RECORD, record._asdict(), f"methods: record of {record.name!r:.60}")

    @property
    def names(self) -> tuple[str, ...]:
        """The methods' names."""
        return tuple(method.name for method in self.methods)

    @property
    def num_tasks(self) -> int:
        """The number of tasks."""
        return self.returns.shape[1]

    def index(self, name: str) -> int:
        """Return the index of a method."""
        if name not in self.names:
            raise InputError(f"method: {name!r} is not in this comparison, allowed are {', '.join(self.names)}.")
        return self.names.index(name)

    def record(self, name: str) -> MethodRecord:
        """Return the record of a method."""
        return self.methods[self.index(name)]

    def label(self, name: str) -> str:
        """Return the name of a method in tables and figures."""
        return self.record(name).label

    def at_edge(self, *methods: str) -> list[str]:
        """Return the labels of those methods (by default of all) that are tuned at an edge of their grid, with the parameters."""
        tables = (table for table in self.tuning if table.at_edge and table.method in (methods or self.names))
        return [f"{self.label(table.method)} ({', '.join(table.at_edge)})" for table in tables]

    def num_flagged(self) -> dict[str, int]:
        """Return the number of estimates that were zero or not finite, by method."""
        return dict(zip(self.names, self.flagged.sum(axis=(1, 2)).tolist(), strict=True))

    def num_diverged(self) -> dict[str, int]:
        """Return the number of tasks with a return that is not finite, by method."""
        return dict(zip(self.names, (~np.isfinite(self.returns)).any(axis=2).sum(axis=1).tolist(), strict=True))


def compare(
    methods: Sequence[Method],
    mdp: MetaMDP,
    *,
    seed: int,
    num_updates: int,
    num_tasks: int | None = None,
    contexts: NDArray[np.float32] | None = None,
    stream: Stream = Stream.TEST,
    tuning: Sequence[TuningTable] = (),
    blocks_together: int = 1,
    tracker: Tracker | None = None,
) -> Comparison:
    """Run every method on the same tasks with the same initial policies and simulation keys.

    Args:
        methods: each replaces the meta-MDP's rule by its own.
        seed, num_updates: seed of tasks, initial policies and simulations; number of updates T.
        num_tasks: number of tasks; by default that of `contexts`.
        contexts: tasks (tasks, coordinates) to use in turn, in place of sampled ones.
        stream: source of tasks and keys; a method that was trained, selected or tuned on it is an error.
        tuning: tables to store with the result.
        blocks_together, tracker: number of blocks that a GPU simulates in one batch; receives progress in blocks.
    """
    if contexts is not None:
        contexts = mdp.env.context_space.validate(contexts)
        num_tasks = (num_tasks or len(contexts)) if len(contexts) else 0
    if num_tasks is None or num_tasks < 1 or num_updates < 1:
        raise InputError(f"compare: {num_tasks} tasks and {num_updates} updates; both must be at least 1.")
    name = {Stream.VALIDATION: "validate", Stream.TUNING: "tune", Stream.TRAIN: "train"}.get(stream)
    name = name or (f"test {methods[0].name}" if len(methods) == 1 else f"test {len(methods)} methods")
    with (tracker or Silent()).stage(name, len(methods) * len(Blocks(num_tasks, mdp.block_size)), "blocks") as stage:
        plan = comparison_plan(methods, mdp, seed, num_updates, num_tasks, contexts, stream, tuning)
        return run_plans([plan], stage.advance, together=blocks_together)[0]


def comparison_plan(
    methods: Sequence[Method],
    mdp: MetaMDP,
    seed: int,
    num_updates: int,
    num_tasks: int,
    contexts: NDArray[np.float32] | None = None,
    stream: Stream = Stream.TEST,
    tuning: Sequence[TuningTable] = (),
) -> Plan[Comparison]:
    """Return the plan of a comparison, every method on every block of tasks; the arguments are those of `compare`."""
    names = [method.name for method in methods]
    if not names:
        raise InputError("methods: there is none to compare.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"methods: the name {repeated[0]!r} is used more than once.")
    mdp, blocks = mdp.with_budget(num_updates), Blocks(num_tasks, mdp.block_size)
    starts = [mdp.tasks(seed, stream, block, contexts) for block in blocks]
    context = np.concatenate([start.context for start in starts])[:num_tasks]
    require_disjoint(methods, stream, context)
    pairs = [(method, method.on(mdp)) for method in methods]
    results = yield [
        BlockRun(variant, method.controller, start, num_updates, blocks.num_valid(block))
        for (method, variant), (block, start) in product(pairs, enumerate(starts))
    ]
    settings = {"seed": seed, "stream": stream.name.lower(), "num_updates": num_updates, "num_tasks": num_tasks}
    settings |= {"listed_tasks": contexts is not None, "mdp": describe(mdp)}
    settings |= {"versions": environment_record(packages=mdp.env.packages)}
    parts = []
    for index, (method, variant) in enumerate(pairs):
        of_method = results[index * len(blocks) : (index + 1) * len(blocks)]
        histories, chooses = [block.history for block in of_method], has_directions(variant.space)
        # With a menu, the first coordinate is the direction, the second the step.
        chosen = np.concatenate([np.swapaxes(history.hyperparameters, 0, 1) for history in histories])[None]
        reported = {name: np.concatenate([block.report[name].T for block in of_method]) for name in of_method[0].report}
        num_steps = [history.num_steps.sum(axis=0, dtype=np.float64) for history in histories]
        part = Comparison(
            methods=(method.record(variant.space),),
            context_names=mdp.env.context_space.names,
            context=context,
            returns=np.concatenate([history.mean_return.T for history in histories])[None],
            hyperparameters=chosen[..., 1:] if chooses else chosen,
            direction=(chosen[..., 0] if chooses else np.zeros(chosen.shape[:3])).astype(np.int8),
            flagged=np.concatenate([history.flagged.T for history in histories])[None],
            num_steps=np.concatenate(num_steps)[None],
            theta=np.concatenate([block.theta for block in of_method])[None],
            diagnostics={f"{method.name}/{name}": array for name, array in reported.items()},
            settings=settings,
        )
        parts.append(part)
    return replace(join(parts), tuning=tuple(tuning))


def join(parts: Sequence[Comparison]) -> Comparison:
    """Join comparisons of different methods on the same tasks and with the same settings."""
    for part in parts[1:]:
        require_alike(parts[0], part)
    by_name: dict[str, list[Any]] = {name: [getattr(part, name) for part in parts] for name in tuple(_ARRAYS)[1:]}
    most = max(chosen.shape[-1] for chosen in by_name["hyperparameters"])
    by_name["hyperparameters"] = [  # NaN for those that a method does not choose
        np.pad(chosen, [(0, 0)] * 3 + [(0, most - chosen.shape[-1])], constant_values=np.nan)
        for chosen in by_name["hyperparameters"]
    ]
    arrays: dict[str, Any] = {name: np.concatenate(each) for name, each in by_name.items()}
    return replace(
        parts[0],
        methods=tuple(record for part in parts for record in part.methods),
        diagnostics={name: array for part in parts for name, array in part.diagnostics.items()},
        tuning=tuple(table for part in parts for table in part.tuning),
        **arrays,
    )


def require_alike(first: Comparison, second: Comparison, *, but: Sequence[str] = ()) -> None:
    """Raise an error if results differ in tasks, learners, software or device; settings named in `but` may differ."""

    def setting(comparison: Comparison) -> dict[str, Any]:
        of_models = dict.fromkeys(("observation", "meta_discount"))  # these do not affect the learners
        mdp = comparison.settings.get("mdp", {}) | of_models
        return {name: value for name, value in comparison.settings.items() if name not in but} | {"mdp": mdp}

    if difference := first_difference(setting(first), setting(second)):
        name, one, other = difference
        apart = f"{first.names[0]} was compared with {name} = {one}, {second.names[0]} with {other}"
        raise InputError(f"results: {apart}; only results of the same settings can be joined.")
    if not np.array_equal(second.context, first.context):
        raise InputError(f"results: {second.names[0]} was compared on other tasks than {first.names[0]}.")


def save(path: str | Path, comparison: Comparison) -> str:
    """Write a comparison atomically, equal content as equal bytes; return the file's SHA-256."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(comparison, name) for name in _ARRAYS}
    arrays |= {f"diagnostics/{name}": array for name, array in comparison.diagnostics.items()}
    for index, table in enumerate(comparison.tuning):
        arrays |= {f"tuning/{index}/{name}": getattr(table, name) for name in _TABLE_ARRAYS}
    metadata = {
        **storage.stamp("comparison"),
        "methods": [method._asdict() for method in comparison.methods],
        "context_names": list(comparison.context_names),
        "tuning": [{n: v for n, v in table._asdict().items() if n not in _TABLE_ARRAYS} for table in comparison.tuning],
        "settings": comparison.settings,
        "made_from": comparison.made_from,
    }
    return storage.write_tensors(path, arrays, metadata)


def load(path: str | Path) -> Comparison:
    """Read and check a comparison; a damaged file, or one of another kind, is an `InputError`."""
    arrays, metadata = storage.read_tensors(path)
    storage.require_stamp(metadata, "comparison", path, "compare again with `metastep compare` or `metastep run`")
    prefix = "diagnostics/"
    try:
        tables = []
        for index, facts in enumerate(metadata["tuning"]):
            places = {name: f"tuning/{index}/{name}" for name in _TABLE_ARRAYS}  # before 0.3 there were no scores
            columns = {name: arrays[key] for name, key in places.items() if key in arrays or name != "scores"}
            tables.append(TuningTable(**facts | columns | {"parameters": tuple(facts["parameters"])}))
        comparison = Comparison(
            methods=tuple(from_json(RECORD, facts, "methods") for facts in metadata["methods"]),
            context_names=tuple(metadata["context_names"]),
            diagnostics={name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)},
            tuning=tuple(tables),
            settings=dict(metadata["settings"]),
            made_from={str(name): str(value) for name, value in metadata["made_from"].items()},
            **{name: arrays[name] for name in _ARRAYS},
        )
        _require_whole(comparison)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__} {error}."
        raise InputError(f"File {path} is not a whole comparison: {reason}") from error
    return comparison


def _require_whole(comparison: Comparison) -> None:
    """Raise an error if arrays have wrong types, inconsistent shapes or impossible values."""
    updates, sizes = comparison.direction.shape[-1], {"m": len(comparison.methods), "c": len(comparison.context_names)}
    sizes |= {"t": len(comparison.context), "u": updates, "e": updates + 1}
    for name, (kind, axes) in _ARRAYS.items():
        array, dtype = getattr(comparison, name), np.dtype(kind)
        shape = tuple(sizes.setdefault(axis, size) for axis, size in zip(axes, array.shape, strict=False))
        if array.shape != shape or array.ndim != len(axes) or array.dtype != dtype:
            expected = f"expected is {dtype} of {len(axes)} axes, {shape}"
            raise InputError(f"{name} is {array.dtype} {array.shape}, {expected}.")
    if len(set(comparison.names)) != len(comparison.names):
        raise InputError("a method is named twice.")
    for record, chosen in zip(comparison.methods, comparison.direction, strict=True):
        last = max(0, len(record.directions) - 1)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() <= last:
            actual = f"{chosen.min()} to {chosen.max()}"
            raise InputError(f"directions of {record.name} are {actual}, allowed is 0 to {last}.")
        if len(record.choices) > sizes["h"]:
            raise InputError(f"choices of {record.name} are {len(record.choices)}, allowed is at most {sizes['h']}.")
    for table in comparison.tuning:
        if not 0.0 <= table.num_steps < np.inf:
            raise InputError(f"tuning took {table.num_steps} steps.")


def to_parquet(comparison: Comparison, path: str | Path) -> None:
    """Write the curves as one long Parquet table, with a row for every method, task and update from 0 to T.

    Columns: `method`, `label`, `task`, `context_<name>`, `update`, `return` (after that many updates), `stepsize` (of the last
    update, null at 0; a list if there are several hyperparameters), `flagged` and, if a method chose among directions,
    `direction` (its name, null for other methods and at 0).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    method, task, update = (axis.reshape(-1) for axis in np.indices(comparison.returns.shape))
    chosen = comparison.hyperparameters  # null at update 0, which has none
    padded = np.pad(chosen, ((0, 0), (0, 0), (1, 0), (0, 0))).reshape(-1)
    if chosen.shape[3] == 1:
        stepsizes = pa.array(padded, mask=update == 0)
    else:
        stepsizes = pa.FixedSizeListArray.from_arrays(pa.array(padded), chosen.shape[3], mask=pa.array(update == 0))
    columns: dict[str, Any] = {
        "method": pa.array(comparison.names).take(pa.array(method)),
        "label": pa.array([record.label for record in comparison.methods]).take(pa.array(method)),
        "task": task,
        **{f"context_{name}": comparison.context[task, i] for i, name in enumerate(comparison.context_names)},
        "update": update,
        "return": comparison.returns.reshape(-1),
        "stepsize": stepsizes,
        "flagged": comparison.flagged.reshape(-1),
    }
    if most := max(len(record.directions) for record in comparison.methods):
        names = np.full((len(comparison.methods), most + 1), None, object)  # None at update 0
        for index, record in enumerate(comparison.methods):
            names[index, 1 : 1 + len(record.directions)] = record.directions
        position = np.pad(comparison.direction.astype(int) + 1, ((0, 0), (0, 0), (1, 0))).reshape(-1)
        columns["direction"] = pa.array(names[method, position], pa.string())
    storage.write_atomically(path, lambda file: pq.write_table(pa.table(columns), file))
