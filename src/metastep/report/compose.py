"""The whole report: from the results of an experiment to a document."""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np

from metastep._core.progress import format_si
from metastep.evaluation import Difference, differences, metric_values
from metastep.evaluation.statistics import Metric, filled_returns
from metastep.report import tables
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Table
from metastep.report.figures import alone, whiskers
from metastep.report.model import about_the_model, usage
from metastep.report.results import chosen, directions, learning_curves, single_tasks, spread, steps_by_task
from metastep.report.tables import LEARNED, Findings, interval, listed, number

_FEW_TASKS = 20  # a grid search on fewer is said to be one where the result is
_MANY = 0.25  # share of updates at an end of a range that makes a wider one worth trying
_MOST_TASKS = 10_000  # where a difference needs more to be seen, it is too small to matter


def compose(findings: Findings) -> Document:
    """Return the whole report."""
    comparison, target, fitted = findings.comparison, findings.target, findings.fitted
    paired, final = (differences(comparison, target, metric=each, **findings.resampling) for each in get_args(Metric))
    parts: list[Part] = [Paragraph(_headline(findings, paired)), *_what_was_run(findings)]
    parts += [Heading("Learning curves"), *learning_curves(findings)]
    if choosers := [record.name for record in comparison.methods if record.directions]:
        parts += [Heading("Chosen directions"), directions(findings, choosers)]
    parts += [Heading("Chosen steps"), *chosen(findings)]
    parts += [steps_by_task(findings)] if findings.is_family else []
    parts += [Heading("Single tasks"), single_tasks(findings)]
    explanation = (
        "AUC is the mean return over the updates; its interquartile mean leaves out the worst and the best quarter of the tasks. "
        f"Intervals are 95 % over tasks. A difference is {comparison.label(target)} minus the method, paired by task; a verdict "
        "needs the interval to exclude 0 and a p-value, of the interval and of random sign flips, below 0.05. It is that of its "
        "pair alone; differences.csv has all pairs, with p-values corrected for their number (Holm)."
    )
    if shown := [comparison.record(name) for name in tables.oracles(comparison)]:
        spent = listed([f"the {record.label}, which spends {record.trials} times the samples" for record in shown])
        explanation += f" A score is 0 % at the best fixed step and 100 % at {spent}; a planner may pass this oracle."
    if any(comparison.num_diverged().values()):
        explanation += " A return that is not finite counts as the worst on its task, in a difference of the two."
    parts += [Heading("Comparison"), Paragraph(explanation), tables.comparison_table(comparison, **findings.resampling)]
    if paired:
        label, size = comparison.label(target), (6.4, 0.8 + 0.32 * len(paired))
        caption = f"Paired difference in AUC, {label} minus each method, with 95 % intervals; right of zero {label} is better."
        parts.append(tables.differences_table(comparison, target, paired, final))
        parts.append(alone("differences", caption, whiskers("", comparison, paired), size))
    parts += [*_next_steps(findings, paired), Heading("Beyond the mean"), spread(findings)]
    if comparison.tuning:
        parts += [Heading("Tuned values"), tables.tuning_table(comparison)]
    costs = (
        "Environment steps, over all tasks: of the training data or the search, of selecting on validation tasks, of the "
        "whole grid search on tuning tasks, and of the batches on the test tasks. The terminal shows wall times."
    )
    if findings.searched:
        costs += " Seconds of learning, with the selection, differ from run to run."
    if any(record.trials for record in comparison.methods):
        costs += " Trials are what a yardstick simulates of its own before its updates, as if all episodes were equally long."
    parts += [Heading("What it cost"), Paragraph(costs), tables.cost_table(findings)]
    for name, search in findings.searched.items():
        best = f"The best controller of every level on the {search.validation.num_tasks} validation tasks. "
        best += "Selected is the simplest level that is not significantly worse than the best. A level begins from the simpler "
        best += "one, whose steps up to there are counted in both."
        parts += [Heading(f"Levels of the search of {name}"), Paragraph(best), tables.levels_table(search)]
    if fitted:
        parts += about_the_model(findings, target if target in fitted else next(iter(fitted)))
    known = [(record.label, tables.about(record)) for record in comparison.methods]
    parts += [Heading("The methods"), Table(("method", "what it is"), known, name="methods")]
    flags = (
        "An estimate is flagged where it cannot be followed: the direction of the update is zero or not finite, or the step "
        "would leave float32's range. Such a learner stays where it is, and is never dropped from a mean. A few flags are "
        "harmless (a batch in which every episode failed alike has no gradient); with many a policy cannot learn."
    )
    bookkeeping = tables.bookkeeping_table(comparison, fitted, findings.config)
    parts += [Heading("Flags, versions and seeds"), Paragraph(flags), bookkeeping]
    about_it = f"{comparison.num_tasks} test tasks, {comparison.returns.shape[2] - 1} updates each"
    return Document(f"metastep: {findings.name}", about_it, parts)


def _headline(findings: Findings, paired: Sequence[Difference]) -> str:
    comparison, fitted = findings.comparison, findings.model
    if sentence := tables.nothing_learned(comparison, [one.counts for one in findings.fitted.values()]):
        return sentence
    name = comparison.label(findings.target)
    if fitted and (findings.target in findings.fitted or not paired):
        name += f" (FQI iteration N = {fitted.model.record.selected_iteration}, selected on validation tasks)"
    if not paired:
        return f"{name} was run on {comparison.num_tasks} test tasks."
    clauses = []
    for verdict, than in (("better", "than"), ("worse", "than"), ("not distinguishable", "from")):
        if labels := [comparison.label(row.baseline) for row in paired if row.verdict == verdict]:
            clauses.append(f"is {verdict} {than} {listed(labels)}")
    where = "tasks it had never seen" if findings.is_family else "new first policies in the one task it was trained on"
    few = min((table.num_tasks for table in comparison.tuning), default=_FEW_TASKS)
    tuned = f", with baselines that were tuned on {few} tasks only" if few < _FEW_TASKS else ""
    result = f"On {comparison.num_tasks} {where}, {name} {listed(clauses)} in the area under the learning curve{tuned}."
    if edges := comparison.at_edge(findings.target, *(row.baseline for row in paired)):
        result += f" Tuned at an edge of the grid, so that a wider one might do better: {listed(edges)}."
    return result


def _what_was_run(findings: Findings) -> list[Part]:
    """Show the command, the settings, how the models were fitted (a column for each), and how to use one."""
    parts: list[Part] = [Heading("What was run"), Paragraph("Every setting is in config.json, beside this report.")]
    if command := findings.command:
        repeats = "The same commands repeat it" if "\n" in command else "The same command repeats it"
        parts[1:] = [Paragraph(f"{repeats}; the same seed on the same device gives the same bytes."), Command(command)]
    config, rollout, meta = findings.config, findings.config["rollout"], findings.config["meta"]
    if rollout["num_episodes"] is not None:
        batch = f"{rollout['num_episodes']} episodes of at most {rollout['horizon']} steps"
    else:
        envs, each, hold = rollout["num_envs"], rollout["num_steps"], rollout["hold"]
        held = f", whose actions are held for {hold} steps of the environment" if hold > 1 else ""
        begins = any("returns" in fitted.model.record.setting for fitted in findings.fitted.values())
        fresh = "; every batch begins with new ones, and returns are those of the first" if begins else ""
        cut = f"episodes are cut off after {rollout['horizon']}"
        batch = f"{envs * each} steps{held}, {each} of each of {envs} environments; {cut}{fresh}"
    rows = [
        ("environment", config["env"]["name"]),
        ("policy", _part(config["policy"])),
        ("update rule", _part(meta["rule"])),
        ("batch of an update", batch),
        ("discount of rewards", f"{rollout['discount']:g}"),
        ("step sizes", _range(meta["stepsize_low"], meta["stepsize_high"], meta["stepsize_scale"])),
        ("seed", str(config["seed"])),
    ]
    parts.append(Table(("setting", "value"), rows, name="settings"))
    if findings.model is None:
        return [*parts, *usage(findings)]
    columns = []
    for fitted in findings.fitted.values():
        record = fitted.model.record
        meta, collect, fqi = (fitted.config[name] for name in ("meta", "collect", "fqi"))
        ranges = {branch.name: _range(branch.low, branch.high, branch.scale) for branch in record.branches}
        is_one = len(set(ranges.values())) == 1
        texts = [*ranges.values()][:1] if is_one else [f"{name}: {text}" for name, text in ranges.items()]
        rounds, labels = collect.get("rounds", 1), collect.get("labels", 1)
        data = f"{fitted.counts.transitions} tuples, {collect['method']} method"
        data += f", {rounds} rounds" if rounds > 1 else ""
        data += f", {labels} updates tried at every state" if labels > 1 else ""
        column = {
            "directions": ", ".join(record.directions) or f"one, {_part(meta['rule'])}",
            "steps": "; ".join(texts),
            "meta-observation": ", ".join(part.name for part in record.observation),
            "training data": data,
            "regressor": f"{_part(fqi['regressor'])}, {'double' if fqi['double'] else 'single'} Q",
            "discount of improvements": f"{meta['meta_discount']:g}: what the gain of the next update counts",
            "iteration": f"N = {record.selected_iteration} of {fqi['iterations']}, selected on validation tasks",
        }
        columns.append(column)
    shown = [(name, *(column[name] for column in columns)) for name in columns[0]]
    header = ("model", *map(findings.comparison.label, findings.fitted))
    return [*parts, Table(header, shown, name="models"), *usage(findings)]


def _next_steps(findings: Findings, paired: Sequence[Difference]) -> list[Part]:
    """Name the baseline that the target is furthest behind, and suggest changes; nothing where it beats all of them."""
    comparison, mine = findings.comparison, findings.comparison.record(findings.target)
    rivals = [row for row in paired if comparison.record(row.baseline).controller not in LEARNED]
    worst = min((row for row in rivals if row.verdict != "better"), key=lambda row: row.mean, default=None)
    if worst is None or mine.controller not in LEARNED:
        return []
    pair = [mine, theirs := comparison.record(worst.baseline)]
    own, other = filled_returns(comparison, [each.name for each in pair])
    gaps = np.array_split((own - other)[:, 1:].mean(axis=0), min(3, own.shape[1] - 1))
    third = int(np.argmin([gap.mean() for gap in gaps]))
    text = f"{mine.label} minus {theirs.label} is {interval(worst.mean, worst.low, worst.high)} in AUC. "
    text += f"It does worst in the {('first', 'second', 'last')[third]} third of the updates"
    if (mine.rule, mine.scale) == (theirs.rule, theirs.scale):
        steps = (comparison.hyperparameters[comparison.index(each.name), :, :, 0] for each in pair)
        medians = [number(float(np.median(np.array_split(each, len(gaps), axis=1)[third]))) for each in steps]
        text += f", where its median step is {medians[0]} and the other's {medians[1]}"
    text += ". Settings below are options of metastep run, for a run in another folder."
    table = Table(("what the results show", "what to try"), [*_suggestions(findings, worst)], name="advice")
    return [Heading("What to try next"), Paragraph(text), table]


def _suggestions(findings: Findings, worst: Difference) -> Iterator[tuple[str, str]]:
    comparison, target, num_tasks = findings.comparison, findings.target, worst.num_tasks
    name = next((each["model"] for each in findings.config["compare"]["methods"] if each["name"] == target), "")
    fitted, searched = findings.fitted.get(target), findings.searched.get(name or "the model")
    place = f"--set models.{name}." if name else "--set "
    if learned := fitted or searched:
        record, columns = learned.model.record, [each for each, _ in comparison.record(target).choices] or ["stepsize"]
        for index, value in enumerate(() if record.directions else columns):
            chosen = comparison.hyperparameters[comparison.index(target), :, :, index]
            for which, end, factor in zip(("low", "high"), record.bounds()[value], (1.0 / 3.0, 3.0), strict=True):
                share = np.isclose(chosen, end, rtol=0.02).mean()
                if share >= _MANY and end and value != "gae_lambda":  # which is at most 1
                    setting = f"stepsize_{which}" if value == "stepsize" else f"choices.{value}.{which}"
                    shown = f"{100 * share:.0f} % of its updates have the {which}est {value}, {end:g}"
                    yield shown, f"{place}meta.{setting}={end * factor:.3g}"
        section, key = ("collect", "num_meta_episodes") if fitted else ("search", "generations")
        num, steps = int(learned.config[section][key]), fitted.counts.num_steps if fitted else 0.0
        steps += searched.total_steps if searched else 0.0
        yield f"it was trained on {format_si(steps).strip()} steps, {key} = {num}", f"{place}{section}.{key}={4 * num}"
        scores = metric_values(learned.validation, "auc")
        first, *others = scores[np.argsort(-scores.mean(axis=1))]
        if others and (lead := first - others[0]).mean() <= 2.0 * lead.std() / np.sqrt(num := lead.size):
            yield f"the best two candidates tie on {num} validation tasks", f"{place}selection.num_tasks={4 * num}"
    for table in comparison.tuning:
        if table.method == worst.baseline and worst.verdict == "worse":
            values = ", ".join(f"{value} {number:g}" for value, number in table.chosen.items())
            yield f"{comparison.label(table.method)} wins with {values}", "use it until the model is better"
    needed = num_tasks * (max(worst.high - worst.mean, worst.mean - worst.low) / (abs(worst.mean) or np.nan)) ** 2
    if worst.verdict == "not distinguishable" and num_tasks < needed <= _MOST_TASKS:
        shown = f"{num_tasks} test tasks do not resolve a difference of {number(worst.mean)}"
        yield shown, f"--set compare.num_tasks={float(f'{needed:.2g}'):.0f}"


def _range(low: float, high: float, scale: str) -> str:
    """Describe where steps come from and what they mean."""
    meaning = {"linear": "", "log": ", along their logarithm", "divergence": " of KL divergence"}
    return f"{low:g} to {high:g}{meaning[scale]}"


def _part(section: dict[str, Any]) -> str:
    """Describe a part with its options."""
    options = [f"{key} {value}" for key, value in sorted(section.items()) if key != "name"]
    return ", ".join([str(section["name"]), *options])
