"""What a report says: from the results of an experiment to a document."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metastep.contexts import ContextSpace
from metastep.evaluation import Comparison, Difference, differences, filled_returns, metric_values
from metastep.evaluation.statistics import Metric
from metastep.fqi import Model
from metastep.fqi.regressors import Head
from metastep.meta.dataset import Counts
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Picture, Table
from metastep.report.figures import WIDE, Panel, curves, importances, line_of, picture, points, stepsize_map, whiskers
from metastep.report.tables import bookkeeping_table, comparison_table, nothing_learned, tuning_table

_GRID = 41  # step sizes are mapped over this many values of each context coordinate


class Fitted(NamedTuple):
    """What there is to show of a fitted model."""

    model: Model  # the selected one
    validation: Comparison  # every FQI iteration on the validation tasks; the method N=i is iteration i
    counts: Counts  # of the training data
    starts: NDArray[np.float32]  # meta-observations of learners before their first update, (learners, columns)


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything a report shows.

    Args:
        name: of the experiment.
        command: that repeats it; empty where nobody knows.
        config: the resolved configuration.
        comparison: every method on the test tasks.
        context_space: the family of tasks.
        fitted: the model, where a method of the comparison follows one.
    """

    name: str
    command: str
    config: dict[str, Any]
    comparison: Comparison
    context_space: ContextSpace
    fitted: Fitted | None

    @property
    def target(self) -> str:
        """The method that the others are compared with: metaFQI, or the first one."""
        return target_of(self.comparison)


def target_of(comparison: Comparison) -> str:
    """The method that the others are compared with: metaFQI, or the first one that is not a yardstick."""
    contenders = [record for record in comparison.methods if not record.is_yardstick] or list(comparison.methods)
    return next((record for record in contenders if record.controller == "metafqi"), contenders[0]).name


def compose(findings: Findings) -> Document:
    """The whole report."""
    comparison, seed = findings.comparison, int(findings.config["seed"])
    resamples = int(findings.config["compare"]["num_resamples"])
    paired, final = (
        differences(comparison, findings.target, metric=metric, seed=seed, num_resamples=resamples)
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
        comparison_table(comparison, findings.target, paired, final, seed, resamples),
    ]
    if paired:
        parts.append(_difference_picture(findings, paired))
    if comparison.tuning:
        parts += [Heading("Tuned values"), tuning_table(comparison)]
    if findings.fitted is not None:
        parts += _about_the_model(findings, findings.fitted)
    counts, fingerprint = None, ""
    if findings.fitted is not None:
        counts, fingerprint = findings.fitted.counts, findings.fitted.model.record.training_data.fingerprint
    parts += [Heading("Flags, versions and seeds"), bookkeeping_table(comparison, counts, fingerprint, findings.config)]
    num = comparison.num_tasks
    return Document(
        f"metastep: {findings.name}", f"{num} test tasks, {comparison.returns.shape[2] - 1} updates each", parts
    )


def _about_the_model(findings: Findings, fitted: Fitted) -> list[Part]:
    parts: list[Part] = [Heading("Validation by iteration"), _iterations(findings, fitted)]
    if (shares := importance_shares(fitted.model)) is not None:
        names = (*fitted.model.record.feature_names, "step size")
        caption = "Share of the variance reduction by input, over the forests of the selected iteration."
        bars = importances("Feature importance", names, shares)
        size = (WIDE[0], 0.8 + 0.27 * min(len(names), 13))
        parts += [Heading("What the model looks at"), picture("importances", caption, [[bars]], size)]
    seen = {part.name for part in fitted.model.record.observation}
    # A run in one task has nothing to map, and steps along different directions have no mean.
    is_map = not fitted.model.record.directions and "context" in seen
    if is_map and findings.config["env"]["fixed_context"] is None:
        parts += [Heading("Recommended step size by task"), _map(findings, fitted)]
    return parts


def _command(findings: Findings) -> list[Part]:
    if not findings.command:
        return [Paragraph("Every setting is in config.json, beside this report.")]
    several = "\n" in findings.command
    same = "The same commands repeat it" if several else "The same command repeats it"
    return [Paragraph(f"{same}; the same seed on the same device gives the same bytes."), Command(findings.command)]


def _explanation(findings: Findings) -> str:
    """How to read the table of the comparison."""
    comparison = findings.comparison
    text = (
        "AUC is the mean return over the updates; its interquartile mean leaves out the worst and the best quarter of the tasks. "
        "Intervals are 95 % over tasks; all methods had the same tasks, first policies and simulation keys. A difference is "
        f"{comparison.label(findings.target)} minus the method, paired by task; the verdict needs the interval to exclude 0 "
        "and a sign-flip p-value below 0.05. Each verdict speaks of its pair alone; p-values corrected for the number of "
        "pairs (Holm) are in differences.csv, with all pairs of methods."
    )
    if {"fixed", "oracle"} <= set(comparison.names):
        text += (
            " The oracle score is 0 % at the best fixed step and 100 % at the greedy oracle, which spends "
            f"{findings.config['fqi']['num_stepsizes']} times the samples."
        )
    if any(comparison.num_diverged().values()):
        text += (
            " Where a return is not finite, it counts as the worst on its task: of the two methods in a difference, of all "
            "methods elsewhere."
        )
    return text


def _headline(findings: Findings, paired: Sequence[Difference]) -> str:
    comparison, fitted = findings.comparison, findings.fitted
    if sentence := nothing_learned(comparison, None if fitted is None else fitted.counts):
        return sentence
    name = comparison.label(findings.target)
    iteration = None if fitted is None else fitted.model.record.selected_iteration
    if not paired:
        chosen = "" if iteration is None else f" (FQI iteration N = {iteration}, selected on validation tasks)"
        return f"{name}{chosen} was run on {comparison.num_tasks} test tasks."
    clauses = []
    for verdict, words in (
        ("better", "is better than"),
        ("worse", "is worse than"),
        ("not distinguishable", "is not distinguishable from"),
    ):
        if labels := [comparison.label(row.baseline) for row in paired if row.verdict == verdict]:
            clauses.append(f"{words} {_listed(labels)}")
    num = comparison.num_tasks
    where = f"{num} tasks it had never seen"
    if findings.config["env"]["fixed_context"] is not None:
        where = f"{num} new first policies in the one task it was trained on"
    if iteration is not None and findings.target == "metafqi":
        name += f" (iteration N = {iteration}, selected on validation tasks)"
    result = f"On {where}, {name} {_listed(clauses)} in the area under the learning curve."
    if edges := comparison.at_edge(findings.target, *(row.baseline for row in paired)):
        result += f" Tuned at an edge of the grid, so that a wider one might do better: {_listed(edges)}."
    return result


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _settings(findings: Findings) -> Table:
    config = findings.config
    rollout, meta, fqi = config["rollout"], config["meta"], config["fqi"]
    rows = [
        ("environment", config["env"]["name"]),
        ("policy", _part(config["policy"])),
        ("update rule", _part(meta["rule"])),
        ("batch of an update", f"{rollout['num_episodes']} episodes of at most {rollout['horizon']} steps"),
        ("step sizes", f"[{meta['stepsize_low']:g}, {meta['stepsize_high']:g}]"),
    ]
    if findings.fitted is not None:
        kind = "double" if fqi["double"] else "single"
        rows += [
            ("meta-observation", ", ".join(meta["observation"])),
            ("training data", f"{findings.fitted.counts.transitions} tuples, {config['collect']['method']} method"),
            ("regressor", f"{_part(fqi['regressor'])}, {kind} Q"),
            ("iterations tried", str(fqi["iterations"])),
        ]
    return Table(("setting", "value"), [*rows, ("seed", str(config["seed"]))], name="settings")


def _part(section: dict[str, Any]) -> str:
    """A part with its options, in words."""
    return ", ".join(
        [str(section["name"]), *(f"{key} {value}" for key, value in sorted(section.items()) if key != "name")]
    )


def _curves(findings: Findings) -> Picture:
    comparison = findings.comparison
    filled = dict(zip(comparison.names, filled_returns(comparison), strict=True))
    lines = [line_of(comparison, name, values, is_main=name == findings.target) for name, values in filled.items()]
    caption = "Mean return over the test tasks, with 95 % intervals; higher is better."
    return picture("learning-curves", caption, [[curves(f"{findings.name}: return", lines)]], WIDE)


def _stepsizes(findings: Findings) -> Picture:
    """Only of methods that share the target's rule: a step of another rule is another thing."""
    comparison, target = findings.comparison, findings.target
    rule = comparison.methods[comparison.index(target)].rule
    lines = [
        line_of(comparison, record.name, comparison.hyperparameters[index, :, :, 0], is_main=record.name == target)
        for index, record in enumerate(comparison.methods)
        if record.rule == rule
    ]
    panel = curves(f"{findings.name}: step size", lines, ylabel="step size", first=1)
    caption = f"Step size of each update ({rule}), mean over the test tasks with 95 % intervals."
    return picture("step-sizes", caption, [[panel]], WIDE)


def _difference_picture(findings: Findings, paired: Sequence[Difference]) -> Picture:
    name = findings.comparison.label(findings.target)
    caption = (
        f"Paired difference in AUC, {name} minus each method, with 95 % intervals; right of zero {name} is better."
    )
    panel = whiskers(f"{name} minus method", findings.comparison, paired)
    return picture("differences", caption, [[panel]], (WIDE[0], 0.9 + 0.42 * len(paired)))


def _iterations(findings: Findings, fitted: Fitted) -> Picture:
    scores = metric_values(fitted.validation, "auc")
    selected = fitted.model.record.selected_iteration
    panel: Panel = points(
        f"{findings.name}: validation",
        scores,
        list(range(1, len(scores) + 1)),
        xlabel="FQI iteration N",
        ylabel="mean return over updates",
        ring=(selected - 1, "selected"),
    )
    caption = (
        "AUC on the validation tasks by FQI iteration, with 95 % intervals over tasks: N updates are planned ahead."
    )
    return picture("iterations", caption, [[panel]], (WIDE[0], 3.4))


def importance_shares(model: Model) -> NDArray[np.float64] | None:
    """Importance of every input, mean over the heads; None where the regressor does not tell."""
    return mean_importances(model.q_functions[model.record.selected_iteration - 1].heads)


def mean_importances(heads: Sequence[Head]) -> NDArray[np.float64] | None:
    """The same of these heads."""
    shares = [head.importances for head in heads if head.importances is not None]
    return np.asarray(np.mean(shares, axis=0)) if len(shares) == len(heads) else None


def recommend(model: Model, starts: NDArray[np.float32], grid: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Mean greedy step size over the given starts, with the context set to each point of the grid in turn."""
    steps = proposals(model, starts, grid)[..., -1]
    return steps.mean(axis=1).reshape([len(axis) for axis in grid]).astype(np.float64)


def proposals(model: Model, starts: NDArray[np.float32], grid: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """What the model chooses at each start with the context of each point of the grid: (points, starts, coordinates).

    Coordinates of the context beyond the grid's keep the values they have in `starts`.
    """
    first = 0
    for part in model.record.observation:
        if part.name == "context":
            break
        first += part.size
    mesh = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1).reshape(-1, len(grid))
    rows = np.repeat(starts[None], len(mesh), axis=0)
    rows[:, :, first : first + len(grid)] = mesh[:, None, :]
    return model.act(rows.reshape(-1, starts.shape[1])).reshape(len(mesh), len(starts), -1)


def _map(findings: Findings, fitted: Fitted) -> Picture:
    space = findings.context_space
    shown = min(2, space.num_coordinates)
    grid = [np.linspace(space.low[i], space.high[i], _GRID, dtype=np.float32) for i in range(shown)]
    labels = [f"{name} ({unit})" if unit else name for name, unit in zip(space.names, space.units, strict=True)][:shown]
    panel = stepsize_map("Recommended first step", grid, labels, recommend(fitted.model, fitted.starts, grid))
    caption = (
        f"Step size of the first update by task: mean over {len(fitted.starts)} first policies of the training data."
    )
    return picture("step-size-map", caption, [[panel]], (WIDE[0], 4.2 if shown == 2 else 3.2))
