"""Table 1: the tuned initial values, beside the paper's."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from metastep.evaluation import FAMILIES, Comparison, Method, TuningTable, compare
from metastep.experiments.build import build_mdp
from metastep.experiments.folder import RunFolder
from metastep.experiments.reproduce.judging import AUC, MARGIN, gain, paired, title
from metastep.experiments.reproduce.outcome import Outcome, Product, Verdict, at_most, number
from metastep.experiments.reproduce.panels import Panel, ink_of, picture
from metastep.experiments.reproduce.workbench import ENVIRONMENTS, Workbench
from metastep.experiments.stages import join
from metastep.report.style import Ink, title_of

METHODS = ("rmsprop", "adam", "metagrad", "decay")
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
}
_SYMBOLS = {"stepsize": "initial step size", "beta": "beta", "alpha": "alpha"}


def _with_paper_values(bench: Workbench, folder: RunFolder) -> Comparison:
    """Each method with our tuned values and with the paper's, on the test tasks."""
    config, values = folder.config, PAPER[folder.config.env.name]

    def method(name: str) -> Method:
        family = FAMILIES[name]
        return Method(f"{name}-paper", family.rule, family.build(**values[name]), values=values[name])

    theirs = bench.kept(
        folder,
        "paper-values",
        lambda tracker: compare(
            [method(name) for name in METHODS],
            build_mdp(config),
            seed=config.seed,
            num_updates=config.compare.num_updates,
            num_tasks=config.compare.num_tasks,
            tracker=tracker,
        ),
    )
    return join([bench.tested(folder, *METHODS), theirs])


def _best_at(table: TuningTable, parameter: str, value: float) -> float:
    """The best score with one parameter held at a value."""
    column = table.points[:, table.parameters.index(parameter)]
    return float(table.mean[np.isclose(column, value)].max(initial=-np.inf))


def _search(table: TuningTable, parameter: str, theirs: float) -> Panel:
    """Scores over one parameter, with the tuned and the paper's value."""
    values = np.unique(table.points[:, table.parameters.index(parameter)])
    scores = np.array([_best_at(table, parameter, value) for value in values])
    chosen = table.chosen[parameter]

    def draw(axes: Axes, ink: Ink) -> None:
        shade = ink_of(table.method, 0, ink)
        finite = np.isfinite(scores)
        axes.plot(values[finite], scores[finite], "o-", color=shade, markersize=4.0, linewidth=1.4)
        axes.plot(
            chosen, _best_at(table, parameter, chosen), "o", markersize=12, markerfacecolor="none", color=ink.text
        )
        axes.axvline(theirs, color=ink.text, linestyle="--", linewidth=1.0)
        axes.set_xscale("log")
        axes.set(xlabel=_SYMBOLS[parameter], ylabel="mean return")

    return Panel(title_of(table.method), draw)


def table1(bench: Workbench) -> Product:
    """The tuned values of every baseline."""
    outcomes: list[Outcome] = []
    rows: list[dict[str, Any]] = []
    columns, kept = [], {}
    for env in ENVIRONMENTS:
        folder = bench.folder(env)
        comparison = _with_paper_values(bench, folder)
        tables = {table.method: table for table in comparison.tuning}
        outcomes.append(_as_good(folder, comparison, tables))
        column = []
        for name in METHODS:
            for parameter, theirs in PAPER[env][name].items():
                table = tables[name]
                panel = _search(table, parameter, theirs)
                column.append(panel._replace(title=f"{title(folder)}: {panel.title}"))
                rows.append(
                    {
                        "environment": env,
                        "method": name,
                        "parameter": parameter,
                        "tuned": table.chosen[parameter],
                        "paper": theirs,
                        "score_tuned": _best_at(table, parameter, table.chosen[parameter]),
                        "score_paper": _best_at(table, parameter, theirs),
                        "standard_error": float(table.standard_error[table.best]),
                        "at_edge_of_grid": parameter in table.at_edge,
                        "num_tuning_tasks": table.num_tasks,
                    }
                )
        columns.append(column)
        kept[env] = comparison
    caption = (
        "Grid search on the tuning tasks: mean return over the updates by value (of two values, the best with the other). "
        "The ring marks the tuned value, the dashed line the paper's."
    )
    panels = [list(row) for row in zip(*columns, strict=True)]
    return Product(outcomes, [picture("table1", caption, panels)], {"table1": rows}, kept)


def _as_good(folder: RunFolder, comparison: Comparison, tables: dict[str, TuningTable]) -> Outcome:
    """The claim that the paper's values are as good as ours, by the method for which they cost most on the test tasks."""
    lost, verdicts = [], []
    for name in METHODS:
        difference = paired(folder, comparison, name, [f"{name}-paper"])[0]
        margin = MARGIN * max(gain(comparison, name), 0.0)
        lost.append((difference, margin))
        verdicts.append(at_most(difference.low, difference.high, margin))
    worst, margin = max(lost, key=lambda pair: pair[0].mean)
    verdict: Verdict = "holds" if set(verdicts) == {"holds"} else "not distinguishable"
    chosen = [
        (tables[name].chosen[key], value)
        for name in METHODS
        for key, value in PAPER[folder.config.env.name][name].items()
    ]
    same = sum(bool(np.isclose(ours, theirs)) for ours, theirs in chosen)
    return Outcome(
        environment=title(folder),
        claim="The paper's tuned initial values are as good here as those of our own grid search",
        quantity=f"what they cost the worst hit, {title_of(worst.target)}: {AUC}",
        effect=worst.mean,
        low=worst.low,
        high=worst.high,
        num=worst.num_tasks,
        counted="tasks",
        verdict="does not hold" if "does not hold" in verdicts else verdict,
        detail=f"{same} of {len(chosen)} values are the same; the limit is {MARGIN:.0%} of the gain, {number(margin)}",
    )
