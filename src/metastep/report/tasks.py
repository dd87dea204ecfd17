"""Single tasks: learning curves, and the steps that were chosen there."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from metastep.evaluation import Comparison, filled_returns, metric_values
from metastep.report.choices import colours_of, is_log
from metastep.report.document import Picture
from metastep.report.figures import Layout, Panel, colour_of, picture
from metastep.report.findings import Findings, best_baseline, yardstick_of
from metastep.report.style import Ink, label_lines, logarithmic, plain, tint
from metastep.report.tables import number

_SINGLE = 6  # tasks shown one by one


def some_tasks(comparison: Comparison, target: str) -> list[int]:
    """A few tasks, evenly from where the target is furthest behind the best baseline to where it is furthest ahead."""
    auc = dict(zip(comparison.names, metric_values(comparison, "auc"), strict=True))
    best = best_baseline(comparison, target)
    ahead = auc[target] - auc[best] if best else auc[target]
    order = np.argsort(ahead, kind="stable")
    places = np.linspace(0, len(order) - 1, min(_SINGLE, len(order))).round().astype(int)
    return [int(order[place]) for place in places]


def single_tasks(findings: Findings) -> Picture:
    """Curves of a few tasks and under each the steps that the target chose there."""
    comparison, target = findings.comparison, findings.target
    best = best_baseline(comparison, target)
    shown = [name for name in (yardstick_of(comparison, target), best, target) if name]
    tasks = some_tasks(comparison, target)
    rows: list[Sequence[Panel]] = []
    for first in range(0, len(tasks), 3):
        group = tasks[first : first + 3]
        rows += [[]] if rows else []  # some room between the groups
        rows.append([_curves_of_task(findings, task, shown, is_named=task == tasks[:3][-1]) for task in group])
        rows.append([_steps_of_task(comparison, target, task) for task in group])
    record = comparison.record(target)
    coloured = " in the colours of the directions" if record.directions else ""
    against = (
        f", from where it is furthest behind {comparison.label(best)} to where it is furthest ahead" if best else ""
    )
    caption = (
        f"Single tasks{against}: returns, and below them the steps of {comparison.label(target)}{coloured}. Each curve is one "
        "learner, with the noise of its batches."
    )
    heights = [0.62 if not row else 1.35 if row[0].title else 1.0 for row in rows]
    layout = Layout((3.5, 1.45), (0.12, 0.14), heights=heights, share_x="all", share_y="row")
    return picture("single-tasks", caption, rows, layout)


def _curves_of_task(findings: Findings, task: int, shown: Sequence[str], *, is_named: bool) -> Panel:
    """Returns of some methods; the methods are named once, where there is room beside the panel."""
    comparison = findings.comparison
    values = zip(findings.context_space.names, comparison.context[task], strict=True)
    title = ", ".join(f"{name} {number(float(value))}" for name, value in list(values)[:2])
    if findings.config["env"]["fixed_context"] is not None:
        title = f"learner {task + 1}"

    def draw(axes: Axes, ink: Ink) -> None:
        axes.set_title(plain(title), fontsize=9.0, fontweight="normal")
        filled = dict(zip(comparison.names, filled_returns(comparison), strict=True))
        ends = []
        for name in shown:
            record = comparison.record(name)
            style = "--" if record.is_yardstick else "-"
            shade, width = tint(colour_of(comparison, name), 0, ink), 2.2 if name == findings.target else 1.3
            axes.plot(filled[name][task], style, color=shade, linewidth=width)
            ends.append((record.label, float(filled[name][task, -1]), shade))
        axes.margins(x=0.03)
        axes.set_ylabel("return")
        if is_named:
            label_lines(axes, ends)

    return Panel(title, draw)


def _steps_of_task(comparison: Comparison, target: str, task: int) -> Panel:
    index = comparison.index(target)
    record, chosen = comparison.methods[index], comparison.hyperparameters[index, task, :, 0]
    followed = comparison.direction[index, task]

    def draw(axes: Axes, ink: Ink) -> None:
        updates = np.arange(1, len(chosen) + 1)
        axes.plot(updates, chosen, color=ink.quiet, linewidth=1.0)
        axes.scatter(updates, chosen, c=colours_of(record, followed, ink), s=14, zorder=3)
        if is_log(record):
            logarithmic(axes, "y")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set(xlabel="update", ylabel="KL" if record.scale == "divergence" else "step")

    return Panel("", draw)
