"""The main job: every stage in order, ending in a report."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metastep import envs
from metastep.errors import InputError
from metastep.evaluation import Comparison, differences, load, summary, to_parquet
from metastep.experiments.folder import RunFolder
from metastep.experiments.stages import collect_data, compare_methods, fit_and_select
from metastep.fqi import load_model
from metastep.meta.dataset import Dataset
from metastep.meta.episodes import observe
from metastep.progress import Tracker
from metastep.report.compose import Findings, compose
from metastep.report.document import write_document
from metastep.report.style import title_of

_STARTS = 128  # first observations over which the map of step sizes is averaged


def run_experiment(folder: RunFolder, command: str, *, tracker: Tracker | None = None) -> Path:
    """Collect, fit, select, tune, compare and report; returns the page's path."""
    collect_data(folder, tracker=tracker)
    fit_and_select(folder, tracker=tracker)
    compare_methods(folder, tracker=tracker)
    return write_report(folder, command)


def write_report(folder: RunFolder, command: str) -> Path:
    """Write `report.html`, `report.md`, the figures and `results.parquet` from what the stages left."""
    for file, verb in ((folder.model, "fit"), (folder.comparison, "compare")):
        if not file.exists():
            raise InputError(f"Folder {folder.path} holds no {file.name}; run `metastep {verb} {folder.path}` first.")
    dataset, model, comparison = Dataset.open(folder.data), load_model(folder.model), load(folder.comparison)
    names = tuple(part.name for part in model.record.observation)
    findings = Findings(
        name=folder.config.env.name,
        command=command,
        config=folder.config.to_dict(),
        comparison=comparison,
        validation=load(folder.validation),
        model=model,
        counts=dataset.counts(),
        context_space=envs.make(folder.config.env.name, **folder.config.env.options).context_space,
        starts=first_observations(dataset, names),
    )
    to_parquet(comparison, folder.path / "results.parquet")
    return write_document(compose(findings), folder.path)


def first_observations(dataset: Dataset, parts: tuple[str, ...], num: int = _STARTS) -> NDArray[np.float32]:
    """Meta-observations of up to `num` learners before their first update, (learners, features)."""
    rows: list[NDArray[np.float32]] = []
    for block in dataset.blocks():
        first = observe(block, parts)[0]
        rows.append(first[np.isfinite(first).all(axis=1)])
        if sum(map(len, rows)) >= num:
            break
    return np.concatenate(rows)[:num]


def print_comparison(comparison: Comparison) -> None:
    """The comparison as a table in the terminal."""
    from rich.console import Console
    from rich.table import Table

    against = {}
    if "metafqi" in comparison.names:
        against = {row.baseline: row for row in differences(comparison, "metafqi")}
    table = Table(
        title=f"{comparison.num_tasks} test tasks; AUC is the mean return over the updates", title_justify="left"
    )
    for heading in ("method", "AUC", "final return", "metaFQI minus it", "metaFQI is"):
        table.add_column(heading)
    for row in summary(comparison):
        difference = against.get(row.method)
        table.add_row(
            title_of(row.method),
            f"{row.auc.mean:.4g} [{row.auc.low:.4g}, {row.auc.high:.4g}]",
            f"{row.final.mean:.4g} [{row.final.low:.4g}, {row.final.high:.4g}]",
            "" if difference is None else f"{difference.mean:.3g} [{difference.low:.3g}, {difference.high:.3g}]",
            "" if difference is None else difference.verdict,
        )
    Console().print(table)


def print_outcome(folder: RunFolder, page: Path) -> None:
    """The comparison, and where the report is."""
    print_comparison(load(folder.comparison))
    print(f"report: {page}")
