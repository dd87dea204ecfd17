"""Figures of a comparison: learning curves, the spread over tasks, chosen directions and steps, single tasks."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from metastep.evaluation import Comparison, MethodRecord, metric_values, summary
from metastep.evaluation.statistics import filled_returns
from metastep.report import figures as fig
from metastep.report.document import Picture
from metastep.report.figures import Layout, Panel, plain
from metastep.report.tables import Findings, best_baseline, listed, number, yardstick_of

_LEVELS = 400  # points of a profile
_SHOWN = 0.98  # a profile is drawn until this share of the tasks is within it: the last few may be far away


def learning_curves(findings: Findings) -> list[Picture]:
    """Draw the mean of every method, and the target against each other one where there are several."""
    comparison, target = findings.comparison, findings.target
    filled = dict(zip(comparison.names, filled_returns(comparison), strict=True))
    banded = [target, *([best] if (best := best_baseline(comparison, target)) else [])]
    looks = {name: {"is_main": name == target, "has_band": name in banded} for name in comparison.names}
    lines = [fig.line_of(comparison, name, filled[name], **look) for name, look in looks.items()]
    labels = listed([comparison.label(name) for name in banded]) + (" (the best baseline) only" if best else "")
    caption = f"Mean return over the test tasks; higher is better. Bands are 95 % intervals, of {labels}."
    pictures = [fig.alone("learning-curves", caption, fig.curves("", lines))]
    others, panels = [name for name in comparison.names if name != target], []
    if len(others) < 2:
        return pictures
    for name in others:
        # The others stay in sight, so that the panels are seen to show the same thing.
        look: Any = {"label": "", "shade": fig.QUIET, "has_band": False, "is_dashed": False}
        quiet = [fig.line_of(comparison, other, filled[other], **look) for other in others if other != name]
        own = [fig.line_of(comparison, method, filled[method], label="", is_main=True) for method in (target, name)]
        panels.append(fig.curves(comparison.label(name), [*quiet, *own]))
    caption = f"{comparison.label(target)} beside each other method, with 95 % intervals; grey lines are the others."
    layout = Layout((2.75, 2.15), (0.1, 0.34), share_y="all", share_x="all")
    return [*pictures, fig.picture("one-by-one", caption, fig.in_rows(panels, 4), layout)]


def spread(findings: Findings) -> Picture:
    """Draw means and interquartile means side by side, and the shares of tasks behind them."""
    comparison, target = findings.comparison, findings.target
    best, rows = best_baseline(comparison, target), summary(comparison, **findings.resampling)
    auc = metric_values(comparison, "auc")
    contenders = [index for index, record in enumerate(comparison.methods) if not record.is_yardstick]
    yardsticks = [record.label for record in comparison.methods if record.is_yardstick]
    spared = f", {listed(yardsticks)} apart" if yardsticks else ""
    low, high = np.quantile(auc, 1.0 - _SHOWN), auc.max()
    levels = np.linspace(low, high if high > low else low + 1.0, _LEVELS)  # all may be equal
    behind = auc[contenders].max(axis=0) - auc[contenders]
    reach = max(float(np.quantile(behind.min(axis=0), _SHOWN)), float(np.quantile(behind, 0.9)), 1e-12)
    gaps = np.linspace(0.0, reach, _LEVELS)
    reached, within = (auc[:, None] >= levels[:, None]).mean(axis=2), (behind[:, None] <= gaps[:, None]).mean(axis=2)

    def means(axes: Axes) -> None:
        for height, row in enumerate(reversed(rows)):
            shade = fig.colour_of(comparison, row.method)
            for (mean, low, high), mark, shift in ((row.auc, "o", 0.14), (row.auc_middle, "D", -0.14)):
                axes.plot([low, high], [height + shift] * 2, color=shade, linewidth=1.4)
                face = shade if mark == "o" else fig.PAPER
                axes.plot(mean, height + shift, mark, color=shade, markersize=5.0, markerfacecolor=face)
        fig.name_rows(axes, [comparison.label(row.method) for row in rows])
        axes.set_xlabel("AUC")

    def profile(xlabel: str, methods: Sequence[int], shares: Any, levels: Any, axes: Axes) -> None:
        """Draw the target and the best baseline in their colours and with their names, the others in grey."""
        for index, row in zip(methods, shares, strict=True):
            record = comparison.methods[index]
            is_named = record.name in (target, best)
            is_coloured = is_named or record.is_yardstick
            shade = fig.colour_of(comparison, record.name) if is_coloured else fig.QUIET
            width = 2.2 if record.name == target else 1.5 if is_named else 1.0
            label, style = plain(record.label) if is_coloured else None, "--" if record.is_yardstick else "-"
            axes.plot(levels, row, style, color=shade, linewidth=width, zorder=4 if is_named else 2, label=label)
        axes.set(ylim=(0.0, 1.02), xlim=(levels[0], levels[-1]), xlabel=xlabel)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(frameon=False, fontsize=8.0, loc="best", handlelength=1.6)

    panels = [
        Panel("Mean and interquartile mean", means),
        Panel("Tasks that reach an AUC", partial(profile, "AUC", range(len(auc)), reached, levels)),
        Panel("Tasks within a gap to the best", partial(profile, "gap in AUC", contenders, within, gaps)),
    ]
    caption = (
        "Left: mean AUC (dot) and its interquartile mean (diamond), with 95 % intervals. Middle: the share of tasks on which a "
        f"method reaches an AUC. Right: that on which it is at most so far behind the best method of the task{spared}."
    )
    return fig.picture("spread", caption, [panels], Layout((3.4, 3.2), (0.42, 0.3)))


def is_log(record: MethodRecord) -> bool:
    """Return whether the steps of a method are shown on a logarithmic axis."""
    return record.scale in ("divergence", "log")


def directions(findings: Findings, names: Sequence[str]) -> Picture:
    """Draw which directions methods followed, over the updates and by task, a row for each method."""
    comparison, labels = findings.comparison, [plain(label) for label in findings.labels_of_context()]
    is_map = findings.context_space.num_coordinates > 1

    def row(name: str) -> list[Panel]:
        chosen, known = comparison.direction[comparison.index(name)], comparison.record(name).directions
        shares = np.stack([(chosen == position).mean(axis=0) for position in range(len(known))])
        updates = np.arange(1, chosen.shape[1] + 1)

        def over_updates(axes: Axes) -> None:
            colours = [fig.shade_of(position) for position in range(len(known))]
            axes.stackplot(updates, shares, colors=colours, edgecolor=fig.PAPER, linewidth=0.7)
            axes.set(ylim=(0.0, 1.0), xmargin=0.0, xlabel="update")
            axes.grid(visible=False)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            middles = np.cumsum(shares[:, -1]) - shares[:, -1] / 2.0
            named = [p for p in range(len(known)) if shares[p].mean() >= 0.005]  # the others hardly show
            fig.label_lines(axes, [(known[p], float(middles[p]), colours[p]) for p in named])

        def by_task(axes: Axes) -> None:
            if is_map:
                colours = _colours(comparison, name, most_followed(comparison, name))
                first, second = comparison.context[:, :2].T
                axes.scatter(first, second, c=colours, s=30, edgecolors=fig.PAPER, linewidths=0.6)
            else:
                colours = _colours(comparison, name, chosen.ravel())
                first, second = map(np.ravel, np.broadcast_arrays(comparison.context[:, :1], updates))
                axes.scatter(first, second, c=colours, s=9, linewidths=0.0, rasterized=True)
                axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.set(xlabel=labels[0], ylabel=labels[1] if is_map else "update")

        label = comparison.label(name)
        return [Panel(f"{label}: share of tasks", over_updates), Panel(f"{label}: by task", by_task)]

    right = "the direction followed most often" if is_map else "the direction of every update"
    caption = f"Directions that were followed. Left: the share of the test tasks by update. Right: {right}, by task."
    layout = Layout((4.9, 3.2), (0.75, 0.42), widths=(1.25, 1.0))
    return fig.picture("directions", caption, [row(name) for name in names], layout)


def most_followed(comparison: Comparison, name: str) -> NDArray[np.int64]:
    """Return the position of the direction followed most often in each task, of equals the first: (tasks,)."""
    chosen, num = comparison.direction[comparison.index(name)], max(1, len(comparison.record(name).directions))
    return np.asarray(np.stack([(chosen == position).sum(axis=1) for position in range(num)]).argmax(axis=0))


def chosen(findings: Findings) -> list[Picture]:
    """Draw over the updates what was chosen: all hyperparameters of the target, or steps, of each kind that can share an axis."""
    comparison, target = findings.comparison, findings.comparison.record(findings.target)

    def panel(title: str, shown: Sequence[tuple[MethodRecord, int]], *, is_named: bool = True, **axis: Any) -> Panel:
        """Draw one column of the hyperparameters of each method."""
        lines = []
        for record, column in shown:
            is_main, values = record == target, comparison.hyperparameters[comparison.index(record.name), :, :, column]
            look: Any = {"is_main": is_main, "has_band": is_main or (record.is_yardstick and not target.choices)}
            lines.append(fig.line_of(comparison, record.name, values, **look, **({} if is_named else {"label": ""})))
        return fig.curves(title, lines, first=1, **axis)

    panels: list[Panel] = []
    for name, scale in target.choices:
        columns = []
        for record in comparison.methods:
            names = [choice for choice, _ in record.choices] or ([] if record.directions else ["stepsize"])
            if name in names and record.rule == target.rule:
                columns.append((record, names.index(name)))
        title = "step size" if name == "stepsize" else name.replace("_", " ")
        is_named = not panels or len(columns) > 1  # where the target is alone, the other panels say whose the line is
        panels.append(panel(title, columns, is_named=is_named, ylabel="", is_log=scale != "linear", of_tasks=True))
    label = comparison.label(target.name)
    if panels:
        caption = (
            f"Hyperparameters of each update: medians over the test tasks, and for {label} the middle half and the middle nine "
            "tenths of the tasks. Methods that choose fewer are in fewer panels."
        )
        layout = Layout((4.6, 2.3), (0.85, 0.3), share_x="all")  # names of methods stand between the panels
        return [fig.picture("hyperparameters", caption, fig.in_rows(panels, 2), layout)]

    def rule_of(record: MethodRecord) -> str:
        """Return the rule within which lengths of steps can share an axis; along several directions they cannot."""
        return "" if record.directions or record.scale in ("mixed", "divergence") else record.rule

    rules = [rule for record in comparison.methods if (rule := rule_of(record))]
    rule = rule_of(target) or max(rules, key=rules.count, default="")
    kinds = {
        "Divergence": [record for record in comparison.methods if record.scale == "divergence"],
        f"Length ({rule})": [record for record in comparison.methods if rule and rule_of(record) == rule],
    }
    top = 1.2 * float(findings.config["meta"]["stepsize_high"])  # schedules that leave the range would press the rest
    for title, records in sorted(kinds.items(), key=lambda kind: target not in kind[1]):
        if records:
            how: Any = {"ylabel": axis_of(records[0].scale), "is_log": any(map(is_log, records)), "top": top}
            panels.append(panel(title, [(record, 0) for record in records], **how))
    caption = (
        f"Step of each update, mean over the test tasks; bands are 95 % intervals, of {label} and yardsticks. Steps of rules "
        "that are not shown mean something else; lengths beyond the range are cut off."
    )
    layout = Layout((4.9, 3.3) if len(panels) > 1 else (8.2, 4.1), (0.62, 0.3))
    return [fig.picture("step-sizes", caption, [panels], layout)] if panels else []


def axis_of(scale: str) -> str:
    """Return the label of an axis of steps."""
    return "KL divergence of the step" if scale == "divergence" else "step size"


def steps_by_task(findings: Findings) -> Picture:
    """Draw the target's steps against each coordinate of the context."""
    comparison, target = findings.comparison, findings.target
    record, colours = comparison.record(target), _colours(comparison, target, most_followed(comparison, target))
    chosen = comparison.hyperparameters[comparison.index(target), :, :, 0].astype(np.float64)
    low, middle, high = np.quantile(np.where(np.isfinite(chosen), chosen, 0.0), (0.25, 0.5, 0.75), axis=1)

    def draw(index: int, axes: Axes) -> None:
        context = comparison.context[:, index]
        axes.vlines(context, low, high, colors=colours, linewidth=0.8, alpha=0.45)
        axes.scatter(context, middle, c=colours, s=20, edgecolors=fig.PAPER, linewidths=0.5, zorder=3)
        if is_log(record):
            fig.logarithmic(axes, "y")
        axes.set(xlabel=plain(labels[index]), ylabel=axis_of(record.scale))

    labels = findings.labels_of_context()[:3]
    coloured = ", in the colour of the direction followed most often" if record.directions else ""
    caption = f"Steps of {comparison.label(target)} by task: the median over the updates and the middle half{coloured}."
    layout = Layout(((5.4, 4.2, 3.4)[len(labels) - 1], 2.9), (0.1, 0.3), share_y="all")
    return fig.picture("steps-by-task", caption, [[Panel("", partial(draw, i)) for i in range(len(labels))]], layout)


def _colours(comparison: Comparison, name: str, positions: NDArray[Any]) -> list[str]:
    """Return the colour of each direction, or that of the method where it has no choice."""
    if not comparison.record(name).directions:
        return [fig.colour_of(comparison, name)] * len(positions)
    return [fig.shade_of(int(position)) for position in positions]


def some_tasks(comparison: Comparison, target: str) -> list[int]:
    """Return six tasks, evenly from where the target is furthest behind the best baseline to where it is furthest ahead."""
    auc = dict(zip(comparison.names, metric_values(comparison, "auc"), strict=True))
    best = best_baseline(comparison, target)
    order = np.argsort(auc[target] - auc[best] if best else auc[target], kind="stable")
    return order[np.linspace(0, len(order) - 1, min(6, len(order))).round().astype(int)].tolist()


def single_tasks(findings: Findings) -> Picture:
    """Draw returns in a few tasks and under each the steps that the target chose there."""
    comparison, target = findings.comparison, findings.target
    best, index = best_baseline(comparison, target), comparison.index(target)
    record, tasks = comparison.methods[index], some_tasks(comparison, target)
    shown = [name for name in (yardstick_of(comparison, target), best, target) if name]
    filled = dict(zip(comparison.names, filled_returns(comparison), strict=True))

    def returns(task: int) -> Panel:
        values = list(zip(findings.context_space.names, comparison.context[task], strict=True))[:2]
        place = ", ".join(f"{name} {number(float(value))}" for name, value in values)
        look: Any = {"has_band": False}
        look |= {} if task == tasks[:3][-1] else {"label": ""}  # named once, where there is room beside the panel
        lines = [fig.line_of(comparison, name, filled[name][[task]], is_main=name == target, **look) for name in shown]
        return fig.curves(place if findings.is_family else f"learner {task + 1}", lines, ylabel="return")

    def chosen_steps(task: int, axes: Axes) -> None:
        chosen = comparison.hyperparameters[index, task, :, 0]
        updates = np.arange(1, len(chosen) + 1)
        axes.plot(updates, chosen, color=fig.QUIET, linewidth=1.0)
        axes.scatter(updates, chosen, c=_colours(comparison, target, comparison.direction[index, task]), s=14, zorder=3)
        if is_log(record):
            fig.logarithmic(axes, "y")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set(xlabel="update", ylabel="KL" if record.scale == "divergence" else "step")

    rows: list[Sequence[Panel]] = []
    for group in fig.in_rows(tasks, 3):
        rows += [[]] if rows else []  # some room between the groups
        rows += [[returns(task) for task in group], [Panel("", partial(chosen_steps, task)) for task in group]]
    coloured = " in the colours of the directions" if record.directions else ""
    order = f", from where it is furthest behind {comparison.label(best)} to furthest ahead" if best else ""
    caption = f"Single tasks{order}: returns, below them steps of {record.label}{coloured}. A curve is one learner."
    heights = [0.62 if not row else 1.35 if row[0].title else 1.0 for row in rows]
    layout = Layout((3.5, 1.45), (0.12, 0.14), heights=heights, share_x="all", share_y="row")
    return fig.picture("single-tasks", caption, rows, layout)
