"""`metastep inspect`: what a model or a dataset is, in plain text."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metastep import envs
from metastep._core.errors import InputError
from metastep._core.registry import require_modules
from metastep.experiments.reporting import observations
from metastep.experiments.run import Run
from metastep.experiments.schema import EnvSection
from metastep.fqi import Model, load_model
from metastep.mdp.dataset import Dataset
from metastep.report.model import mean_importances, proposals

_SLICE = 5  # contexts along each coordinate
_STARTS = 64


def inspect_path(path: Path, *, allow_imports: bool = False) -> str:
    """Describe a model file, a dataset's folder or a run's folder."""
    if path.is_file():
        return "\n".join(_describe_model(load_model(path), None))
    if (path / "manifest.json").exists():
        return "\n".join(_describe_dataset(Dataset.open(path)))
    if not path.is_dir():
        raise InputError(f"inspect: {path} does not exist; a model file or the folder of a run or dataset is needed.")
    folder = Run.open(path).importing(allow_imports)
    dataset = folder.dataset
    lines = list(_describe_dataset(dataset))
    if folder.model_file.exists():
        lines += ["", *_describe_model(folder.model, dataset)]
    further = [own.path for own in map(folder.of_model, folder.config.models) if own.path.exists()]
    return "\n".join([*lines, *(f"further model: metastep inspect {own}" for own in further)])


def _describe_dataset(dataset: Dataset) -> Iterator[str]:
    layout, counts = dataset.layout, dataset.counts()
    yield f"dataset {dataset.folder}"
    yield f"  {counts.transitions} tuples: {layout.num_learners} meta-episodes of {layout.num_updates} updates"
    yield f"  features {_sizes(layout.features.items())}; context {', '.join(layout.context_names)}"
    yield f"  {counts.flagged} flagged, {counts.excluded} excluded as not finite; seed {dataset.seed}"
    yield f"  collected on {dataset.environment.get('device', 'an unknown device')}; checksum {dataset.checksum[:16]}"


def _describe_model(model: Model, dataset: Dataset | None) -> Iterator[str]:
    record = model.record
    data = record.training_data
    yield f"model for {_printable(record.environment)}"
    yield f"  trained on {data.tuples} tuples (seed {data.seed}, dataset {_printable(data.fingerprint[:16])})"
    yield f"  observation: {_sizes((part.name, part.size) for part in record.observation)}"
    for branch in record.branches:
        named = f"direction {_printable(branch.name)}: steps" if branch.name else "step sizes:"
        how = record.maximum if branch.scale == "linear" else f"{record.maximum}, {branch.scale}"
        yield f"  {named} {record.num_stepsizes} from {branch.low:g} to {branch.high:g} ({how})"
    function = model.q_functions[record.selected_iteration - 1]
    heads = function.heads
    options = [f"{key} {value}" for key, value in record.regressor.options.items()]
    fitted = _printable(", ".join([f"{len(heads)} heads of {record.regressor.name}", *options]))
    yield f"  {len(model.q_functions)} iterations, N = {record.selected_iteration} selected; {fitted}"
    for curve in record.validation:
        mark = "  selected" if curve.iteration == record.selected_iteration else ""
        yield f"  validation N = {curve.iteration}: mean return over the updates {curve.score:.4g}{mark}"
    for branch, own in zip(record.branches, function.by_branch, strict=True):
        if (shares := mean_importances(own)) is not None:
            names = (*record.feature_names, "step size")
            top = [f"{_printable(names[i])} {100 * shares[i]:.0f} %" for i in np.argsort(shares)[::-1][:6]]
            of = f" for {_printable(branch.name)}" if branch.name else ""
            yield f"  inputs that matter most{of}: {', '.join(top)}"
    if any(part.name == "context" for part in record.observation):
        try:
            yield from list(_recommendations(model, dataset))
        except InputError as error:  # a record may come from anywhere
            yield f"  no slice: {_printable(str(error))}"


def _recommendations(model: Model, dataset: Dataset | None) -> Iterator[str]:
    """Describe the proposed first steps along each context coordinate, the others at their middle."""
    space = _environment(model).context_space
    size = next(part.size for part in model.record.observation if part.name == "context")
    if size != space.num_coordinates:
        raise InputError(f"the model's context has {size} numbers, that of its environment {space.num_coordinates}.")
    starts = _starts(model, dataset)
    if not len(starts):
        raise InputError("the dataset has no finite first observation.")
    middle = [np.asarray([(low + high) / 2], np.float32) for low, high in zip(space.low, space.high, strict=True)]
    for index, name in enumerate(space.names):
        axis = np.linspace(space.low[index], space.high[index], _SLICE, dtype=np.float32)
        chosen = proposals(model, starts, [*middle[:index], axis, *middle[index + 1 :]])
        shown = ", ".join(f"{value:g}: {_usual(model, rows)}" for value, rows in zip(axis, chosen, strict=True))
        yield f"  first step by {name} ({'others at their middle; ' if len(middle) > 1 else ''}step size): {shown}"


def _usual(model: Model, chosen: NDArray[np.float32]) -> str:
    """Describe proposals, (starts, coordinates): the mean step, with a menu that of the most frequent direction."""
    if not model.record.directions:
        return f"{chosen[:, 0].mean():.3g}"
    direction = int(np.bincount(chosen[:, 0].astype(np.int64)).argmax())
    steps = chosen[chosen[:, 0] == direction, 1]
    return f"{_printable(model.record.directions[direction])} {steps.mean():.3g}"


def _environment(model: Model) -> envs.Env | envs.HostEnv:
    """Build the environment that the record describes."""
    record = model.record
    experiment = record.configuration.get("experiment", {"env": {"name": record.environment}})
    try:
        if experiment["env"].get("fixed_context") is not None:
            raise InputError("the model was trained in one task.")
        section = EnvSection.model_validate({"options": {}, **experiment["env"]})
        require_modules([section.name], "the record", allow_imports=False)
        return envs.make(section.name, **section.options)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"the record does not describe an environment ({type(error).__name__}).") from error


def _sizes(parts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{_printable(name)} ({size})" for name, size in parts)


def _printable(text: str) -> str:
    """Escape text of a file that would move a terminal's cursor."""
    return text if text.isprintable() else ascii(text)


def _starts(model: Model, dataset: Dataset | None) -> NDArray[np.float32]:
    """Return first observations of the training data, or, without it, of a policy at zero with unit gradients, both ways."""
    if dataset is not None:
        return observations(dataset, tuple(part.name for part in model.record.observation), num=_STARTS)
    size = {part.name: part.size for part in model.record.observation}
    directions = np.zeros((1, 0), np.float32)
    if "natural_gradient" in size:
        unit = np.eye(min(size["natural_gradient"], _STARTS // 2), size["natural_gradient"], dtype=np.float32)
        directions = np.vstack([unit, -unit])
    columns = {"natural_gradient": directions}
    rows = [columns.get(name, np.zeros((len(directions), num), np.float32)) for name, num in size.items()]
    return np.concatenate(rows, axis=1)
