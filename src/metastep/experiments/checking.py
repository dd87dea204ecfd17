"""`metastep check` verifies that a folder's files are complete, unchanged and of one run; `metastep inspect` describes them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from metastep._core import storage
from metastep._core.errors import InputError, printable
from metastep.experiments import provenance, searching
from metastep.experiments.reporting import observations
from metastep.experiments.run import Run
from metastep.experiments.stages import read_fitted, read_times
from metastep.fqi import Model
from metastep.mdp.dataset import Dataset, block_checksums
from metastep.report.document import draw
from metastep.report.model import controller_picture, mean_importances, proposals
from metastep.search import SearchedModel, load_model

_Checks = dict[Path, Callable[[], object]]
# Folders that a stopped process may leave empty.
_OWN = {"data", "search", "levels", "results", "figures", "extra", "runs", "rounds", "models"}
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # fractions of the updates at which a controller without knots is shown
_SLICE = 5  # contexts along each coordinate at which first steps are shown; odd
_STARTS = 64  # number of first observations over which first steps are averaged


class Finding(NamedTuple):
    """A file and its problem; "" if it has none."""

    path: Path
    problem: str = ""


def check_folder(path: Path, *, allow_imports: bool = False) -> list[Finding]:
    """Verify all files in the folder of a run or of a dataset; findings are sorted by path."""
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
    """Return which process is writing in a folder, "" if none; its unfinished files are not damaged."""
    return storage.lock_holder(provenance.lock_folder(path)) if path.is_dir() else ""


def _files(folder: Path) -> list[Path]:
    """Return all files and links, and empty folders other than those that a stopped process may leave."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not (path.name in _OWN or any(path.iterdir()))
    ]


def _leftover(path: Path) -> str:
    """Describe an unfinished file of a stopped or running process; "" for other files."""
    if storage.is_temporary(path.name) or path.name == storage.LOCK:
        return "is a leftover of a process that was stopped; the next run removes it."
    if path.name.startswith("part-") and path.parent.name == "data":
        return "is a part of a block that is not complete; the command that collects continues with it."
    return ""


def _run(path: Path, allow_imports: bool) -> _Checks:
    try:
        run = Run.open(path)
    except InputError:

        def fail() -> None:
            raise InputError("cannot be verified without a sound config.json.")

        return dict.fromkeys(_files(path), fail) | {path / "config.json": partial(Run.open, path)}
    run.importing(allow_imports)  # an error here is not one of the files
    is_compared, is_reported = run.comparison_file.exists(), run.report_file.exists()
    # Complete data were collected here, with a model for each later round, or copied; both and a fit record their times.
    is_whole, stages = False, {"collect"}
    with suppress(InputError):
        is_whole = bool(block_checksums(run.data_folder))
    with suppress(InputError):
        stages = {*read_times(path)} or stages
    rounds, extra = range(1, run.config.collect.rounds), sorted((path / "extra").glob("*.safetensors"))
    is_collected, names = is_whole and "collect" in stages, run.config.compare.names
    checks: _Checks = {}
    listed: list[tuple[Path, Callable[[], object], bool]] = [  # a file, its check, and whether the file is required
        (path / "config.json", partial(Run.open, path), True),
        (path / "command.txt", partial(_require_command, path / "command.txt"), False),
        (path / "times.json", partial(read_times, path), is_whole or run.model_file.exists()),
        *((run.round_file(i), partial(provenance.read_round_model, run, i), is_collected) for i in rounds),
        *((file, partial(provenance.read_comparison, run, file), False) for file in extra),
        *((run.result_file(name), partial(provenance.read_result, run, name), is_compared) for name in names),
        (run.comparison_file, lambda: run.comparison, is_reported),
        (path / "report.json", partial(provenance.read_report, run), is_reported),
    ]
    followed = run.models_needed if is_compared or is_reported else ()
    for name in ("", *run.config.models):
        model_run = run.of_model(name)
        if name and model_run.path.exists():
            checks |= _run(model_run.path, allow_imports)
            listed.append((model_run.path / "config.json", partial(_require_model, model_run), True))
        written = model_run.model_file.exists() or model_run.validation_file.exists()
        is_fitted = name in followed or (written and not name)
        listed.append((model_run.model_file, partial(read_fitted, model_run), is_fitted))
        listed.append((model_run.validation_file, partial(getattr, model_run, "validation"), is_fitted))
        if model_run.config.learner == "search":
            for level in model_run.config.search.levels:
                course, model = (searching.level_file(model_run, level, folder) for folder in ("search", "levels"))
                listed.append((course, partial(searching.kept_course, model_run, level), model_run.model_file.exists()))
                listed.append((model, partial(searching.read_level, model_run, level), model_run.model_file.exists()))
        elif is_fitted or model_run.data_folder.exists():
            checks |= _data(model_run.data_folder, partial(provenance.read_dataset, model_run, verify=False))
    with suppress(InputError):
        for name, checksum in provenance.read_report(run)["files"].items():
            listed.append((path / name, partial(_require_checksum, path / name, checksum), True))
    return checks | {file: check for file, check, is_needed in listed if is_needed or file.exists()}


def _data(folder: Path, opened: Callable[[], object]) -> _Checks:
    """Return checks of the manifest and of the blocks that it lists or, while it lists none, of the existing ones."""
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


def _require_model(model_run: Run) -> None:
    """Raise an error if the configuration of a further model's run is not the one that the whole run defines."""
    recorded, place = Run.open(model_run.path).config.to_dict(), f"File {model_run.path / 'config.json'} has"
    provenance.require_same(recorded, model_run.config.to_dict(), place, "but in this run it is", "remove the model")


def _require_command(path: Path) -> None:
    text = storage.read_bytes(path)
    if not (text.startswith(b"metastep ") and text.find(b"\n") == len(text) - 1):
        raise InputError(f"File {path} was not written by metastep: it must hold one command, `metastep ...`.")


def _require_checksum(file: Path, checksum: str) -> None:
    if (actual := storage.sha256_of(file)) != checksum:
        raise InputError(f"File {file} is damaged or was edited: its SHA-256 is {actual}, expected is {checksum}.")


def inspect_path(path: Path, *, allow_imports: bool = False) -> str:
    """Describe a model file, a dataset's folder or a run's folder."""
    if path.is_file():
        return "\n".join(_describe_model(load_model(path), None, "this file"))
    if (path / "manifest.json").exists():
        return "\n".join(_describe_dataset(Dataset.open(path)))
    if not path.is_dir():
        raise InputError(f"inspect: {path} does not exist; a model file or the folder of a run or dataset is needed.")
    run = Run.open(path).importing(allow_imports)
    dataset = None if run.config.learner == "search" else run.dataset
    lines = [] if dataset is None else list(_describe_dataset(dataset))
    if run.model_file.exists():
        lines += [*([""] if lines else []), *_describe_model(run.model, dataset)]
    further = [each.path for each in map(run.of_model, run.config.models) if each.path.exists()]
    return "\n".join([*lines, *(f"further model: metastep inspect {folder}" for folder in further)])


def draw_model(path: Path, figure: Path, *, force: bool = False) -> None:
    """Draw the choices of a searched model as SVG or PNG."""
    if (ending := figure.suffix.removeprefix(".").lower()) not in ("svg", "png"):
        raise InputError(f"--figure: {figure} must end with .svg or .png.")
    if not isinstance(model := load_model(path), SearchedModel):
        raise InputError(f"--figure: {path} holds a fitted model, of which the report of its run has figures.")
    storage.require_new(figure, force=force)
    storage.write_new(figure, draw(controller_picture(model))[ending], force=force)


def _describe_dataset(dataset: Dataset) -> Iterator[str]:
    layout, counts = dataset.layout, dataset.counts()
    yield f"dataset {dataset.folder}"
    yield f"  {counts.transitions} tuples: {layout.num_learners} meta-episodes of {layout.num_updates} updates"
    yield f"  features {_sizes(layout.features.items())}; context {', '.join(layout.context_names)}"
    yield f"  {counts.flagged} flagged, {counts.excluded} excluded as not finite; seed {dataset.seed}"
    yield f"  collected on {dataset.environment.get('device', 'an unknown device')}; checksum {dataset.checksum[:16]}"


def _describe_model(model: Model | SearchedModel, dataset: Dataset | None, own: str = "selected") -> Iterator[str]:
    observation = f"  observation: {_sizes((part.name, part.size) for part in model.record.observation) or 'nothing'}"
    if isinstance(model, SearchedModel):
        searched, weights = model.record, sum(array.size for array in model.weights)
        yield f"{searched.level} searched for {printable(searched.environment)}, {printable(searched.rule_name)}"
        yield f"  {weights} weights, {searched.search_steps:.3g} environment steps of search, seed {searched.seed}"
        yield observation
        for each in searched.validation:
            mark = f"  {own}" if each.level == searched.level else ""
            yield f"  validation of the {each.level}: {each.score:.4g}, standard error {each.error:.2g}{mark}"
        yield "  chosen over the updates, other features at their mean:"
        for name, column in model.curves(None if searched.knots > 1 else _SHARES if searched.units else (0.0,)).items():
            yield f"    {printable(name):<16}" + "".join(f"{value:>10.3g}" for value in column)
        return
    record, data = model.record, model.record.training_data
    yield f"model for {printable(record.environment)}"
    yield f"  trained on {data.tuples} tuples (seed {data.seed}, dataset {printable(data.fingerprint[:16])})"
    yield observation
    for branch in record.branches:
        named = f"direction {printable(branch.name)}: steps" if branch.name else "step sizes:"
        details = [record.maximum, *([] if branch.scale == "linear" else [branch.scale]), f"ties: {record.ties}"]
        yield f"  {named} {record.num_stepsizes} from {branch.low:g} to {branch.high:g} ({', '.join(details)})"
    function = model.q_functions[record.selected_iteration - 1]
    options = [f"{key} {value}" for key, value in record.regressor.options.items()]
    fitted = printable(", ".join([f"{len(function.heads)} heads of {record.regressor.name}", *options]))
    yield f"  {len(model.q_functions)} iterations, N = {record.selected_iteration} selected; {fitted}"
    for curve in record.validation:
        mark = "  selected" if curve.iteration == record.selected_iteration else ""
        yield f"  validation N = {curve.iteration}: mean return over the updates {curve.score:.4g}{mark}"
    for branch, (heads, _) in zip(record.branches, function.by_branch, strict=True):
        if (shares := mean_importances(heads)) is not None:
            names = (*record.feature_names, "step size")
            top = [f"{printable(names[i])} {100 * shares[i]:.0f} %" for i in np.argsort(shares)[::-1][:6]]
            of = f" for {printable(branch.name)}" if branch.name else ""
            yield f"  inputs that matter most{of}: {', '.join(top)}"
    if any(part.name == "context" for part in record.observation):
        yield from _first_steps(model, dataset)


def _first_steps(model: Model, dataset: Dataset | None) -> Iterator[str]:
    """Describe the mean first step along each context coordinate; with a menu, that of the most frequent direction.

    Observations are the first of the training data or, without data, those of a zero policy with unit gradients of both signs.
    """
    record, sizes = model.record, {part.name: part.size for part in model.record.observation}
    ends = np.cumsum([0, *sizes.values()]).tolist()
    columns = {name: slice(*bounds) for name, bounds in zip(sizes, pairwise(ends), strict=True)}
    if dataset is not None:
        starts = observations(dataset, tuple(sizes), num=_STARTS)
    else:
        num = sizes.get("natural_gradient", 0)
        unit = np.eye(min(num, _STARTS // 2), num, dtype=np.float32)
        starts = np.zeros((max(1, 2 * len(unit)), ends[-1]), np.float32)
        if num:
            starts[:, columns["natural_gradient"]] = np.vstack([unit, -unit])
    bounds = (each[columns["context"]] for each in (record.feature_names, record.feature_low, record.feature_high))
    axes = {name: np.linspace(low, high, _SLICE, dtype=np.float32) for name, low, high in zip(*bounds, strict=True)}
    for name, axis in axes.items() if len(starts) else ():
        grid = [each if each is axis else each[[_SLICE // 2]] for each in axes.values()]
        shown = []
        for value, chosen in zip(axis, proposals(model, starts, grid), strict=True):
            direction = ""
            if record.directions:
                frequent = int(np.bincount(chosen[:, 0].astype(np.int64)).argmax())
                direction, chosen = f"{printable(record.directions[frequent])} ", chosen[chosen[:, 0] == frequent]
            shown.append(f"{value:g}: {direction}{chosen[:, -1].mean():.3g}")
        others = "others at their middle; " if len(axes) > 1 else ""
        yield f"  first step by {printable(name)} ({others}step size): {', '.join(shown)}"


def _sizes(parts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{printable(name)} ({size})" for name, size in parts)
