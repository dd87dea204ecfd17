"""What a report says: from the results of an experiment to a document."""

from collections.abc import Sequence
from typing import Any, get_args

from metastep.evaluation import Difference, differences
from metastep.evaluation.statistics import Metric
from metastep.report.choices import directions, single_tasks, steps, steps_by_task
from metastep.report.distributions import learning_curves, one_by_one, spread
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Picture, Table
from metastep.report.figures import alone, whiskers
from metastep.report.findings import Findings, Fitted, listed
from metastep.report.methods import about
from metastep.report.model import about_the_model, usage
from metastep.report.tables import (
    FLAGGED,
    bookkeeping_table,
    comparison_table,
    cost_table,
    differences_table,
    nothing_learned,
    oracles,
    tuning_table,
)

_FEW_TASKS = 20  # a grid search on fewer is said to be one where the result is


def compose(findings: Findings) -> Document:
    """The whole report."""
    comparison, target = findings.comparison, findings.target
    paired, final = (
        differences(comparison, target, metric=metric, **findings.resampling) for metric in get_args(Metric)
    )
    parts: list[Part] = [Paragraph(_headline(findings, paired)), Heading("What was run"), *_command(findings)]
    parts += [_settings(findings), *_models(findings), *(usage(findings.model) if findings.model else [])]
    parts += [Heading("Learning curves"), learning_curves(findings), *one_by_one(findings)]
    if choosers := [record.name for record in comparison.methods if record.directions]:
        parts += [Heading("Chosen directions"), directions(findings, choosers)]
    parts += [Heading("Chosen steps"), *steps(findings)]
    # A run in one task has no other to hold steps against.
    if findings.config["env"]["fixed_context"] is None:
        parts.append(steps_by_task(findings))
    parts += [Heading("Single tasks"), single_tasks(findings)]
    parts += [
        Heading("Comparison"),
        Paragraph(_explanation(findings)),
        comparison_table(comparison, **findings.resampling),
    ]
    if paired:
        parts += [differences_table(comparison, target, paired, final), _difference_picture(findings, paired)]
    parts += [Heading("Beyond the mean"), spread(findings)]
    if comparison.tuning:
        parts += [Heading("Tuned values"), tuning_table(comparison)]
    trained = {
        # Every round selects among the iterations of its own model.
        name: (model.counts.num_steps, float(model.validation.num_steps.sum()) * int(model.config["collect"]["rounds"]))
        for name, model in findings.fitted.items()
    }
    parts += [Heading("What it cost"), Paragraph(_about_costs(findings)), cost_table(comparison, trained)]
    if findings.fitted:
        shown = target if target in findings.fitted else next(iter(findings.fitted))
        parts += about_the_model(findings, shown)
    about_methods = [(record.label, about(record)) for record in comparison.methods]
    parts += [Heading("The methods"), Table(("method", "what it is"), about_methods, name="methods")]
    models = {
        name: (fitted.counts, fitted.model.record.training_data.fingerprint) for name, fitted in findings.fitted.items()
    }
    parts += [Heading("Flags, versions and seeds"), Paragraph(FLAGGED)]
    parts.append(bookkeeping_table(comparison, models, findings.config))
    about_it = f"{comparison.num_tasks} test tasks, {comparison.returns.shape[2] - 1} updates each"
    return Document(f"metastep: {findings.name}", about_it, parts)


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
        "and a p-value, of the interval and of random sign flips, below 0.05. Each verdict is that of its pair alone; p-values "
        "corrected for the number of pairs (Holm) are in differences.csv, with all pairs of methods."
    )
    if shown := [comparison.record(name) for name in oracles(comparison)]:
        spent = listed([f"the {record.label}, which spends {record.trials} times the samples" for record in shown])
        text += (
            f" A score is 0 % at the best fixed step and 100 % at {spent}. An oracle is short-sighted, so that a planner may "
            "pass it."
        )
    if any(comparison.num_diverged().values()):
        text += (
            " Where a return is not finite, it counts as the worst on its task: of the two methods in a difference, of all "
            "methods elsewhere."
        )
    return text


def _headline(findings: Findings, paired: Sequence[Difference]) -> str:
    comparison, fitted = findings.comparison, findings.model
    if sentence := nothing_learned(comparison, [one.counts for one in findings.fitted.values()]):
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
            clauses.append(f"{words} {listed(labels)}")
    num = comparison.num_tasks
    where = f"{num} tasks it had never seen"
    if findings.config["env"]["fixed_context"] is not None:
        where = f"{num} new first policies in the one task it was trained on"
    if iteration is not None and findings.target in findings.fitted:
        name += f" (iteration N = {iteration}, selected on validation tasks)"
    few = min((table.num_tasks for table in comparison.tuning), default=_FEW_TASKS)
    tuned = f", with baselines that were tuned on {few} tasks only" if few < _FEW_TASKS else ""
    result = f"On {where}, {name} {listed(clauses)} in the area under the learning curve{tuned}."
    if edges := comparison.at_edge(findings.target, *(row.baseline for row in paired)):
        result += f" Tuned at an edge of the grid, so that a wider one might do better: {listed(edges)}."
    return result


def _settings(findings: Findings) -> Table:
    config = findings.config
    rollout, meta = config["rollout"], config["meta"]
    rows = [
        ("environment", config["env"]["name"]),
        ("policy", _part(config["policy"])),
        ("update rule", _part(meta["rule"])),
        ("batch of an update", _batch(findings)),
        ("discount of rewards", f"{rollout['discount']:g}"),
        ("step sizes", _range(meta["stepsize_low"], meta["stepsize_high"], meta["stepsize_scale"])),
        ("seed", str(config["seed"])),
    ]
    return Table(("setting", "value"), rows, name="settings")


def _batch(findings: Findings) -> str:
    """What an update learns from."""
    rollout = findings.config["rollout"]
    if rollout["num_episodes"] is not None:
        return f"{rollout['num_episodes']} episodes of at most {rollout['horizon']} steps"
    envs, each, hold = rollout["num_envs"], rollout["num_steps"], rollout["hold"]
    held = f", whose actions are held for {hold} steps of the environment" if hold > 1 else ""
    begins = any("returns" in fitted.model.record.setting for fitted in findings.fitted.values())
    fresh = "; every batch begins with new ones, and returns are those of the first" if begins else ""
    steps = f"{envs * each} steps{held}, {each} of each of {envs} environments"
    return f"{steps}; episodes are cut off after {rollout['horizon']}{fresh}"


def _range(low: float, high: float, scale: str) -> str:
    """Where steps come from and what they mean."""
    meaning = {"linear": "", "log": ", along their logarithm", "divergence": " of KL divergence"}
    return f"{low:g} to {high:g}{meaning[scale]}"


def _models(findings: Findings) -> list[Part]:
    """What the models were made with, a column for each."""
    if not findings.fitted:
        return []
    columns = [_about_model(fitted) for fitted in findings.fitted.values()]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    header = ("model", *map(findings.comparison.label, findings.fitted))
    return [Table(header, rows, name="models")]


def _about_model(fitted: Fitted) -> dict[str, str]:
    record, counts = fitted.model.record, fitted.counts
    meta, collect, fqi = (fitted.config[name] for name in ("meta", "collect", "fqi"))
    ranges = {branch.name: _range(branch.low, branch.high, branch.scale) for branch in record.branches}
    same = len(set(ranges.values())) == 1
    steps = next(iter(ranges.values())) if same else "; ".join(f"{name}: {text}" for name, text in ranges.items())
    rounds, labels = collect.get("rounds", 1), collect.get("labels", 1)
    data = f"{counts.transitions} tuples, {collect['method']} method"
    data += f", {rounds} rounds" if rounds > 1 else ""
    data += f", {labels} updates tried at every state" if labels > 1 else ""
    return {
        "directions": ", ".join(record.directions) or f"one, {_part(meta['rule'])}",
        "steps": steps,
        "meta-observation": ", ".join(part.name for part in record.observation),
        "training data": data,
        "regressor": f"{_part(fqi['regressor'])}, {'double' if fqi['double'] else 'single'} Q",
        "discount of improvements": f"{meta['meta_discount']:g}: what the gain of the next update counts",
        "iteration": f"N = {record.selected_iteration} of {fqi['iterations']}, selected on validation tasks",
    }


def _part(section: dict[str, Any]) -> str:
    """A part with its options, in words."""
    return ", ".join(
        [str(section["name"]), *(f"{key} {value}" for key, value in sorted(section.items()) if key != "name")]
    )


def _difference_picture(findings: Findings, paired: Sequence[Difference]) -> Picture:
    name = findings.comparison.label(findings.target)
    caption = (
        f"Paired difference in AUC, {name} minus each method, with 95 % intervals; right of zero {name} is better."
    )
    return alone("differences", caption, whiskers("", findings.comparison, paired), (6.4, 0.8 + 0.32 * len(paired)))


def _about_costs(findings: Findings) -> str:
    text = (
        "Environment steps, over all tasks: of the training data, of selecting among iterations on validation tasks, of the "
        "whole grid search on tuning tasks, and of the batches on the test tasks."
    )
    if any(record.trials for record in findings.comparison.methods):
        text += " Trials are what a yardstick simulates of its own before its updates, as if all episodes were equally long."
    return text + (
        " Wall times are not here, since they differ from run to run and this page does not: the terminal shows that of each "
        "stage."
    )
