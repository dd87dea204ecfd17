"""Table 1: the tuned initial values, beside the paper's."""

from itertools import zip_longest
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from metastep.evaluation import FAMILIES, Comparison, Method, TuningTable
from metastep.experiments.folder import RunFolder
from metastep.experiments.reproduce.judging import AUC, MARGIN, gain, outcome_of, paired, title
from metastep.experiments.reproduce.outcome import Outcome, Product, Verdict, at_most, number
from metastep.experiments.reproduce.panels import Panel, ink_of, picture
from metastep.experiments.reproduce.workbench import Workbench
from metastep.experiments.stages import join, on_test_tasks
from metastep.report.style import Ink, title_of

PAPER: dict[str, dict[str, dict[str, float]]] = {
    "nav2d": {
        "rmsprop": {"stepsize": 0.9},
        "adam": {"stepsize": 0.8},
        "metagrad": {"stepsize": 3.0, "beta": 0.001},
        "decay": {"alpha": 5.0},
    },
    "minigolf": {
        "rmsprop": {"stepsize": 0.3},
        "adam": {"stepsize": 0.08},
        "metagrad": {"stepsize": 0.3, "beta": 5.0},
        "decay": {"alpha": 2.0},
    },
    "cartpole": {
        "rmsprop": {"stepsize": 0.3},
        "adam": {"stepsize": 0.3},
        "metagrad": {"stepsize": 1.0, "beta": 0.1},
        "decay": {"alpha": 7.5},
    },
    "halfcheetah": {  # no decaying rate was tried on it
        "rmsprop": {"stepsize": 0.3},
        "adam": {"stepsize": 0.5},
        "metagrad": {"stepsize": 0.5, "beta": 0.01},
    },
}
_SYMBOLS = {"stepsize": "initial step size", "beta": "beta", "alpha": "alpha"}


def _with_paper_values(bench: Workbench, folder: RunFolder) -> Comparison:
    """Each method of the paper's table with our tuned values and with the paper's, on the test tasks."""
    config, values = folder.config, PAPER[folder.config.env.name]

    def method(name: str) -> Method:
        family = FAMILIES[name]
        return Method(f"{name}-paper", family.rule, family.build(**values[name]), values=values[name])

    methods = [method(name) for name in values]
    theirs = bench.kept(folder, "paper-values", lambda tracker: on_test_tasks(config, methods, tracker=tracker))
    return join([bench.tested(folder, *values), theirs])


def _best_at(table: TuningTable, parameter: str, value: float) -> int:
    """The best point with one parameter held at the value of its grid that is nearest to the given one."""
    distance = np.abs(np.log(table.points[:, table.parameters.index(parameter)]) - np.log(value))
    return int(np.argmax(np.where(np.isclose(distance, distance.min()), table.mean, -np.inf)))


def _search(name: str, table: TuningTable, parameter: str, theirs: float) -> Panel:
    """Scores over the grid of one parameter, with the tuned and the paper's value."""
    values = np.unique(table.points[:, table.parameters.index(parameter)])
    best = [_best_at(table, parameter, value) for value in values]
    places = np.arange(len(values))

    def draw(axes: Axes, ink: Ink) -> None:
        finite = np.isfinite(table.mean[best])
        scores, errors = table.mean[best], table.standard_error[best]
        axes.errorbar(
            places[finite],
            scores[finite],
            errors[finite],
            color=ink_of(table.method, 0, ink),
            marker="o",
            markersize=4.0,
            linewidth=1.4,
            capsize=2.0,
        )
        chosen = int(np.argmin(np.abs(values - table.chosen[parameter])))
        axes.plot(chosen, scores[chosen], "o", markersize=12, markerfacecolor="none", color=ink.text)
        # The grids contain the paper's values; should one not, its line stands between its neighbours.
        place = float(np.interp(np.log(theirs), np.log(values), places))
        axes.axvline(place, color=ink.text, linestyle="--", linewidth=1.0)
        axes.annotate(
            "paper",
            (place, 0.03),
            xytext=(3, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8.0,
        )
        axes.set_xticks(places, [f"{value:g}" for value in values])
        axes.margins(0.09, 0.12)
        axes.grid(axis="x", visible=False)
        axes.set(xlabel=_SYMBOLS[parameter], ylabel="mean return")

    return Panel(f"{name}: {title_of(table.method)}", draw)


def table1(bench: Workbench) -> Product:
    """The tuned values of every baseline."""
    outcomes: list[Outcome] = []
    rows: list[dict[str, Any]] = []
    columns, kept = [], {}
    for env in bench.environments:
        folder = bench.folder(env)
        comparison = _with_paper_values(bench, folder)
        tables = {table.method: table for table in comparison.tuning}
        outcomes.append(_as_good(folder, comparison, tables))
        column = []
        for name, values in PAPER[env].items():
            for parameter, theirs in values.items():
                table = tables[name]
                column.append(_search(title(folder), table, parameter, theirs))
                rows.append(
                    {
                        "environment": env,
                        "method": name,
                        "parameter": parameter,
                        "tuned": table.chosen[parameter],
                        "paper": theirs,
                        "score_tuned": float(table.mean[table.best]),
                        "score_paper": float(table.mean[_best_at(table, parameter, theirs)]),
                        "standard_error": float(table.standard_error[table.best]),
                        "at_edge_of_grid": parameter in table.at_edge,
                        "num_tuning_tasks": table.num_tasks,
                    }
                )
        columns.append(column)
        kept[env] = comparison
    caption = (
        "Grid search on the tuning tasks: mean return over the updates by value (of two values, the best with the other). "
        "Bars are standard errors over tuning tasks, the ring marks the tuned value, the dashed line the paper's."
    )
    panels = [[panel for panel in row if panel is not None] for row in zip_longest(*columns)]
    return Product(outcomes, [picture("table1", caption, panels)], {"table1": rows}, kept)


def _as_good(folder: RunFolder, comparison: Comparison, tables: dict[str, TuningTable]) -> Outcome:
    """The claim that the paper's values are as good as ours, by the method for which they cost most on the test tasks."""
    lost, verdicts, values = [], [], PAPER[folder.config.env.name]
    for name in values:
        difference = paired(folder, comparison, name, [f"{name}-paper"])[0]
        margin = MARGIN * max(gain(comparison, name), 0.0)
        lost.append((difference, margin))
        verdicts.append(at_most(difference.low, difference.high, margin))
    worst, margin = max(lost, key=lambda pair: pair[0].mean)
    verdict: Verdict = "holds" if set(verdicts) == {"holds"} else "not distinguishable"
    chosen = [(tables[name].chosen[key], value) for name, theirs in values.items() for key, value in theirs.items()]
    same = sum(bool(np.isclose(ours, theirs)) for ours, theirs in chosen)
    return outcome_of(
        folder,
        worst,
        "The paper's tuned initial values are as good here as those of our own grid search",
        "does not hold" if "does not hold" in verdicts else verdict,
        f"{same} of {len(chosen)} values are the same; the limit is {MARGIN:.0%} of the gain, {number(margin)}",
        quantity=f"what they cost where they cost most, {title_of(worst.target)}: {AUC}",
    )
