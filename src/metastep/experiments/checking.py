"""`metastep check`: verify that a folder holds what metastep wrote there, whole and of one run, and nothing else.

`metastep inspect`: describe a model or a dataset in plain text.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from metastep import envs
from metastep._core import storage
from metastep._core.errors import InputError, printable
from metastep._core.provenance import first_difference
from metastep._core.registry import require_modules
from metastep._core.storage import LOCK, writer
from metastep.experiments import provenance, searching
from metastep.experiments.reporting import observations
from metastep.experiments.run import Run
from metastep.experiments.schema import EnvSection
from metastep.experiments.stages import read_fitted, read_times
from metastep.fqi import Model
from metastep.mdp.dataset import Dataset, block_checksums
from metastep.report.document import draw
from metastep.report.model import controller_picture, mean_importances, proposals
from metastep.search import SearchedModel, load_model

_Checks = dict[Path, Callable[[], object]]
# Folders that a stopped process may leave empty.
_OWN = {"data", "search", "levels", "results", "figures", "extra", "runs", "rounds", "models"}
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the updates, at which a controller without knots is shown
_SLICE = 5  # contexts along each coordinate at which first steps are shown
_STARTS = 64  # first observations over which they are averaged


class Finding(NamedTuple):
    """A file and its problem; "" where it is as it was written."""

    path: Path
    problem: str = ""


def check_folder(path: Path, *, allow_imports: bool = False) -> list[Finding]:
    """Verify everything in the folder of a run or of a dataset; findings are in the order of the names."""
    if (path / "config.json").exists():
        checks = _run(path, allow_imports)
    elif (path / "manifest.json").exists():
        checks = _data(path, lambda: Dataset.open(path, verify=False))
    else:
        raise InputError(f"check: {path} is not the folder of a run or of a dataset.")
    findings, busy = [], busy_in(path)
    for file, check in checks.items():
        problem = "is a link, a plain file is needed." if file.is_symlink() else "" if file.exists() else "is missing."
        try:
            if not problem:
                check()
        except InputError as error:
            problem = str(error)
        findings.append(Finding(file, problem))
    for file in _files(path):
        if file not in checks and not (busy and _leftover(file)):
            findings.append(Finding(file, _leftover(file) or "was not written by metastep."))
    return sorted(findings)


def busy_in(path: Path) -> str:
    """Return which process writes in a folder now; what it has not finished is not damaged."""
    return writer(provenance.lock_folder(path)) if path.is_dir() else ""


def _files(folder: Path) -> list[Path]:
    """Return all files and links, and empty folders other than those that a stopped process may leave."""
    found = []
    for root, names, files in os.walk(folder):
        place = Path(root)
        found += [place / name for name in (*files, *(name for name in names if (place / name).is_symlink()))]
        if not (names or files or place == folder or place.name in _OWN):
            found.append(place)
    return found


def _leftover(path: Path) -> str:
    """Return what a stopped or running process left here; "" where it is something else."""
    if storage.is_temporary(path.name) or path.name == LOCK:
        return "is a leftover of a process that was stopped; the next run removes it."
    if path.name.startswith("part-") and path.parent.name == "data":
        return "is a part of a block that is not complete; the command that collects continues with it."
    return ""


def _run(path: Path, allow_imports: bool) -> _Checks:
    checks: _Checks = {path / "config.json": partial(Run.open, path)}
    try:
        run = Run.open(path)
    except InputError:

        def refuse() -> None:
            raise InputError("cannot be verified without a sound config.json.")

        return dict.fromkeys(_files(path), refuse) | checks
    run.importing(allow_imports)  # whose refusal says nothing of the files
    is_compared, is_reported = run.comparison_file.exists(), run.report_file.exists()
    optional: _Checks = {path / "command.txt": partial(_require_command, path / "command.txt")}
    times: _Checks = {path / "times.json": partial(read_times, path)}
    rounds: _Checks = {
        run.round_file(index): partial(provenance.read_round_model, run, index)
        for index in range(1, run.config.collect.rounds)
    }
    # Whole data were collected here, with a model for each later round, or copied; both take time, and so does a fit.
    is_whole, stages = False, {"collect"}
    with suppress(InputError):
        is_whole = bool(block_checksums(run.data_folder))
    with suppress(InputError):
        stages = {*read_times(path)} or stages
    checks |= times if is_whole or run.model_file.exists() else {}
    checks |= rounds if is_whole and "collect" in stages else {}
    optional |= times | rounds
    for file in sorted((path / "extra").glob("*.safetensors")):
        optional[file] = partial(provenance.read_comparison, run, file)
    results: _Checks = {
        run.result_file(name): partial(provenance.read_result, run, name) for name in run.config.compare.names
    }
    checks |= {file: check for file, check in (optional | results).items() if file.exists()}
    if is_compared or is_reported:
        checks[run.comparison_file] = lambda: run.comparison
    checks |= results if is_compared else {}
    followed = run.models_needed if is_compared or is_reported else ()
    for name in ("", *run.config.models):
        own = run.of_model(name)
        if name and own.path.exists():
            checks |= _run(own.path, allow_imports) | {own.path / "config.json": partial(_require_model, own)}
        is_fitted = name in followed or (not name and (own.model_file.exists() or own.validation_file.exists()))
        if is_fitted:
            checks[own.model_file] = partial(read_fitted, own)
            checks[own.validation_file] = partial(provenance.read_comparison, own, own.validation_file)
        if own.config.learner == "search":
            checks |= _search(own)
        elif is_fitted or own.data_folder.exists():
            checks |= _data(own.data_folder, partial(provenance.read_dataset, own, verify=False))
    if is_reported or (path / "report.json").exists():
        checks[path / "report.json"] = partial(provenance.read_report, run)
        try:
            listed = provenance.read_report(run)["files"]
        except InputError:
            listed = {}
        checks |= {path / name: partial(_require_checksum, path / name, checksum) for name, checksum in listed.items()}
    return checks


def _search(run: Run) -> _Checks:
    """Return checks of every level's search and model."""
    levels = run.config.search.levels
    found: _Checks = {searching.course_file(run, level): partial(searching.kept_course, run, level) for level in levels}
    found |= {searching.level_file(run, level): partial(searching.read_level, run, level) for level in levels}
    is_done = run.model_file.exists()
    return {file: check for file, check in found.items() if is_done or file.exists()}


def _data(folder: Path, opened: Callable[[], object]) -> _Checks:
    """Return checks of the manifest and the blocks that it lists; while it lists none, of those that are there."""
    checks: _Checks = {folder / "manifest.json": opened}
    try:
        sums: dict[Path, str | None] = dict(block_checksums(folder))
    except InputError:
        return checks
    if not sums:
        sums = dict.fromkeys(folder.glob("block-*.safetensors"))
        if busy_in(folder):
            checks = {folder / "manifest.json": partial(block_checksums, folder)}
    return checks | {block: partial(storage.read_tensors, block, checksum) for block, checksum in sums.items()}


def _require_model(own: Run) -> None:
    """Refuse the run of a model within a run whose configuration is not what the whole says."""
    found = first_difference(Run.open(own.path).config.to_dict(), own.config.to_dict())
    place = f"File {own.path / 'config.json'} has"
    provenance.refuse_difference(found, place, "but in this run it is", "remove the model")


def _require_command(path: Path) -> None:
    text = storage.read_bytes(path)
    if not (text.startswith(b"metastep ") and text.find(b"\n") == len(text) - 1):
        raise InputError(f"File {path} was not written by metastep: it must hold one command, `metastep ...`.")


def _require_checksum(file: Path, checksum: str) -> None:
    if (found := storage.sha256_of(file)) != checksum:
        raise InputError(f"File {file} is damaged or was edited: its SHA-256 is {found}, expected is {checksum}.")


def inspect_path(path: Path, *, allow_imports: bool = False) -> str:
    """Describe a model file, a dataset's folder or a run's folder."""
    if path.is_file():
        return "\n".join(_describe_model(load_model(path), None))
    if (path / "manifest.json").exists():
        return "\n".join(_describe_dataset(Dataset.open(path)))
    if not path.is_dir():
        raise InputError(f"inspect: {path} does not exist; a model file or the folder of a run or dataset is needed.")
    folder = Run.open(path).importing(allow_imports)
    is_searched = folder.config.learner == "search"
    dataset = None if is_searched else folder.dataset
    lines = [] if dataset is None else list(_describe_dataset(dataset))
    if folder.model_file.exists():
        lines += [*([""] if lines else []), *_describe_model(folder.model, dataset)]
    further = [own.path for own in map(folder.of_model, folder.config.models) if own.path.exists()]
    return "\n".join([*lines, *(f"further model: metastep inspect {own}" for own in further)])


def draw_model(path: Path, figure: Path, *, force: bool = False) -> None:
    """Draw what a searched model does, as SVG or PNG."""
    if (ending := figure.suffix.removeprefix(".").lower()) not in ("svg", "png"):
        raise InputError(f"--figure: {figure} must end with .svg or .png.")
    if not isinstance(model := load_model(path), SearchedModel):
        raise InputError(f"--figure: {path} holds a fitted model, of which the report of its run has figures.")
    storage.require_new(figure, force=force)
    storage.write_new(figure, getattr(draw(controller_picture(model)), ending), force=force)


def _describe_dataset(dataset: Dataset) -> Iterator[str]:
    layout, counts = dataset.layout, dataset.counts()
    yield f"dataset {dataset.folder}"
    yield f"  {counts.transitions} tuples: {layout.num_learners} meta-episodes of {layout.num_updates} updates"
    yield f"  features {_sizes(layout.features.items())}; context {', '.join(layout.context_names)}"
    yield f"  {counts.flagged} flagged, {counts.excluded} excluded as not finite; seed {dataset.seed}"
    yield f"  collected on {dataset.environment.get('device', 'an unknown device')}; checksum {dataset.checksum[:16]}"


def _describe_searched(model: SearchedModel) -> Iterator[str]:
    record = model.record
    yield f"{record.level} searched for {printable(record.environment)}, {printable(record.rule_name)}"
    weights = sum(array.size for array in model.weights)
    yield f"  {weights} weights, {record.search_steps:.3g} environment steps of search, seed {record.seed}"
    yield f"  observation: {_sizes((part.name, part.size) for part in record.observation) or 'nothing'}"
    for each in record.validation:
        mark = "  selected" if each.level == record.level else ""
        yield f"  validation of the {each.level}: {each.score:.4g}, standard error {each.error:.2g}{mark}"
    yield "  chosen over the updates, other features at their mean:"
    table = model.curves(None if record.knots > 1 else _SHARES if record.units else (0.0,))
    for name, column in table.items():
        yield f"    {printable(name):<16}" + "".join(f"{value:>10.3g}" for value in column)


def _describe_model(model: Model | SearchedModel, dataset: Dataset | None) -> Iterator[str]:
    if isinstance(model, SearchedModel):
        yield from _describe_searched(model)
        return
    record = model.record
    data = record.training_data
    yield f"model for {printable(record.environment)}"
    yield f"  trained on {data.tuples} tuples (seed {data.seed}, dataset {printable(data.fingerprint[:16])})"
    yield f"  observation: {_sizes((part.name, part.size) for part in record.observation)}"
    for branch in record.branches:
        named = f"direction {printable(branch.name)}: steps" if branch.name else "step sizes:"
        how = [record.maximum, *([] if branch.scale == "linear" else [branch.scale]), f"ties: {record.ties}"]
        yield f"  {named} {record.num_stepsizes} from {branch.low:g} to {branch.high:g} ({', '.join(how)})"
    function = model.q_functions[record.selected_iteration - 1]
    heads = function.heads
    options = [f"{key} {value}" for key, value in record.regressor.options.items()]
    fitted = printable(", ".join([f"{len(heads)} heads of {record.regressor.name}", *options]))
    yield f"  {len(model.q_functions)} iterations, N = {record.selected_iteration} selected; {fitted}"
    for curve in record.validation:
        mark = "  selected" if curve.iteration == record.selected_iteration else ""
        yield f"  validation N = {curve.iteration}: mean return over the updates {curve.score:.4g}{mark}"
    for branch, own in zip(record.branches, function.by_branch, strict=True):
        if (shares := mean_importances(own)) is not None:
            names = (*record.feature_names, "step size")
            top = [f"{printable(names[i])} {100 * shares[i]:.0f} %" for i in np.argsort(shares)[::-1][:6]]
            of = f" for {printable(branch.name)}" if branch.name else ""
            yield f"  inputs that matter most{of}: {', '.join(top)}"
    if any(part.name == "context" for part in record.observation):
        try:
            yield from list(_first_steps(model, dataset))
        except InputError as error:  # a record may come from anywhere
            yield f"  no slice: {printable(str(error))}"


def _first_steps(model: Model, dataset: Dataset | None) -> Iterator[str]:
    """Describe the proposed first steps along each context coordinate, the others at their middle.

    The mean step, with a menu that of the most frequent direction. Starts are first observations of the training data or,
    without it, of a policy at zero with unit gradients, both ways.
    """
    record = model.record
    experiment = record.configuration.get("experiment", {"env": {"name": record.environment}})
    try:
        if experiment["env"].get("fixed_context") is not None:
            raise InputError("the model was trained in one task.")
        section = EnvSection.model_validate({"options": {}, **experiment["env"]})
        require_modules([section.name], "the record", allow_imports=False)
        env = envs.make(section.name, **section.options)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"the record does not describe an environment ({type(error).__name__}).") from error
    space, size = env.context_space, {part.name: part.size for part in record.observation}
    if size["context"] != space.num_coordinates:
        raise InputError(
            f"the model's context has {size['context']} numbers, that of its environment {space.num_coordinates}."
        )
    if dataset is not None:
        starts = observations(dataset, tuple(size), num=_STARTS)
        if not len(starts):
            raise InputError("the dataset has no finite first observation.")
    else:
        num = size.get("natural_gradient", 0)
        unit = np.eye(min(num, _STARTS // 2), num, dtype=np.float32)
        units = np.vstack([unit, -unit]) if num else np.zeros((1, 0), np.float32)
        columns = {name: np.zeros((len(units), width), np.float32) for name, width in size.items()}
        starts = np.hstack([*(columns | {"natural_gradient": units} if num else columns).values()])
    middle = [np.asarray([(low + high) / 2], np.float32) for low, high in zip(space.low, space.high, strict=True)]
    for index, name in enumerate(space.names):
        axis, shown = np.linspace(space.low[index], space.high[index], _SLICE, dtype=np.float32), []
        rows = proposals(model, starts, [*middle[:index], axis, *middle[index + 1 :]])
        for value, chosen in zip(axis, rows, strict=True):
            direction = ""
            if record.directions:
                usual = int(np.bincount(chosen[:, 0].astype(np.int64)).argmax())
                direction, chosen = f"{printable(record.directions[usual])} ", chosen[chosen[:, 0] == usual]
            shown.append(f"{value:g}: {direction}{chosen[:, -1].mean():.3g}")
        others = "others at their middle; " if len(middle) > 1 else ""
        yield f"  first step by {name} ({others}step size): {', '.join(shown)}"


def _sizes(parts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{printable(name)} ({size})" for name, size in parts)
