"""Figures of what was chosen: directions over the updates and by task, steps over the updates and by task."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from metastep.evaluation import Comparison, MethodRecord
from metastep.report.document import Picture
from metastep.report.figures import Layout, Panel, alone, curves, line_of, picture
from metastep.report.findings import Findings
from metastep.report.style import DIRECTIONS, MAIN, Ink, label_lines, logarithmic, plain, tint

_MOST_COORDINATES = 3  # of a task, in figures
_NEVER = 0.005  # a direction chosen less often than that is not named


def kind_of_step(record: MethodRecord) -> str | None:
    """What the steps of a method can be drawn with: a divergence with any other, a length with those of the same rule.

    None where steps of one method cannot be compared with one another: lengths along several directions.
    """
    if record.scale == "divergence":
        return "divergence"
    return None if record.directions or record.scale == "mixed" else f"length, {record.rule}"


def axis_of(record: MethodRecord) -> str:
    """How the axis of a method's steps is called."""
    return "KL divergence of the step" if record.scale == "divergence" else "step size"


def is_log(record: MethodRecord) -> bool:
    """Whether the steps of a method are shown on a logarithmic axis."""
    return record.scale in ("divergence", "log")


def shade_of(position: int) -> str:
    """The colour of a direction."""
    return DIRECTIONS[position % len(DIRECTIONS)]


def shares_of(comparison: Comparison, name: str) -> NDArray[np.float64]:
    """Share of the tasks in which each direction was followed: (directions, updates)."""
    index = comparison.index(name)
    positions = np.arange(len(comparison.methods[index].directions))
    return np.asarray((comparison.direction[index][None] == positions[:, None, None]).mean(axis=1))


def most_followed(comparison: Comparison, name: str) -> NDArray[np.int64]:
    """The position of the direction followed most often in each task, of equals the first: (tasks,)."""
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
    """The colour of each direction, or that of the method where it has no choice."""
    if not record.directions:
        return [tint(record.colour or MAIN, 0, ink)] * len(positions)
    return [shade_of(int(position)) for position in positions]
