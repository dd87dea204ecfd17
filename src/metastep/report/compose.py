"""What a report says: from the results of an experiment to a document."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from metastep.contexts import ContextSpace
from metastep.evaluation import Comparison, differences, filled_returns, metric_values
from metastep.evaluation import Difference as PairedDifference
from metastep.evaluation.statistics import Metric
from metastep.fqi import Model
from metastep.meta.dataset import Counts
from metastep.report import figures
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Picture, Table
from metastep.report.style import title_of
from metastep.report.tables import bookkeeping_table, comparison_table, tuning_table

_GRID = 41  # step sizes are mapped over this many values of each context coordinate
_SHOWN_STEPSIZES = ("metafqi", "fixed", "decay", "geometric-decay", "hoof", "metagrad", "single", "oracle")


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything a report shows.

    Args:
        name: of the experiment.
        command: that repeats it; empty where nobody knows.
        config: the resolved configuration.
        comparison: every method on the test tasks.
        validation: every FQI iteration on the validation tasks; the method N=i is iteration i.
        model: the selected model.
        counts: of the training data.
        context_space: the family of tasks.
        starts: meta-observations of learners before their first update, (learners, features), in the model's layout.
    """

    name: str
    command: str
    config: dict[str, Any]
    comparison: Comparison
    validation: Comparison
    model: Model
    counts: Counts
    context_space: ContextSpace
    starts: NDArray[np.float32]


def compose(findings: Findings) -> Document:
    """The whole report."""
    comparison, seed = findings.comparison, int(findings.config["seed"])
    resamples = int(findings.config["compare"]["num_resamples"])
    paired, final = (
        differences(comparison, "metafqi", metric=metric, seed=seed, num_resamples=resamples)
        if _has(comparison, "metafqi")
        else ()
        for metric in get_args(Metric)
    )
    parts: list[Part] = [
        Paragraph(_headline(findings, paired)),
        Heading("What was run"),
        *_command(findings),
        _settings(findings),
        Heading("Learning curves"),
        _curves(findings),
        Heading("Chosen step sizes"),
        _stepsizes(findings),
        Heading("Comparison"),
        Paragraph(_explanation(findings)),
        comparison_table(comparison, paired, final, seed, resamples),
    ]
    if paired:
        parts.append(_difference_picture(paired))
    if comparison.tuning:
        parts += [Heading("Tuned values"), tuning_table(comparison)]
    parts += [Heading("Validation by iteration"), _iterations(findings)]
    parts += [Heading("What the model looks at"), _importances(findings.model)]
    seen = {part.name for part in findings.model.record.observation}
    # A run in one task has nothing to map.
    if "context" in seen and findings.config["env"]["fixed_context"] is None:
        parts += [Heading("Recommended step size by task"), _map(findings)]
    parts += [
        Heading("Flags, versions and seeds"),
        bookkeeping_table(
            comparison, findings.counts, findings.model.record.training_data.fingerprint, findings.config
        ),
    ]
    num = comparison.num_tasks
    return Document(
        f"metastep: {findings.name}", f"{num} test tasks, {comparison.returns.shape[2] - 1} updates each", parts
    )


def _command(findings: Findings) -> list[Part]:
    if not findings.command:
        return [Paragraph("Every setting is in config.json, beside this report.")]
    several = "\n" in findings.command
    same = "The same commands repeat it" if several else "The same command repeats it"
    return [Paragraph(f"{same}; the same seed on the same device gives the same bytes."), Command(findings.command)]


def _has(comparison: Comparison, *names: str) -> bool:
    return set(names) <= set(comparison.names)


def _explanation(findings: Findings) -> str:
    """How to read the table of the comparison."""
    text = (
        "AUC is the mean return over the updates. Intervals are 95 %, from a seeded bootstrap over tasks; all methods had "
        "the same tasks, first policies and simulation keys. A difference is metaFQI minus the method, paired by task; the "
        "verdict needs the interval to exclude 0 and a Holm-corrected p-value below 0.05. All pairs of methods are in "
        "differences.csv. The oracle score is 0 % at the best fixed step and 100 % at the greedy oracle, which spends "
        f"{findings.config['fqi']['num_stepsizes']} times the samples."
    )
    if any(findings.comparison.num_diverged().values()):
        text += (
            " Where a return is not finite, it counts as the worst on its task: of the two methods in a difference, of all "
            "methods elsewhere."
        )
    return text


def _headline(findings: Findings, paired: Sequence[PairedDifference]) -> str:
    iteration = findings.model.record.selected_iteration
    if not paired:
        return (
            f"A model of {iteration} planned updates (FQI iteration N = {iteration}) was selected on validation tasks."
        )
    verdicts = {kind: [title_of(row.baseline) for row in paired if row.verdict == kind] for kind in ("better", "worse")}
    rest = [title_of(row.baseline) for row in paired if row.verdict == "not distinguishable"]
    clauses = []
    if verdicts["better"]:
        clauses.append(f"is better than {_listed(verdicts['better'])}")
    if verdicts["worse"]:
        clauses.append(f"is worse than {_listed(verdicts['worse'])}")
    if rest:
        clauses.append(f"is not distinguishable from {_listed(rest)}")
    num = findings.comparison.num_tasks
    where = f"{num} tasks it had never seen"
    if findings.config["env"]["fixed_context"] is not None:
        where = f"{num} new first policies in the one task it was trained on"
    return (
        f"On {where}, metaFQI (iteration N = {iteration}, selected on "
        f"validation tasks) {_listed(clauses)} in the area under the learning curve."
    )


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _settings(findings: Findings) -> Table:
    config = findings.config
    rollout, meta, fqi = config["rollout"], config["meta"], config["fqi"]
    kind = "double" if fqi["double"] else "single"
    rows = [
        ("environment", config["env"]["name"]),
        ("policy", f"{config['policy']['kind']}, sigma {config['policy']['sigma']:g}"),
        ("batch of an update", f"{rollout['num_episodes']} episodes of at most {rollout['horizon']} steps"),
        ("step sizes", f"[{meta['stepsize_low']:g}, {meta['stepsize_high']:g}]"),
        ("training data", f"{findings.counts.transitions} tuples, {config['collect']['method']} method"),
        ("forests", f"{fqi['trees']} trees, minimum split {fqi['min_samples_split']:g}, {kind} Q"),
        ("iterations tried", str(fqi["iterations"])),
        ("seed", str(config["seed"])),
    ]  # fmt: skip
    return Table(("setting", "value"), rows, name="settings")


def _curves(findings: Findings) -> Picture:
    comparison = findings.comparison
    curves = dict(zip(comparison.names, filled_returns(comparison), strict=True))
    draw = partial(_draw_curves, curves, f"{findings.name}: return")
    return Picture("learning-curves", "Mean return over the test tasks, with 95 % intervals; higher is better.", draw)


def _draw_curves(curves: figures.Curves, title: str, theme: Any) -> Any:
    return figures.learning_curves(curves, title=title, theme=theme)


def _stepsizes(findings: Findings) -> Picture:
    comparison = findings.comparison
    chosen = {
        name: comparison.hyperparameters[comparison.index(name), :, :, 0]
        for name in _SHOWN_STEPSIZES
        if _has(comparison, name)
    }
    caption = "Step size of each update of the natural gradient, mean over the test tasks with 95 % intervals."
    return Picture(
        "step-sizes",
        caption,
        lambda theme: figures.stepsize_curves(chosen, title=f"{findings.name}: step size", theme=theme),
    )


def _difference_picture(paired: Sequence[PairedDifference]) -> Picture:
    rows = [figures.Difference(row.baseline, row.mean, row.low, row.high, row.verdict) for row in paired]
    return Picture(
        "differences",
        "Paired difference in AUC, metaFQI minus each method, with 95 % intervals; right of zero metaFQI is better.",
        lambda theme: figures.differences(rows, title="metaFQI minus method", xlabel="difference in AUC", theme=theme),
    )


def _iterations(findings: Findings) -> Picture:
    scores = metric_values(findings.validation, "auc")
    selected = findings.model.record.selected_iteration
    return Picture(
        "iterations",
        "AUC on the validation tasks by FQI iteration, with 95 % intervals over tasks: N updates are planned ahead.",
        lambda theme: figures.iteration_scores(scores, selected, title=f"{findings.name}: validation", theme=theme),
    )


def _importances(model: Model) -> Picture:
    heads = model.q_functions[model.record.selected_iteration - 1].heads
    shares = np.mean([head.importances for head in heads], axis=0)
    names = (*model.record.feature_names, "step size")
    return Picture(
        "importances",
        "Share of the variance reduction by input, over the forests of the selected iteration.",
        lambda theme: figures.importances(names, shares, title="Feature importance", theme=theme),
    )


def recommend(model: Model, starts: NDArray[np.float32], grid: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Mean greedy step size over the given starts, with the context set to each point of the grid in turn.

    Coordinates beyond the grid's keep the values they have in `starts`.
    """
    first = 0
    for part in model.record.observation:
        if part.name == "context":
            break
        first += part.size
    mesh = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1).reshape(-1, len(grid))
    rows = np.repeat(starts[None], len(mesh), axis=0)
    rows[:, :, first : first + len(grid)] = mesh[:, None, :]
    chosen = model.act(rows.reshape(-1, starts.shape[1]))
    return chosen.reshape(len(mesh), len(starts)).mean(axis=1).reshape([len(axis) for axis in grid]).astype(np.float64)


def _map(findings: Findings) -> Picture:
    space = findings.context_space
    shown = min(2, space.num_coordinates)
    grid = [np.linspace(space.low[i], space.high[i], _GRID, dtype=np.float32) for i in range(shown)]
    labels = [f"{name} ({unit})" if unit else name for name, unit in zip(space.names, space.units, strict=True)][:shown]
    stepsizes = recommend(findings.model, findings.starts, grid)
    return Picture(
        "step-size-map",
        f"Step size of the first update by task: mean over {len(findings.starts)} first policies of the training data.",
        lambda theme: figures.stepsize_map(grid, labels, stepsizes, title="Recommended first step", theme=theme),
    )
