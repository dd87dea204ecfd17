"""Table 1: the tuned initial values, beside the paper's."""

import numpy as np
from matplotlib.axes import Axes

from metastep import Comparison
from metastep.evaluation import TuningTable, join
from metastep.report.figures import Ink, Panel, ink_of
from paper.claims import AUC, paired, small
from paper.columns import Column, Figure
from paper.outcome import at_most
from paper.workbench import PresetRun


def _beside_the_papers(run: PresetRun) -> Column:
    """Test each method of the paper's table with our tuned values and with the paper's."""
    paper = run.environment.tuned
    theirs = [run.with_values(name, values, f"{name}-paper") for name, values in paper.items()]
    with_theirs = run.kept("paper-values", lambda: run.test(theirs))
    comparison = join([run.tested(*paper), with_theirs])
    tables = {table.method: table for table in comparison.tuning}
    values = [(tables[name], parameter, value) for name in paper for parameter, value in paper[name].items()]
    same = sum(bool(np.isclose(table.chosen[parameter], value)) for table, parameter, value in values)
    judged = small(
        run,
        comparison,
        [row for name in paper for row in paired(run, comparison, name, [f"{name}-paper"])],
        "The paper's tuned initial values are as good here as those of our own grid search",
        at_most,
        quantity=f"what they cost where they cost most, {{target}}: {AUC}",
    ).adding(f"{same} of {len(values)} values are the same")
    rows = [
        {
            "method": table.method,
            "parameter": parameter,
            "tuned": table.chosen[parameter],
            "paper": value,
            "score_tuned": float(table.mean[table.best]),
            "score_paper": float(table.mean[_best_at(table, parameter, value)]),
            "standard_error": float(table.standard_error[table.best]),
            "at_edge_of_grid": parameter in table.at_edge,
            "num_tuning_tasks": table.num_tasks,
        }
        for table, parameter, value in values
    ]
    panels = [_search(run.title, comparison, table, parameter, value) for table, parameter, value in values]
    return Column([judged], panels, comparison, rows=rows)


def _best_at(table: TuningTable, parameter: str, value: float) -> int:
    """Return the best point with one parameter held at the value of its grid nearest to the given one."""
    distance = np.abs(np.log(table.points[:, table.parameters.index(parameter)]) - np.log(value))
    return int(np.argmax(np.where(np.isclose(distance, distance.min()), table.mean, -np.inf)))


def _search(title: str, comparison: Comparison, table: TuningTable, parameter: str, theirs: float) -> Panel:
    """Draw scores over the grid of one parameter, with the tuned and the paper's value."""
    record = comparison.methods[comparison.index(table.method)]
    values = np.unique(table.points[:, table.parameters.index(parameter)])
    best = [_best_at(table, parameter, value) for value in values]
    scores, errors, places = table.mean[best], table.standard_error[best], np.arange(len(values))

    def draw(axes: Axes, ink: Ink) -> None:
        is_finite, shade = np.isfinite(scores), ink_of(record.colour, 0, ink)
        look = {"color": shade, "marker": "o", "markersize": 4.0, "linewidth": 1.4, "capsize": 2.0}
        axes.errorbar(places[is_finite], scores[is_finite], errors[is_finite], **look)
        chosen = int(np.argmin(np.abs(values - table.chosen[parameter])))
        axes.plot(chosen, scores[chosen], "o", markersize=12, markerfacecolor="none", color=ink.text)
        # The grids contain the paper's values; should one not, its line stands between its neighbours.
        place = float(np.interp(np.log(theirs), np.log(values), places))
        axes.axvline(place, color=ink.text, linestyle="--", linewidth=1.0)
        axes.text(place, 0.03, " paper", transform=axes.get_xaxis_transform(), fontsize=8.0)
        axes.set_xticks(places, [f"{value:g}" for value in values])
        axes.margins(0.09, 0.12)
        axes.grid(axis="x", visible=False)
        axes.set(xlabel={"stepsize": "initial step size"}.get(parameter, parameter), ylabel="mean return")

    return Panel(f"{title}: {record.label}", draw)


table1 = Figure(
    "table1",
    "Grid search on the tuning tasks: mean return over the updates by value (of two values, the best with the other). Bars are "
    "standard errors over tuning tasks, the ring marks the tuned value, the dashed line the paper's.",
    _beside_the_papers,
    table="table1",
)
