"""What to try next where a learned method does not win: what the results show, each with a setting to change."""

from collections.abc import Iterator, Sequence

import numpy as np

from metastep._core.progress import format_si
from metastep.evaluation import Difference, metric_values
from metastep.evaluation.statistics import filled_returns
from metastep.report.document import Heading, Paragraph, Part, Table
from metastep.report.tables import LEARNED, Findings, interval, number

_MANY = 0.25  # share of updates at an end of a range that makes a wider one worth trying
_MOST_TASKS = 10_000  # where a difference needs more to be seen, it is too small to matter


def next_steps(findings: Findings, paired: Sequence[Difference]) -> list[Part]:
    """Name the baseline that the target is furthest behind, and suggest changes; nothing where it beats all of them."""
    comparison, mine = findings.comparison, findings.comparison.record(findings.target)
    open_rows = [
        row for row in paired if row.verdict != "better" and comparison.record(row.baseline).controller not in LEARNED
    ]
    if not open_rows or mine.controller not in LEARNED:
        return []
    worst = min(open_rows, key=lambda row: row.mean)
    pair = [mine, theirs := comparison.record(worst.baseline)]
    own, other = filled_returns(comparison, [each.name for each in pair])
    gaps = [gap.mean() for gap in np.array_split((own - other)[:, 1:].mean(axis=0), min(3, own.shape[1] - 1))]
    text = f"{mine.label} minus {theirs.label} is {interval(worst.mean, worst.low, worst.high)} in AUC. "
    text += f"It does worst in the {('first', 'second', 'last')[third := int(np.argmin(gaps))]} third of the updates"
    if (mine.rule, mine.scale) == (theirs.rule, theirs.scale):
        steps = (comparison.hyperparameters[comparison.index(each.name), :, :, 0] for each in pair)
        medians = [number(float(np.median(np.array_split(each, len(gaps), axis=1)[third]))) for each in steps]
        text += ", where its median step is {} and the other's {}".format(*medians)
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
        steps += sum(searched.num_steps.values()) if searched else 0.0
        yield f"it was trained on {format_si(steps).strip()} steps, {key} = {num}", f"{place}{section}.{key}={4 * num}"
        first, *others = sorted(metric_values(learned.validation, "auc"), key=lambda row: -row.mean())
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
