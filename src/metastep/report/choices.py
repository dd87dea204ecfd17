"""Figures of what was chosen: directions and steps over the updates, by task, and in single tasks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from metastep.evaluation import Comparison, MethodRecord, filled_returns, metric_values
from metastep.report.document import Picture
from metastep.report.figures import Layout, Panel, alone, colour_of, curves, line_of, picture
from metastep.report.findings import Findings, best_baseline, yardstick_of
from metastep.report.style import DIRECTIONS, MAIN, Ink, label_lines, logarithmic, plain, tint
from metastep.report.tables import number

_MOST_COORDINATES = 3  # of a task, in figures
_SINGLE = 6  # tasks shown one by one
_NEVER = 0.005  # a direction chosen less often than that is not named


def kind_of_step(record: MethodRecord) -> str | None:
    """Return which steps can share an axis: divergences, and lengths of the same rule.

    None where even the steps of one method cannot: lengths along several directions.
    """
    if record.scale == "divergence":
        return "divergence"
    return None if record.directions or record.scale == "mixed" else f"length, {record.rule}"


def axis_of(record: MethodRecord) -> str:
    """Return the label of the axis of a method's steps."""
    return "KL divergence of the step" if record.scale == "divergence" else "step size"


def is_log(record: MethodRecord) -> bool:
    """Return whether the steps of a method are shown on a logarithmic axis."""
    return record.scale in ("divergence", "log")


def shade_of(position: int) -> str:
    """Return the colour of a direction."""
    return DIRECTIONS[position % len(DIRECTIONS)]


def shares_of(comparison: Comparison, name: str) -> NDArray[np.float64]:
    """Return the share of tasks that follow each direction: (directions, updates)."""
    index = comparison.index(name)
    positions = np.arange(len(comparison.methods[index].directions))
    return np.asarray((comparison.direction[index][None] == positions[:, None, None]).mean(axis=1))


def most_followed(comparison: Comparison, name: str) -> NDArray[np.int64]:
    """Return the position of the direction followed most often in each task, of equals the first: (tasks,)."""
    index = comparison.index(name)
    num = max(1, len(comparison.methods[index].directions))
    counts = np.stack([(comparison.direction[index] == position).sum(axis=1) for position in range(num)])
    return np.asarray(counts.argmax(axis=0))


def directions(findings: Findings, names: Sequence[str]) -> Picture:
    """Which directions methods followed, over the updates and by task, a row for each method."""
    comparison = findings.comparison
    is_map = findings.context_space.num_coordinates > 1
    by_task = _map_of_directions if is_map else _grid_of_directions
    rows = [
        [
            _shares(f"{comparison.label(name)}: share of tasks", comparison, name),
            by_task(f"{comparison.label(name)}: by task", findings, name),
        ]
        for name in names
    ]
    caption = "Directions that were followed. Left: the share of the test tasks, update by update. Right: " + (
        "the direction followed most often, by task." if is_map else "the direction of every update, by task."
    )
    return picture("directions", caption, rows, Layout((4.9, 3.2), (0.75, 0.42), widths=(1.25, 1.0)))


def _shares(title: str, comparison: Comparison, name: str) -> Panel:
    shares = shares_of(comparison, name)
    names = comparison.record(name).directions

    def draw(axes: Axes, ink: Ink) -> None:
        updates = np.arange(1, shares.shape[1] + 1)
        colours = [shade_of(position) for position in range(len(names))]
        axes.stackplot(updates, shares, colors=colours, edgecolor=ink.paper, linewidth=0.7)
        axes.set_ylim(0.0, 1.0)
        axes.margins(x=0.0)
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel("update")
        middles = np.cumsum(shares[:, -1]) - shares[:, -1] / 2.0
        named = [position for position in range(len(names)) if shares[position].mean() >= _NEVER]
        label_lines(axes, [(names[p], float(middles[p]), colours[p]) for p in named])

    return Panel(title, draw)


def _map_of_directions(title: str, findings: Findings, name: str) -> Panel:
    comparison, labels = findings.comparison, findings.labels_of_context()
    followed = most_followed(comparison, name)

    def draw(axes: Axes, ink: Ink) -> None:
        colours = [shade_of(int(position)) for position in followed]
        first, second = comparison.context[:, :2].T
        axes.scatter(first, second, c=colours, s=30, edgecolors=ink.paper, linewidths=0.6)
        axes.set(xlabel=plain(labels[0]), ylabel=plain(labels[1]))

    return Panel(title, draw)


def _grid_of_directions(title: str, findings: Findings, name: str) -> Panel:
    comparison = findings.comparison
    chosen = comparison.direction[comparison.index(name)]

    def draw(axes: Axes, ink: Ink) -> None:
        updates = np.broadcast_to(np.arange(1, chosen.shape[1] + 1), chosen.shape)
        context = np.broadcast_to(comparison.context[:, :1], chosen.shape)
        colours = [shade_of(int(position)) for position in chosen.ravel()]
        axes.scatter(context.ravel(), updates.ravel(), c=colours, s=9, linewidths=0.0, rasterized=True)
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set(xlabel=plain(findings.labels_of_context()[0]), ylabel="update")

    return Panel(title, draw)


def steps(findings: Findings) -> list[Picture]:
    """Steps over the updates: a panel for each kind that means one thing, the target's first; nothing without any."""
    comparison, target = findings.comparison, findings.target
    kinds: dict[str, list[MethodRecord]] = {}
    for record in sorted(comparison.methods, key=lambda record: record.name != target):
        if (kind := kind_of_step(record)) is not None:
            kinds.setdefault(kind, []).append(record)
    # A length is comparable within its rule: that of the target, or, where the target has none, the most common one.
    lengths = sorted((kind for kind in kinds if kind != "divergence"), key=lambda kind: -len(kinds[kind]))
    if (own := kind_of_step(comparison.record(target))) in lengths:
        lengths = [str(own)]
    drawn = [kind for kind in kinds if kind == "divergence" or kind in lengths[:1]]
    if not drawn:
        return []
    panels = []
    for kind in drawn:
        order = [record for record in comparison.methods if record in kinds[kind]]
        lines = [
            line_of(
                comparison,
                record.name,
                comparison.hyperparameters[comparison.index(record.name), :, :, 0],
                is_main=record.name == target,
                has_band=record.name == target or record.is_yardstick,
            )
            for record in order
        ]
        title = "Divergence" if kind == "divergence" else f"Length ({order[0].rule})"
        # A schedule that leaves the range of steps would press the others together.
        top = 1.2 * float(findings.config["meta"]["stepsize_high"])
        panel = curves(title, lines, ylabel=axis_of(order[0]), first=1, is_log=any(map(is_log, order)), top=top)
        panels.append(panel)
    caption = (
        f"Step of each update, mean over the test tasks; bands are 95 % intervals, of {comparison.label(target)} and yardsticks. "
        + ("A divergence (geometric mean) and a length are different things. " if len(drawn) > 1 else "")
        + "Steps of rules that are not shown mean something else again; lengths beyond the range of steps are cut off."
    )
    if len(panels) == 1:
        return [alone("step-sizes", caption, panels[0])]
    return [picture("step-sizes", caption, [panels], Layout((4.9, 3.3), (0.62, 0.3)))]


def steps_by_task(findings: Findings) -> Picture:
    """The target's steps against each coordinate of the context."""
    comparison, target = findings.comparison, findings.target
    record = comparison.record(target)
    chosen = comparison.hyperparameters[comparison.index(target), :, :, 0].astype(np.float64)
    low, middle, high = np.quantile(np.where(np.isfinite(chosen), chosen, 0.0), (0.25, 0.5, 0.75), axis=1)
    followed = most_followed(comparison, target)

    def panel(index: int, label: str) -> Panel:
        def draw(axes: Axes, ink: Ink) -> None:
            colours = colours_of(record, followed, ink)
            context = comparison.context[:, index]
            axes.vlines(context, low, high, colors=colours, linewidth=0.8, alpha=0.45)
            axes.scatter(context, middle, c=colours, s=20, edgecolors=ink.paper, linewidths=0.5, zorder=3)
            if is_log(record):
                logarithmic(axes, "y")
            axes.set(xlabel=plain(label), ylabel=axis_of(record))

        return Panel("", draw)

    labels = findings.labels_of_context()[:_MOST_COORDINATES]
    coloured = ", in the colour of the direction followed most often" if record.directions else ""
    caption = (
        f"Steps of {comparison.label(target)} by task: the median over the updates (dot) and the middle half of them (line)"
        f"{coloured}."
    )
    layout = Layout(((5.4, 4.2, 3.4)[len(labels) - 1], 2.9), (0.1, 0.3), share_y="all")
    return picture("steps-by-task", caption, [[panel(*numbered) for numbered in enumerate(labels)]], layout)


def colours_of(record: MethodRecord, positions: NDArray[Any], ink: Ink) -> list[str]:
    """Return the colour of each direction, or that of the method where it has no choice."""
    if not record.directions:
        return [tint(record.colour or MAIN, 0, ink)] * len(positions)
    return [shade_of(int(position)) for position in positions]


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
