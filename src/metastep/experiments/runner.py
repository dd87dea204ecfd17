"""The main job: every stage in order, ending in a report."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.progress import Tracker
from metastep.evaluation import Comparison, all_differences, differences, differences_to_csv, summary, to_parquet
from metastep.evaluation.statistics import Metric
from metastep.experiments.build import method_specs, models_needed, some_controller, whole_family
from metastep.experiments.comparing import compare_methods, compared
from metastep.experiments.config import Scale
from metastep.experiments.folder import RunFolder
from metastep.experiments.learning import fitted, learn
from metastep.experiments.origin import dataset_of, seal_report
from metastep.experiments.schema import Experiment
from metastep.experiments.start import start_run
from metastep.experiments.times import in_words, times_of
from metastep.mdp.dataset import Dataset
from metastep.report.compose import compose
from metastep.report.document import write_document
from metastep.report.findings import Findings, Fitted, target_of
from metastep.report.tables import nothing_learned

_STARTS = 128  # first observations over which the map of step sizes is averaged


def run(
    source: str | Path,
    out: str | Path,
    *,
    scale: Scale | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    tracker: Tracker | None = None,
    anyway: bool = False,
) -> RunFolder:
    """Run an experiment from Python: everything that `metastep run` does; a stopped run resumes where it was.

    Args:
        source: the name of a preset, or the path of a .toml file.
        out: folder of the run.
        scale: "quick" or "full"; by default quick where the configuration has such a table.
        seed: of everything random, in place of the configuration's.
        overrides: further settings, like `"fqi.regressor.trees=20"`.
        tracker: is told about the stages.
        anyway: whether it may take weeks.

    Returns:
        The folder: its `config`, and where model, comparison and report are.
    """
    folder = start_run(str(source), scale, Path(out), command="", seed=seed, overrides=overrides, anyway=anyway)
    run_experiment(folder, tracker=tracker)
    return folder


def run_experiment(folder: RunFolder, command: str = "", *, tracker: Tracker | None = None) -> Path:
    """Collect, fit, select, tune, compare and report; returns the page's path.

    Args:
        folder: of the run.
        command: that repeats it, for a folder that was created without one.
        tracker: is told about the stages.
    """
    with folder.writing("run"):
        for model in models_needed(folder.config):
            learn(folder, model, tracker=tracker)
        compare_methods(folder, tracker=tracker)
        return write_report(folder, command)


def write_report(folder: RunFolder, command: str = "") -> Path:
    """Write `report.html`, `report.md`, the figures, `results.parquet` and `differences.csv` from what the stages left."""
    with folder.writing("report"):
        return _write_report(folder, command)


def _write_report(folder: RunFolder, command: str) -> Path:
    config = folder.config
    needed = [(folder.of_model(model).model, "fit") for model in models_needed(config)]
    for file, verb in (*needed, (folder.comparison, "compare")):
        if not file.exists():
            place = file.relative_to(folder.path)
            raise InputError(f"Folder {folder.path} holds no {place}; run `metastep {verb} {folder.path}` first.")
    comparison = compared(folder)
    findings = Findings(
        name=config.env.name.rpartition(":")[2],
        command=repeating(folder) or command,
        config=config.to_dict(),
        comparison=comparison,
        context_space=whole_family(config).context_space,
        fitted=_fitted(folder),
    )
    document = compose(findings)
    curves, table = folder.path / "results.parquet", folder.path / "differences.csv"
    to_parquet(comparison, curves)
    rows = [
        row
        for metric in get_args(Metric)
        for row in all_differences(comparison, metric, seed=config.seed, num_resamples=config.compare.num_resamples)
    ]
    differences_to_csv(rows, table)
    files = write_document(document, folder.path)
    seal_report(folder, [*files, curves, table])
    return folder.report


def _fitted(folder: RunFolder) -> dict[str, Fitted]:
    """The models that methods follow, by the name of the method."""
    found = {}
    for spec in method_specs(folder.config).values():
        if not some_controller(spec).needs_model:
            continue
        own = folder.of_model(spec.model)
        dataset, (model, validation) = dataset_of(own), fitted(own)
        names = tuple(part.name for part in model.record.observation)
        updates = dataset.layout.num_updates // 2
        starts, later = (observations(dataset, names, update) for update in (0, updates))
        file = own.model.relative_to(folder.path).as_posix()
        found[spec.name] = Fitted(
            model, validation, dataset.counts(), starts, later, updates, own.config.to_dict(), file
        )
    return found


def repeating(folder: RunFolder) -> str:
    """What to type to make a run again: the command that created it, and the other stages where it was the first only."""
    created = folder.command()
    if not created.startswith("metastep collect "):
        return created
    stages = (shlex.join(["metastep", verb, str(folder.path)]) for verb in ("fit", "compare", "report"))
    return "\n".join([created, *stages])


def observations(dataset: Dataset, names: tuple[str, ...], update: int = 0, num: int = _STARTS) -> NDArray[np.float32]:
    """Finite meta-observations of up to `num` learners after so many updates, (learners, columns)."""
    rows: list[NDArray[np.float32]] = []
    for history in dataset.blocks():
        found = history.observe(names)[update]
        rows.append(found[np.isfinite(found).all(axis=1)])
        if sum(map(len, rows)) >= num:
            break
    return np.concatenate(rows)[:num]


def print_comparison(comparison: Comparison, config: Experiment) -> None:
    """The comparison as a table in the terminal, with the numbers of the report."""
    from rich.console import Console
    from rich.table import Table

    seed, num_resamples = config.seed, config.compare.num_resamples
    target = target_of(comparison)
    name = comparison.label(target)
    rows = differences(comparison, target, seed=seed, num_resamples=num_resamples)
    against = {row.baseline: row for row in rows}
    diverged = any(comparison.num_diverged().values())
    table = Table(
        title=f"{comparison.num_tasks} test tasks; AUC is the mean return over the updates", title_justify="left"
    )
    last = ["diverged tasks"] if diverged else []
    for heading in ("method", "AUC", "final return", f"{name} minus it, AUC", f"{name} is", *last):
        # In a narrow terminal the numbers break, not the verdict.
        table.add_column(heading, no_wrap=heading == f"{name} is")
    for row in summary(comparison, seed=seed, num_resamples=num_resamples):
        difference = against.get(row.method)
        table.add_row(
            comparison.label(row.method),
            f"{row.auc.mean:.4g} [{row.auc.low:.4g}, {row.auc.high:.4g}]",
            f"{row.final.mean:.4g} [{row.final.low:.4g}, {row.final.high:.4g}]",
            ""
            if difference is None
            else f"{difference.mean:.3g} [{difference.low:.3g}, {difference.high:.3g}] {difference.note}".rstrip(),
            "" if difference is None else difference.verdict,
            *([str(row.num_diverged)] if diverged else []),
        )
    Console(markup=False, emoji=False).print(table)  # labels are text, not instructions
    if edges := comparison.at_edge():
        print(f"tuned at an edge of the grid, so that a wider one might do better: {', '.join(edges)}")


def print_outcome(folder: RunFolder, page: Path) -> None:
    """The comparison, and where the report is."""
    comparison = compared(folder)
    print_comparison(comparison, folder.config)
    data = [folder.of_model(name).data for name in models_needed(folder.config)]
    if sentence := nothing_learned(comparison, [Dataset.open(path, verify=False).counts() for path in data]):
        print(sentence)
    if seconds := times_of(folder):
        print(f"what it took: {in_words(seconds)}")
    print(f"report: {page}")
