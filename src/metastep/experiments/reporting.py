"""The report of a run, and the same numbers in the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from metastep import envs
from metastep._core.errors import InputError
from metastep.evaluation import Comparison, differences, to_parquet
from metastep.evaluation.statistics import Metric, differences_to_csv
from metastep.experiments import searching, stages
from metastep.experiments.provenance import seal_report
from metastep.experiments.schema import Experiment
from metastep.mdp.dataset import Dataset
from metastep.report import tables
from metastep.report.compose import compose
from metastep.report.document import write_document

if TYPE_CHECKING:
    from metastep.experiments.run import Run


def write_report(run: Run) -> Path:
    """Write `report.html`, `report.md`, the figures, `results.parquet` and `differences.csv` from the stages' results."""
    with run.write_lock():
        config, models = run.config, [run.of_model(model) for model in run.models_needed]
        needed = {own.model_file: "fit" if own.config.learner == "fitted-q" else "search" for own in models}
        for file, verb in (needed | {run.comparison_file: "compare"}).items():
            if not file.exists():
                missing = file.relative_to(run.path)
                raise InputError(f"Folder {run.path} holds no {missing}; run `metastep {verb} {run.path}` first.")
        fitted, searched = {}, {}
        for name, own in zip(run.models_needed, models, strict=True):
            model, validation = stages.read_fitted(own)
            times, learning = stages.read_times(own.path), ("copy", "collect", "fit", "search", "validate")
            seconds = sum(times.get(stage, 0.0) for stage in learning)
            known = own.config.to_dict(), own.model_file.relative_to(run.path).as_posix(), seconds
            if own.config.learner == "search":
                steps, total = searching.steps_of_levels(own)
                searched[name or "the model"] = tables.Searched(model, validation, steps, total, *known)
            else:
                names, updates = [part.name for part in model.record.observation], own.dataset.layout.num_updates // 2
                starts, later = (observations(own.dataset, names, update) for update in (0, updates))
                fitted[name] = tables.Fitted(model, validation, own.dataset.counts(), starts, later, updates, *known)
        following = [spec for spec in run.methods.values() if stages.example_controller(spec).needs_model]
        findings = tables.Findings(
            name=config.env.name.rpartition(":")[2],
            command=repeating(run),
            config=config.to_dict(),
            comparison=run.comparison,
            context_space=envs.make(config.env.name, **config.env.options).context_space,
            fitted={spec.name: fitted[spec.model] for spec in following if spec.model in fitted},
            searched=searched,
            folder=folder_of(run),
            modules=sorted({part.rpartition(":")[0] for part in config.part_names()} - {""}),
        )
        curves, table = run.path / "results.parquet", run.path / "differences.csv"
        to_parquet(run.comparison, curves)
        every = (differences(run.comparison, metric=each, **findings.resampling) for each in get_args(Metric))
        differences_to_csv(chain.from_iterable(every), table)
        seal_report(run, [*write_document(compose(findings), run.path), curves, table])
    return run.report_file


def repeating(run: Run) -> str:
    """Return the commands that repeat a run: the one that created it and, if that ran only one stage, those of later stages."""
    created = run.command()
    verbs = {"collect": ("fit", "compare", "report"), "search": ("compare", "report")}
    later = verbs.get((*created.split(), "", "")[1], ())
    return "\n".join([created, *(shlex.join(["metastep", verb, str(run.path)]) for verb in later)])


def folder_of(run: Run) -> str:
    """Return the folder of a run as named by the command that created it; without a command, as it was opened."""
    with suppress(ValueError):  # quotes that do not close
        words = shlex.split(run.command().replace("--out=", "--out "))
        if words[:1] == ["metastep"]:
            return dict(pairwise(words)).get("--out", f"runs/{run.path.resolve().name}")
    return run.path.as_posix()


def observations(dataset: Dataset, names: Sequence[str], update: int = 0, num: int = 128) -> NDArray[np.float32]:
    """Return finite meta-observations of up to `num` learners after `update` updates, (learners, columns)."""
    rows: list[NDArray[np.float32]] = []
    for history in dataset.blocks():
        observed = history.observe(tuple(names))[update]
        rows.append(observed[np.isfinite(observed).all(axis=1)])
        if sum(map(len, rows)) >= num:
            break
    return np.concatenate(rows)[:num]


def print_comparison(comparison: Comparison, config: Experiment) -> None:
    """Print the tables of the report that compare the methods."""
    from rich.console import Console
    from rich.table import Table

    resamples: dict[str, Any] = {"seed": config.seed, "num_resamples": config.compare.num_resamples}
    target = tables.target_of(comparison)
    print(f"{comparison.num_tasks} test tasks; AUC is the mean return over the updates")
    shown = [tables.comparison_table(comparison, **resamples)]
    if paired := differences(comparison, target, **resamples):
        shown.append(tables.differences_table(comparison, target, paired))
    for part in shown:
        table = Table()
        for heading in part.header:  # in a narrow terminal the numbers break, not the verdict
            table.add_column(heading, no_wrap=heading == f"{comparison.label(target)} is")
        for row in part.rows:
            table.add_row(*(cell.replace("\N{MINUS SIGN}", "-") for cell in row))
        Console(markup=False, emoji=False).print(table)  # labels are text, not instructions
    if edges := comparison.at_edge():
        print(f"tuned at an edge of the grid, so that a wider one might do better: {', '.join(edges)}")


def print_outcome(run: Run) -> None:
    """Print the comparison, the times and the path of the report."""
    print_comparison(run.comparison, run.config)
    models = [run.of_model(name) for name in run.models_needed]
    counts = [own.dataset.counts() for own in models if own.config.learner == "fitted-q"]
    if sentence := tables.nothing_learned(run.comparison, counts):
        print(sentence)
    if seconds := times_of(run):
        print(f"time: {in_words(seconds)}")
    print(f"report: {run.report_file}")


def times_of(run: Run) -> dict[str, float]:
    """Return seconds by stage, of a run and of the models within it."""
    times = stages.read_times(run.path)
    for model in run.config.models:
        times |= {f"{model} {name}": value for name, value in stages.read_times(run.of_model(model).path).items()}
    return times


def in_words(seconds: dict[str, float]) -> str:
    """Return one line with the time of each stage and, if there are several, their sum."""
    parts = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    return f"{parts}; {sum(seconds.values()):.1f} s in all" if len(seconds) > 1 else parts
